"""Sharded logs and consumer groups without ``async``: threads, interrupts, positions, closing."""

# covers: dlog/blocking/groups.py
# covers: dlog/blocking/sharded_reader.py
# covers: dlog/blocking/sharded_writer.py
# covers: dlog/blocking/shards.py

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import blocking
from dlog.groups import GroupConfig
from dlog.read.record_batch import RecordBatch
from dlog.shards import NO_SHARD, reader, shard_of
from ledger.runtime.tasks.loop_thread import LoopThread

pytestmark = pytest.mark.slow
KEYS = [b"key-%d" % number for number in range(12)]


@contextmanager
def filled(path: Path, shards: int, count: int) -> Iterator[blocking.Namespace]:
    """A namespace with the sharded log ``s``: records ``KEY/NUMBER``."""
    with blocking.open_namespace(path.as_uri()) as namespace:
        blocking.create_sharded_log(namespace, "s", shards)
        with blocking.open_sharded_writer(namespace, "s") as writer:
            writer.append_many((key, b"%s/%d" % (key, n)) for n in range(count) for key in KEYS)
        yield namespace


def written(shards: int, count: int) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for number in range(count):
        for key in KEYS:
            found.setdefault(shard_of(key, shards), []).append(b"%s/%d" % (key, number))
    return found


def test_a_script_writes_and_reads_a_sharded_log(tmp_path: Path) -> None:
    with filled(tmp_path, 3, 4) as namespace:
        assert len(blocking.shard_names(namespace, "s")) == 3
        with blocking.open_sharded_writer(namespace, "s") as writer:
            futures = [writer.submit(key, bytearray(b"%s/4" % key)) for key in KEYS]
            writer.flush()
            assert all(future.done() for future in futures)
            assert [future.result().shard for future in futures] == [shard_of(key, 3) for key in KEYS]
            for key in KEYS:
                assert writer.append(key, b"%s/5" % key).shard == shard_of(key, 3)
            writer.wait_capacity()
            writer.wait_capacity(b"key")
            with pytest.raises(dlog.LogLockedError):
                blocking.open_sharded_writer(namespace, "s", lock_timeout_s=0)
            with pytest.raises(dlog.RecordTooLongError):
                writer.submit(b"key", bytes(dlog.PAYLOAD_BYTES_MAX + 1)).result()
        with pytest.raises(dlog.WriterClosedError):
            writer.append(b"key", b"late")
        found: dict[int, list[bytes]] = {}
        with blocking.open_sharded_reader(namespace, "s", end=dlog.LATEST, cursor="c") as merged:
            for _ in range(30):
                shard, record = next(merged)
                found.setdefault(shard, []).append(record.payload)
            cursors = merged.commit()
            assert {
                each: cursor.position for each, cursor in cursors.items()
            }.items() <= merged.positions.items()
            ends = merged.ends
        with blocking.open_sharded_reader(namespace, "s", end=ends, cursor="c") as merged:
            for shard, batch in merged.batches(5):
                found.setdefault(shard, []).extend(record.payload for record in batch)
            assert merged.read_batch(1, wait_s=0) is None
        assert found == written(3, 6)
        with blocking.open_sharded_reader(namespace, "s") as merged:
            merged.close()
            with pytest.raises(dlog.NamespaceClosedError):
                next(merged)
        blocking.delete_sharded_log(namespace, "s")
        assert namespace.list_logs() == []


@pytest.mark.parametrize("stored", [True, False])
def test_the_key_that_chooses_the_shard_is_stored_with_the_headers(tmp_path: Path, stored: bool) -> None:
    with blocking.open_namespace(tmp_path.as_uri()) as namespace:
        blocking.create_sharded_log(namespace, "s", 2)
        with blocking.open_sharded_writer(namespace, "s", store_keys=stored) as writer:
            assert writer.stores_keys is stored
            assert writer.writers[0].keys_and_headers
            reused = bytearray(b"k")
            writer.append(reused, b"1", headers={"a": b"1"})
            future = writer.submit(reused, b"2", headers={"a": b"2"})
            reused[:] = b"x"
            future.result()
            writer.append_many([(b"k", b"3"), (b"j", b"4")], headers=iter([{"a": b"3"}, None]))
        with blocking.open_sharded_reader(namespace, "s", follow=False) as merged:
            found = {each.payload: (each.key, dict(each.headers)) for _, each in merged}
    key = b"k" if stored else None
    assert found == {
        b"1": (key, {"a": b"1"}),
        b"2": (key, {"a": b"2"}),
        b"3": (key, {"a": b"3"}),
        b"4": (b"j" if stored else None, {}),
    }


def test_positions_and_commits_cover_what_was_returned_in_each_way_of_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "TURN_RECORDS_MAX", 4)
    with filled(tmp_path, 2, 3) as namespace:
        for count in range(0, 3 * len(KEYS), 5):
            found: dict[int, list[bytes]] = {}
            with blocking.open_sharded_reader(namespace, "s", follow=False, cursor=f"c{count}") as merged:
                taken = 0
                while taken < count:
                    if taken % 2:
                        batch = merged.read_batch(min(3, count - taken))
                        assert batch is not None
                        shard, records = batch[0], list(batch[1])
                    else:
                        shard, record = next(merged)
                        records = [record]
                    taken += len(records)
                    found.setdefault(shard, []).extend(each.payload for each in records)
                    earlier, last = merged.positions, (shard, records[-1].dlsn)
                    assert earlier[shard] == records[-1].dlsn.next_slot()
                assert set(merged.commit()) == set(found), "a shard of which nothing was returned is left out"
                if count:
                    assert merged.commit().items() <= merged.commit_to(earlier).items()
                    merged.commit_shard(*last)
                    with pytest.raises(ValueError, match="was not returned"):
                        merged.commit_shard(last[0], dlog.DLSN(9, 0, 0))
                    with pytest.raises(ValueError, match="was not returned"):
                        merged.commit_to({0: dlog.DLSN(9, 0, 0)})
            with blocking.open_sharded_reader(namespace, "s", follow=False, cursor=f"c{count}") as merged:
                for shard, record in merged:
                    found.setdefault(shard, []).append(record.payload)
            assert found == written(2, 3)


def test_threads_share_a_sharded_reader_and_each_record_goes_to_one_of_them(tmp_path: Path) -> None:
    with (
        filled(tmp_path, 3, 60) as namespace,
        blocking.open_sharded_reader(namespace, "s", follow=False) as merged,
    ):
        found: list[bytes] = []

        def take(mixed: bool) -> None:
            for _, record in merged:
                found.append(record.payload)
                if mixed and (batch := merged.read_batch(3)) is not None:
                    found.extend(each.payload for each in batch[1])

        threads = [threading.Thread(target=take, args=(number % 2 == 0,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted(each for shard in written(3, 60).values() for each in shard)


def late_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the calling thread each second time, just when its call has ended in the loop."""
    whole, calls = LoopThread.run, 0

    def run(self: LoopThread, function: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = whole(self, function, *args, **kwargs)
        if function.__name__ == "_fetch" and (calls := calls + 1) % 2:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(LoopThread, "run", run)


def test_a_late_ctrl_c_loses_no_record_of_a_shard_and_no_batch_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path, 2, 5) as namespace:
        logs = blocking.shard_names(namespace, "s")
        config = GroupConfig(check_interval_s=0.05, records_max=4)
        with (
            blocking.open_sharded_reader(namespace, "s", follow=False) as merged,
            blocking.join_group(namespace, "g", logs, config=config) as member,
        ):
            late_interrupts(monkeypatch)
            found: dict[int, list[bytes]] = {}
            while True:
                try:
                    shard, record = next(merged)
                except KeyboardInterrupt:
                    continue
                except StopIteration:
                    break
                found.setdefault(shard, []).append(record.payload)
            assert found == written(2, 5)
            shared: list[bytes] = []
            while len(shared) < 5 * len(KEYS):
                try:
                    batch = next(member)
                except KeyboardInterrupt:
                    continue
                shared += [each.payload for each in batch.records]
                member.commit(batch)
            assert sorted(shared) == sorted(each for payloads in found.values() for each in payloads)


def test_gaps_of_a_shard_are_taken_once_and_are_errors_of_the_other_calls(tmp_path: Path) -> None:
    with filled(tmp_path, 2, 1) as namespace:
        with blocking.open_sharded_writer(namespace, "s") as writer:
            writer.append_many([(key, b"second") for key in KEYS])
        lost = namespace.segments("s/shard-00001")[0]
        namespace._loop.run(namespace._inner.context.client.delete, lost.ledger_id)
        with blocking.open_sharded_reader(
            namespace, "s", end=dlog.LATEST, gaps=True, cursor="c", shards=[1]
        ) as merged:
            for _ in range(2):
                with pytest.raises(dlog.CorruptLogError):
                    next(merged)
                with pytest.raises(dlog.CorruptLogError):
                    merged.read_batch(5)
            assert merged.commit() == {}
            taken = merged.read_batch_or_gap(5)
            assert taken is not None
            gap = taken[1]
            assert isinstance(gap, dlog.Gap)
            assert merged.commit_shard(1, gap.last).position == gap.resume
            assert {bytes(each) for _, batch in merged.batches() for each in batch.payloads()} == {b"second"}


def test_a_wait_for_records_of_any_shard_ends_in_time(tmp_path: Path) -> None:
    with filled(tmp_path, 2, 1) as namespace, blocking.open_sharded_reader(namespace, "s") as merged:
        for _ in KEYS:
            next(merged)
        assert merged.read_batch(5, wait_s=0.01) == (NO_SHARD, RecordBatch())
        assert repr(merged).startswith("<blocking ShardedReader")


def test_a_thread_that_waits_for_a_batch_is_woken_when_the_member_leaves(tmp_path: Path) -> None:
    with filled(tmp_path, 2, 0) as namespace:
        member = blocking.join_group(namespace, "g", blocking.shard_names(namespace, "s"))
        while len(member.logs) < 2:
            member.wait_change()
        caught: list[Exception] = []

        def wait() -> None:
            try:
                next(member)
            except dlog.NamespaceClosedError as exc:
                caught.append(exc)

        thread = threading.Thread(target=wait)
        thread.start()
        member.close()
        thread.join()
        assert len(caught) == 1
        assert repr(member).startswith("<blocking GroupMember")
