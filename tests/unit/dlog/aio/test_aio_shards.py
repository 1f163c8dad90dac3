"""Sharded logs and consumer groups from asyncio: the same results, cancelled calls, no other thread."""

# covers: dlog/aio/groups.py
# covers: dlog/aio/shards.py

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import aio
from dlog.groups import GroupConfig
from dlog.read.record_batch import RecordBatch
from dlog.shards import NO_SHARD, shard_of

pytestmark = pytest.mark.slow
DEADLINE_S = 120
KEYS = [b"key-%d" % number for number in range(12)]


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a program on asyncio in a thread of its own, since trio may run the test."""

    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    asyncio.run(limited())


@asynccontextmanager
async def filled(path: Path, shards: int, count: int) -> AsyncIterator[aio.Namespace]:
    """A namespace with the sharded log ``s``: records ``KEY/NUMBER``."""
    async with aio.open_namespace(path.as_uri()) as namespace:
        await aio.create_sharded_log(namespace, "s", shards)
        async with aio.open_sharded_writer(namespace, "s") as writer:
            await writer.append_many([(key, b"%s/%d" % (key, n)) for n in range(count) for key in KEYS])
        yield namespace


def written(shards: int, count: int) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for number in range(count):
        for key in KEYS:
            found.setdefault(shard_of(key, shards), []).append(b"%s/%d" % (key, number))
    return found


def test_a_program_writes_and_reads_a_sharded_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path, 3, 4) as namespace:
            assert len(await aio.shard_names(namespace, "s")) == 3
            async with aio.open_sharded_writer(namespace, "s") as writer:
                pending = [writer.submit(key, b"%s/4" % key) for key in KEYS]
                await writer.flush()
                assert all(each.outcome is dlog.RecordOutcome.DURABLE for each in pending)
                assert [(await each).shard for each in pending] == [shard_of(key, 3) for key in KEYS]
                for key in KEYS:
                    position = await writer.append(key, b"%s/5" % key)
                    assert position.shard == shard_of(key, 3)
                await writer.wait_capacity()
                assert len(writer.writers) == 3
                assert repr(writer).startswith("<asyncio ShardedWriter")
            async with aio.open_sharded_reader(namespace, "s", end=dlog.LATEST, cursor="c") as reader:
                found: dict[int, list[bytes]] = {}
                for _ in range(30):
                    shard, record = await anext(reader)
                    found.setdefault(shard, []).append(record.payload)
                cursors = await reader.commit()
                assert {
                    each: cursor.position for each, cursor in cursors.items()
                }.items() <= reader.positions.items()
                ends = reader.ends
            async with aio.open_sharded_reader(namespace, "s", end=ends, cursor="c") as reader:
                async for shard, batch in reader.batches(5):
                    found.setdefault(shard, []).extend(record.payload for record in batch)
                await reader.commit_shard(shard, batch.last_dlsn)
                assert await reader.read_batch(1, wait_s=0) is None
            assert found == written(3, 6)
            await aio.delete_sharded_log(namespace, "s")
            assert await namespace.list_logs() == []

    run(main)


@pytest.mark.parametrize("stored", [True, False])
def test_the_key_that_chooses_the_shard_is_stored_with_the_headers(tmp_path: Path, stored: bool) -> None:
    async def main() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            await aio.create_sharded_log(namespace, "s", 2)
            async with aio.open_sharded_writer(namespace, "s", store_keys=stored) as writer:
                assert writer.stores_keys is stored
                assert writer.writers[0].keys_and_headers
                await writer.append(b"k", b"1", headers={"a": b"1"})
                await writer.submit(b"k", b"2", headers={"a": b"2"})
                await writer.append_many([(b"k", b"3"), (b"j", b"4")], headers=[{"a": b"3"}, None])
            async with aio.open_sharded_reader(namespace, "s", follow=False) as reader:
                found = {each.payload: (each.key, dict(each.headers)) async for _, each in reader}
            key = b"k" if stored else None
            assert found == {
                b"1": (key, {"a": b"1"}),
                b"2": (key, {"a": b"2"}),
                b"3": (key, {"a": b"3"}),
                b"4": (b"j" if stored else None, {}),
            }

    run(main)


def test_a_cancelled_read_of_a_sharded_log_loses_no_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            filled(tmp_path, 3, 25) as namespace,
            aio.open_sharded_reader(namespace, "s") as reader,
        ):
            found: dict[int, list[bytes]] = {}
            count = calls = 0
            while count < 25 * len(KEYS):
                calls += 1
                task = asyncio.create_task(reader.read_batch(7) if calls % 3 else one(reader))
                for _ in range(calls % 5):
                    await asyncio.sleep(0)
                if calls % 11:
                    task.cancel()
                try:
                    taken = await task
                except asyncio.CancelledError:
                    continue
                assert taken is not None
                found.setdefault(taken[0], []).extend(record.payload for record in taken[1])
                count += len(taken[1])
            assert found == written(3, 25)
            assert await reader.read_batch(1, wait_s=0.01) == (NO_SHARD, RecordBatch())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(reader)

    async def one(reader: aio.ShardedReader) -> tuple[int, list[dlog.Record]]:
        shard, record = await anext(reader)
        return shard, [record]

    run(main)


def test_two_tasks_share_a_sharded_reader_without_repeats(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            filled(tmp_path, 3, 60) as namespace,
            aio.open_sharded_reader(namespace, "s", follow=False) as reader,
        ):

            async def take() -> list[bytes]:
                return [record.payload async for _, record in reader]

            one, two = await asyncio.gather(take(), take())
        assert sorted(one + two) == sorted(each for shard in written(3, 60).values() for each in shard)

    run(main)


def test_no_record_of_a_sharded_log_passes_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        hops = 0
        whole = loop.call_soon_threadsafe

        def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
            nonlocal hops
            hops += 1
            return whole(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        async with filled(tmp_path, 2, 1) as namespace:
            threads: set[int] = set()
            async with aio.open_sharded_writer(namespace, "s") as writer:
                pending = [writer.submit(b"%d" % (n % 50), b"x" * 100) for n in range(10_000)]
                for each in pending:
                    each._pending._inner.on_settled(lambda: threads.add(threading.get_ident()))
                await writer.flush()
            hops = 0
            async with aio.open_sharded_reader(namespace, "s", end=dlog.LATEST) as reader:
                assert len([None async for _ in reader]) == 10_000 + len(KEYS)
            assert threads == {threading.get_ident()}
            assert hops < 2_000, "turns are few, records are many"

    run(main)


def test_gaps_of_a_shard_come_in_batches(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path, 2, 1) as namespace:
            async with aio.open_sharded_writer(namespace, "s") as writer:
                await writer.append_many([(key, b"second") for key in KEYS])
            lost = (await namespace.segments("s/shard-00001"))[0]
            await namespace._bridge.run(namespace._inner.context.client.delete, lost.ledger_id)
            async with aio.open_sharded_reader(
                namespace, "s", end=dlog.LATEST, gaps=True, cursor="c"
            ) as reader:
                gaps = []
                async for shard, each in reader.batches(gaps=True):
                    if isinstance(each, dlog.Gap):
                        gaps.append((shard, each.cause))
                        cursor = await reader.commit_shard(shard, each.last)
                        assert cursor.position == each.resume
            assert gaps == [(1, dlog.GapCause.LEDGER_MISSING)]

    run(main)


def test_members_of_a_group_share_logs_in_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path, 2, 5) as namespace:
            logs = await aio.shard_names(namespace, "s")
            config = GroupConfig(check_interval_s=0.05, records_max=4)
            found: list[bytes] = []
            async with aio.join_group(namespace, "g", logs, config=config) as member:
                while len(member.logs) < 2:
                    await member.wait_change()
                cancelled = 0
                while len(found) < 5 * len(KEYS):
                    task = asyncio.create_task(anext(member))
                    for _ in range(cancelled % 7):
                        await asyncio.sleep(0)
                    if (cancelled := cancelled + 1) % 8:
                        task.cancel()
                    try:
                        batch = await task
                    except asyncio.CancelledError:
                        continue
                    found += [record.payload for record in batch.records]
                    await member.commit(batch)
                assert member.group == "g"
                assert repr(member).startswith("<asyncio GroupMember")
                left = asyncio.create_task(anext(member))
                await asyncio.sleep(0)
            with pytest.raises(dlog.NamespaceClosedError, match="join again"):
                await left
            assert sorted(found) == sorted(each for shard in written(2, 5).values() for each in shard)

    run(main)
