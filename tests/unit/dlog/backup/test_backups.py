"""Backups of real directories: made, verified, restored, refused."""

# covers: dlog/backup/calls.py
# covers: dlog/backup/content.py
# covers: dlog/backup/errors.py
# covers: dlog/backup/plan.py
# covers: dlog/backup/restoring.py
# covers: dlog/backup/rounds.py
# covers: dlog/backup/source.py
# covers: dlog/backup/store.py
# covers: dlog/backup/verifying.py

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

import dlog
from dlog.backup import (
    Backup,
    BackupDamagedError,
    BackupError,
    BackupInUseError,
    BackupNotFoundError,
    RestoreTargetError,
    open_backups,
    restoring,
)
from dlog.backup.destination import DirectoryDestination
from dlog.backup.source import BackupSource, EntrySource
from dlog.config import NamespaceConfig
from ledger.digest import ENTRY_HEADER_BYTES
from ledger.metadata_store.store import Node
from ledger.runtime.tasks.task_errors import errors_in
from namespace.policy import Policy, Right, Rule

pytestmark = pytest.mark.slow  # each has directories of its own, on the disk


class DiedError(BaseException):
    """The process ended."""


class DyingSystem:
    """The system calls of a process that is killed at the n-th one that changes a file."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        if name not in ("write", "fsync", "rename", "mkdir", "unlink"):
            return real

        def call(*args: object, **kwargs: object) -> object:
            self._left -= 1
            if self._left <= 0:  # and every later one, as of a process that is no more
                raise DiedError
            return real(*args, **kwargs)

        return call


Records = list[tuple[dlog.DLSN, int, bytes]]


async def records_of(uri: str, log: str) -> Records:
    async with (
        dlog.open_namespace(uri, read_only=True) as namespace,
        namespace.open_reader(log, follow=False) as reader,
    ):
        return [(record.dlsn, record.txid, record.payload) async for record in reader]


async def back_up(directory: Path, destination: Path, **given: object) -> Backup:
    async with dlog.open_namespace(directory.as_uri(), read_only=True) as namespace:
        return await namespace.backup.make(destination, **given)  # type: ignore[arg-type]


async def append(directory: Path, log: str, *payloads: bytes) -> None:
    async with (
        dlog.open_namespace(directory.as_uri()) as namespace,
        namespace.open_writer(log, create=True) as writer,
    ):
        await writer.append_many(list(payloads))


async def restore(destination: Path, directory: Path, **given: object) -> restoring.Restored:
    async with open_backups(destination) as backups:
        return await backups.restore(directory, **given)  # type: ignore[arg-type]


async def stored_entries(directory: Path) -> dict[int, list[bytes]]:
    """The stored bytes of each ledger that a log names."""
    found: dict[int, list[bytes]] = {}
    async with dlog.open_namespace(directory.as_uri(), read_only=True) as namespace:
        for log in await namespace.list_logs():
            for segment in await namespace.segments(log):
                copy = await namespace.context.client.replica_copy(segment.ledger_id, "none:1")
                last = (await namespace.context.client.metadata(segment.ledger_id)).last_entry_id
                found[segment.ledger_id] = [(await copy.read(each, each, 1))[0] for each in range(last + 1)]
    return found


async def test_a_restored_directory_has_the_entries_byte_for_byte_and_all_that_belongs_to_its_logs(
    tmp_path: Path,
) -> None:
    source, destination, restored = tmp_path / "source", tmp_path / "destination", tmp_path / "restored"
    policy = Policy((Rule("*", "*", frozenset(Right)),))
    async with dlog.open_namespace(source.as_uri()) as namespace:
        for _ in range(3):  # three segments
            async with namespace.open_writer("shop/orders", create=True) as writer:
                await writer.append_many([b"one", b"two", b"three"])
        await namespace.create_log("empty")
        await namespace.properties.change("shop/orders", {"owner": "me"})
        await namespace.retention.set("shop/orders", dlog.Retention(age_s=10**9))
        await namespace.cursors("shop/orders").set("billing", dlog.DLSN(2, 0, 1))
        await namespace.truncate_log("shop/orders", dlog.DLSN(1, 0, 1))
        await namespace.policy.set(policy)
    made = await back_up(source, destination)
    assert (made.logs, made.ledgers, made.is_whole) == (2, 3, True)
    found = await restore(destination, restored)
    assert found.logs == ("empty", "shop/orders")
    assert await stored_entries(restored) == await stored_entries(source)
    assert await records_of(restored.as_uri(), "shop/orders") == await records_of(
        source.as_uri(), "shop/orders"
    )
    async with dlog.open_namespace(restored.as_uri()) as namespace:
        assert await namespace.list_logs() == ["empty", "shop/orders"]
        assert (await namespace.properties.get("shop/orders")).values == {"owner": "me"}
        assert await namespace.retention.get("shop/orders") == dlog.Retention(age_s=10**9)
        cursor = await namespace.cursors("shop/orders").get("billing")
        assert cursor is not None
        assert cursor.position == dlog.DLSN(2, 0, 1)
        assert await namespace.policy.get() == policy
        async with namespace.open_writer("shop/orders") as writer:
            assert await writer.append(b"four") == dlog.DLSN(4, 0, 0)
        assert (await namespace.repair.verify("shop/orders")).problem is None
        assert (await namespace.repair.check("shop/orders")).findings == ()


async def test_a_live_writer_is_not_stopped_and_each_backup_is_a_prefix_with_all_that_was_visible(
    tmp_path: Path,
) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    visible: list[int] = []
    async with (
        dlog.open_namespace(source.as_uri()) as namespace,
        namespace.open_writer("orders", create=True) as writer,
        trio.open_nursery() as nursery,
    ):

        async def write() -> None:
            number = 0
            while True:
                await writer.append(b"%d" % number)
                number += 1

        nursery.start_soon(write)
        for _ in range(4):
            await writer.append(b"before")
            await writer.flush()
            last = await namespace.last_dlsn("orders")
            assert last is not None
            visible.append(last.entry_id)
            await back_up(source, destination)
        assert writer.failure is None
        nursery.cancel_scope.cancel()
    written = await records_of(source.as_uri(), "orders")
    async with open_backups(destination) as backups:
        moments = [each.cut_ms for each in await backups.list_all()]
    assert len(moments) == 4
    for number, cut_ms in enumerate(moments):
        at = datetime.datetime.fromtimestamp(cut_ms / 1000, datetime.UTC)
        await restore(destination, tmp_path / f"r{number}", at=at)
        found = await records_of((tmp_path / f"r{number}").as_uri(), "orders")
        assert found == written[: len(found)]
        assert found[-1][0].entry_id >= visible[number]


async def test_a_second_backup_sends_only_new_ledgers_and_the_tail(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"x" * 1000)
    await back_up(source, destination)
    before = set((destination / "ledgers").rglob("*-*"))
    sent: list[int] = []
    await back_up(source, destination, on_progress=lambda progress: sent.append(progress.bytes_sent))
    assert sent == []
    await append(source, "orders", b"y" * 100)
    await back_up(source, destination, on_progress=lambda progress: sent.append(progress.bytes_sent))
    new = set((destination / "ledgers").rglob("*-*")) - before
    assert sum(each.stat().st_size for each in new) == sent[-1] < 1000


async def test_a_tail_that_grows_by_a_little_leaves_few_chunks_and_is_read_through(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with (
        dlog.open_namespace(source.as_uri()) as namespace,
        namespace.open_writer("orders", create=True) as writer,
    ):
        for _ in range(16):
            await writer.append(b"x" * 100)
            await writer.flush()
            await namespace.backup.make(destination, keep=1)
    assert len(list((destination / "ledgers").rglob("*-*"))) <= 5
    async with open_backups(destination) as backups:
        found = await backups.verify()
    assert found.is_sound
    assert found.backups == 1
    await restore(destination, tmp_path / "restored")
    assert len(await records_of((tmp_path / "restored").as_uri(), "orders")) == 16


async def test_logs_of_a_batch_are_in_a_backup_with_it_or_without_it(tmp_path: Path) -> None:
    """Nodes of one moment, then the ends of open ledgers: a batch attached in between is not in it."""
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        for log in ("a", "b"):
            await namespace.create_log(log)
        plan = await namespace.batches.begin(["a", "b"])
        assert plan is not None
        segments = []
        for log in ("a", "b"):
            async with namespace.batches.open_segment(plan, log) as segment:
                await segment.append_many([b"x"])
            assert segment.result is not None
            segments.append(segment.result)
        real = BackupSource.nodes

        async def nodes_then_attach(self: BackupSource) -> dict[str, bytes]:
            found = await real(self)
            await namespace.batches.attach(plan, segments)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BackupSource, "nodes", nodes_then_attach)
            await namespace.backup.make(destination)
        await restore(destination, tmp_path / "before")
        await namespace.backup.make(destination)
        await restore(destination, tmp_path / "after")
    for directory, count in (("before", 0), ("after", 1)):
        uri = (tmp_path / directory).as_uri()
        assert [len(await records_of(uri, log)) for log in ("a", "b")] == [count, count]


async def test_a_log_that_is_deleted_during_a_backup_is_not_in_it(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        for log in ("gone", "kept"):
            async with namespace.open_writer(log, create=True) as writer:
                await writer.append(b"x")
        real, is_done = BackupSource.nodes, False

        async def nodes_then_delete(self: BackupSource) -> dict[str, bytes]:
            nonlocal is_done
            found = await real(self)
            if not is_done:
                is_done = True
                await namespace.delete_log("gone")
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BackupSource, "nodes", nodes_then_delete)
            made = await namespace.backup.make(destination)
    assert (made.logs, made.lost_ledgers) == (1, 0)
    assert (await restore(destination, tmp_path / "restored")).logs == ("kept",)


async def test_a_segment_that_is_completed_after_the_nodes_were_read_is_complete_in_the_backup(
    tmp_path: Path,
) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        real = BackupSource.nodes
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"one")

            async def nodes_then_close(self: BackupSource) -> dict[str, bytes]:
                found = await real(self)
                await writer.append(b"two")
                await writer.aclose()
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(BackupSource, "nodes", nodes_then_close)
                await namespace.backup.make(destination)
    await restore(destination, tmp_path / "restored")
    found = await records_of((tmp_path / "restored").as_uri(), "orders")
    assert found == await records_of(source.as_uri(), "orders")
    assert [payload for _, _, payload in found] == [b"one", b"two"]


async def test_where_nodes_are_read_one_by_one_a_log_that_changes_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster: ZooKeeper reads no tree at one moment."""
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        store = namespace.context.store
        async with namespace.open_writer("shop/orders", create=True) as writer:
            await writer.append(b"one")
        async with namespace.open_writer("shop/orders") as writer:
            await writer.append(b"two")
            real, left = store.get_many, [3]

            async def get_then_complete(paths: Sequence[str]) -> dict[str, Node | None]:
                found = await real(paths)
                left[0] -= any(path.endswith("/ledgers") for path in paths)
                if left[0] == 2:  # the segment's node that the children named is gone when it is read
                    left[0] = 0
                    await writer.aclose()
                return found

            async def no_tree(path: str) -> None:
                return None

            monkeypatch.setattr(store, "read_tree", no_tree)
            monkeypatch.setattr(store, "get_many", get_then_complete)
            await namespace.backup.make(destination)
            monkeypatch.undo()
    assert left[0] < 0  # it was read again
    await restore(destination, tmp_path / "restored")
    found = await records_of((tmp_path / "restored").as_uri(), "shop/orders")
    assert found == await records_of(source.as_uri(), "shop/orders")
    assert len(found) == 2


async def test_one_log_is_restored_up_to_a_position_and_cursors_after_it_are_moved_there(
    tmp_path: Path,
) -> None:
    source, destination, restored = tmp_path / "source", tmp_path / "destination", tmp_path / "restored"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        for part in range(3):
            async with namespace.open_writer("orders", create=True) as writer:
                for number in range(3):
                    await writer.append(b"%d.%d" % (part, number))
        await namespace.create_log("other")
        await namespace.cursors("orders").set("late", dlog.DLSN(3, 0, 0))
        await namespace.cursors("orders").set("early", dlog.DLSN(1, 0, 0))
        await namespace.backup.make(destination)
    written = await records_of(source.as_uri(), "orders")
    cut = written[4][0]
    assert cut.segment_seqno == 2
    assert (await restore(destination, restored, logs=["orders"], at=cut)).logs == ("orders",)
    assert await records_of(restored.as_uri(), "orders") == written[:5]
    async with dlog.open_namespace(restored.as_uri()) as namespace:
        cursors = {each.name: each.position for each in await namespace.cursors("orders").list()}
        assert cursors == {"late": cut, "early": dlog.DLSN(1, 0, 0)}
        async with namespace.open_writer("orders") as writer:
            assert (await writer.append(b"new")).segment_seqno == 3
        assert (await namespace.repair.check("orders")).findings == ()
    with pytest.raises(BackupNotFoundError, match="from segment 1 to entry"):
        await restore(destination, tmp_path / "none", logs=["orders"], at=dlog.DLSN(9, 0, 0))
    with pytest.raises(ValueError, match="name the one log"):
        await restore(destination, tmp_path / "none", at=cut)
    assert not (tmp_path / "none").exists()


async def test_some_logs_are_restored_and_a_name_that_is_not_there_restores_nothing(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    for log in ("a", "a/b", "c"):
        await append(source, log, b"x")
    await back_up(source, destination)
    assert (await restore(destination, tmp_path / "restored", logs=["a/b"])).logs == ("a/b",)
    async with dlog.open_namespace((tmp_path / "restored").as_uri()) as namespace:
        assert await namespace.list_logs() == ["a/b"]
    with pytest.raises(BackupNotFoundError, match="no log 'd'"):
        await restore(destination, tmp_path / "none", logs=["c", "d"])
    assert not (tmp_path / "none").exists()


async def test_ids_of_restored_ledgers_are_never_given_out_again(tmp_path: Path) -> None:
    source, destination, restored = tmp_path / "source", tmp_path / "destination", tmp_path / "restored"
    for _ in range(3):
        await append(source, "orders", b"x")
    await back_up(source, destination)
    await restore(destination, restored)
    for _ in range(2):  # opened again each time: the bookie compares its ledgers with the metadata
        await append(restored, "orders", b"y")
    async with dlog.open_namespace(restored.as_uri()) as namespace:
        ids = [each.ledger_id for each in await namespace.segments("orders")]
    assert len(ids) == len(set(ids)) == 5


async def test_a_restored_directory_continues_the_backups_of_the_lost_one(tmp_path: Path) -> None:
    """Ids of ledgers that were made after the restored moment are used again, by other ledgers."""
    source, destination, restored = tmp_path / "source", tmp_path / "destination", tmp_path / "restored"
    await append(source, "orders", b"first")
    early = await back_up(source, destination)
    await append(source, "orders", b"lost")
    await back_up(source, destination)
    at = datetime.datetime.fromtimestamp(early.cut_ms / 1000, datetime.UTC)
    await restore(destination, restored, at=at)
    await append(restored, "orders", b"second")
    await back_up(restored, destination)
    await restore(destination, tmp_path / "again")
    assert [each[2] for each in await records_of((tmp_path / "again").as_uri(), "orders")] == [
        b"first",
        b"second",
    ]
    async with open_backups(destination) as backups:
        assert (await backups.verify()).is_sound


async def test_a_destination_has_the_backups_of_one_namespace(tmp_path: Path) -> None:
    destination = tmp_path / "destination"
    await append(tmp_path / "one", "orders", b"x")
    await append(tmp_path / "two", "orders", b"y")
    await back_up(tmp_path / "one", destination)
    before = sorted(destination.rglob("*"))
    with pytest.raises(BackupError, match="another namespace"):
        await back_up(tmp_path / "two", destination)
    assert sorted(destination.rglob("*")) == before


async def test_what_a_manifest_names_is_durable_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_put, real_settle = DirectoryDestination.put, DirectoryDestination.settle

    def put(self: DirectoryDestination, name: str, data: bytes) -> None:
        calls.append(name.partition("/")[0])
        real_put(self, name, data)

    def settle(self: DirectoryDestination) -> None:
        calls.append("settle")
        real_settle(self)

    monkeypatch.setattr(DirectoryDestination, "put", put)
    monkeypatch.setattr(DirectoryDestination, "settle", settle)
    await append(tmp_path / "source", "orders", b"x")
    await back_up(tmp_path / "source", tmp_path / "destination")
    assert calls[-4:] == ["ledgers", "settle", "manifests", "settle"]


async def test_two_processes_do_not_write_to_one_destination(tmp_path: Path) -> None:
    await append(tmp_path / "source", "orders", b"x")
    await back_up(tmp_path / "source", tmp_path / "destination")
    other = DirectoryDestination(tmp_path / "destination")
    other.begin(create=False)
    try:
        with pytest.raises(BackupInUseError, match="process"):
            await back_up(tmp_path / "source", tmp_path / "destination")
        async with open_backups(tmp_path / "destination") as backups:
            with pytest.raises(BackupInUseError):
                await backups.prune(1)
    finally:
        other.end()


async def test_a_restore_never_writes_over_what_exists(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"x")
    await back_up(source, destination)
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes").write_text("mine")
    foreign = tmp_path / "new.restoring"
    foreign.mkdir()
    (foreign / "notes").write_text("mine")
    for target in (full, tmp_path / "new", full / "notes"):
        with pytest.raises(RestoreTargetError):
            await restore(destination, target)
    assert (full / "notes").read_text() == (foreign / "notes").read_text() == "mine"
    empty = tmp_path / "empty"
    empty.mkdir()
    await restore(destination, empty)
    assert len(await records_of(empty.as_uri(), "orders")) == 1


async def test_an_interrupted_restore_leaves_no_directory_and_is_repeated(tmp_path: Path) -> None:
    source, destination, target = tmp_path / "source", tmp_path / "destination", tmp_path / "target"
    await append(source, "orders", b"x")
    await back_up(source, destination)

    async def die(*_: object) -> None:
        raise DiedError

    def die_at_once(*_: object) -> None:
        raise DiedError

    steps: list[tuple[object, str, Callable[..., object]]] = [
        (restoring, "_write_metadata", die),
        (restoring._Entries, "_add", die),
        (restoring, "_complete", die),
        (restoring, "_rename", die_at_once),
    ]
    for where, name, fail in steps:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, name, fail)
            with pytest.raises((DiedError, BaseExceptionGroup)) as caught:
                await restore(destination, target)
        assert DiedError in [type(each) for each in errors_in(caught.value)]
        assert not target.exists()
        assert "was not finished" in (tmp_path / "target.restoring" / restoring.MARK).read_text()
    await restore(destination, target)
    assert not (tmp_path / "target.restoring").exists()
    assert len(await records_of(target.as_uri(), "orders")) == 1


async def damaged(destination: Path) -> list[tuple[str, str | None]]:
    async with open_backups(destination) as backups:
        found = await backups.verify()
    return [(each.object_name, each.log) for each in found.problems]


async def test_verify_names_each_object_that_is_damaged_and_a_deleted_chunk_is_sent_again(
    tmp_path: Path,
) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"x" * 100)
    await append(source, "payments", b"y" * 100)
    await back_up(source, destination)
    assert await damaged(destination) == []
    chunk = next((destination / "ledgers" / "1").iterdir())
    data = bytearray(chunk.read_bytes())
    data[ENTRY_HEADER_BYTES + 40] ^= 1
    chunk.write_bytes(data)
    name = str(chunk.relative_to(destination))
    assert await damaged(destination) == [(name, "payments")]
    with pytest.raises(BackupDamagedError, match="SHA-256"):
        await restore(destination, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    chunk.unlink()
    assert await damaged(destination) == [(name, "payments")]
    await back_up(source, destination)
    assert await damaged(destination) == []
    manifest = sorted((destination / "manifests").iterdir())[-1]
    manifest.write_bytes(manifest.read_bytes()[:-1])
    assert await damaged(destination) == [(f"manifests/{manifest.name}", None)]
    await back_up(source, destination)  # by the manifest before
    assert await damaged(destination) == [(f"manifests/{manifest.name}", None)]


async def test_entries_that_the_namespace_lost_are_gaps_of_the_restored_log(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            for number in range(3):
                await writer.append(b"%d" % number)
        real = EntrySource.read

        async def without_the_second(
            self: EntrySource, first: int, last: int, size_bytes_max: int
        ) -> list[bytes]:
            if first == 1:
                return []
            return await real(self, first, 0 if first == 0 else last, size_bytes_max)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EntrySource, "read", without_the_second)
            made = await namespace.backup.make(destination)
    assert (made.missing_entries, made.is_whole) == (1, False)
    assert await damaged(destination) == []
    assert (await restore(destination, tmp_path / "restored")).missing_entries == 1
    async with (
        dlog.open_namespace((tmp_path / "restored").as_uri(), read_only=True) as namespace,
        namespace.open_reader("orders", follow=False, gaps=True) as reader,
    ):
        kinds = [
            "gap" if isinstance(each, dlog.Gap) else [record.payload for record in each]
            async for each in reader.batches(gaps=True)
        ]
    assert "gap" in kinds


async def test_prune_keeps_the_newest_and_deletes_the_chunks_that_no_backup_names(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        for log in ("a", "b"):
            async with namespace.open_writer(log, create=True) as writer:
                await writer.append(b"x")
            await namespace.backup.make(destination)
        await namespace.delete_log("a")
        await namespace.backup.make(destination)
    async with open_backups(destination) as backups:
        pruned = await backups.prune(1)
        assert (pruned.manifests, pruned.chunks) == (2, 1)
        assert await backups.logs() == ["b"]
        assert (await backups.verify()).is_sound
        with pytest.raises(ValueError, match="positive"):
            await backups.prune(0)


async def test_a_backup_of_a_time_before_the_first_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(BackupNotFoundError, match="no backup is there"):
        await restore(tmp_path / "none", tmp_path / "restored")
    await append(tmp_path / "source", "orders", b"x")
    await back_up(tmp_path / "source", tmp_path / "destination")
    with pytest.raises(BackupNotFoundError, match="the first backup is of"):
        await restore(
            tmp_path / "destination",
            tmp_path / "restored",
            at=datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
        )
    with pytest.raises(ValueError, match="no time zone"):
        await restore(tmp_path / "destination", tmp_path / "restored", at=datetime.datetime(2000, 1, 1))
    assert not (tmp_path / "restored").exists()


async def test_a_backup_needs_the_right_to_administer_all_logs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    async with dlog.open_namespace(source.as_uri(), config=NamespaceConfig(principal="boss")) as namespace:
        await namespace.policy.set(
            Policy((Rule("boss", "*", frozenset(Right)), Rule("me", "*", frozenset([Right.READ]))))
        )
    async with dlog.open_namespace(source.as_uri(), config=NamespaceConfig(principal="me")) as namespace:
        with pytest.raises(dlog.AccessDeniedError):
            await namespace.backup.make(tmp_path / "destination")
    assert not (tmp_path / "destination").exists()


async def test_a_backup_that_is_killed_at_any_write_leaves_the_earlier_ones_whole(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"first")
    await back_up(source, destination)
    await append(source, "orders", b"second")
    await append(source, "payments", b"third")
    step, is_killed = 0, True
    while is_killed:
        step += 1
        is_killed = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dlog.backup.destination.os", DyingSystem(step))
            try:
                await back_up(source, destination)
            except BaseException as exc:
                is_killed = True
                if not any(isinstance(each, DiedError) for each in errors_in(exc)):
                    raise
        async with open_backups(destination) as backups:
            assert (await backups.verify()).is_sound, step
    assert step > 10
    await restore(destination, tmp_path / "restored")
    assert [each[2] for each in await records_of((tmp_path / "restored").as_uri(), "orders")] == [
        b"first",
        b"second",
    ]


async def test_blobs_are_in_a_backup_and_come_back_whole(tmp_path: Path) -> None:
    source, destination, restored = tmp_path / "source", tmp_path / "destination", tmp_path / "restored"
    content = bytes(range(256)) * 3_000
    await append(source, "orders", b"one")
    async with dlog.open_namespace(source.as_uri()) as namespace:
        put = await namespace.blobs.put("a/b", content, content_type="text/plain")
        await namespace.blobs.put("gone", b"x")
        await namespace.blobs.delete("gone")
        async with namespace.blobs.open_writer("unfinished") as writer:
            await writer.write(content)
            made = await namespace.backup.make(destination)
            writer.give_up()
        assert (made.ledgers, made.is_whole) == (2, True)
    async with open_backups(destination) as backups:
        assert (await backups.verify()).problems == ()
        some = await backups.restore(tmp_path / "some", logs=["orders"])
    assert some.logs == ("orders",)
    await restore(destination, restored)
    for uri in (restored.as_uri(), f"backup:{destination}"):
        async with dlog.open_namespace(uri, read_only=True) as namespace:
            assert await namespace.blobs.list() == [put]
            assert await namespace.blobs.get("a/b") == content
            assert await namespace.blobs.get("a/b", start=300_000, end=300_010) == content[300_000:300_010]
    async with dlog.open_namespace(restored.as_uri()) as namespace:
        assert await namespace.repair.find_orphans(older_than=datetime.timedelta()) == []
        await namespace.blobs.put("a/b", b"new", replace=True)
        assert await namespace.blobs.get("a/b") == b"new"
    async with dlog.open_namespace((tmp_path / "some").as_uri()) as namespace:
        assert await namespace.blobs.list() == []
        assert await namespace.repair.find_orphans(older_than=datetime.timedelta()) == []
