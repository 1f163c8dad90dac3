"""The space of deleted logs in a directory is freed, but only with the metadata the bookie is bound to."""

# covers: bookie/embedded/garbage.py

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import cast

import attrs
import pytest
import trio
from trio.testing import MockClock

import dlog
from bookie.embedded.bound_metadata import ACCEPT, BoundMetadata
from bookie.embedded.garbage import (
    AFTER_DELETION_S,
    FIRST_ROUND_S,
    FULL_INTERVAL_S,
    EmbeddedGarbage,
    compaction_for,
    entry_log_bytes_for,
)
from bookie.embedded.host import HostedBookie
from bookie.gc.collector import GarbageCollector, GcRoundResult
from bookie.gc.compaction_rules import CompactionConfig
from bookie.gc.log_collector import LogStats
from dlog.connect import prepare_embedded_namespace
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.deploy.embedded import EmbeddedStack, open_embedded_stack
from ledger.digest import DigestType

pytestmark = pytest.mark.slow

MIB = 1 << 20


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Namespace, EmbeddedStack]]:
    """A namespace as ``dlog.open_namespace`` opens it, with its parts."""
    config = dlog.NamespaceConfig().for_scheme("file")
    async with open_embedded_stack(path) as stack:
        node = await prepare_embedded_namespace(stack.store)
        yield (
            Namespace(
                NamespaceContext(path.as_uri(), stack.store, stack.client, node, config, client_id="me")
            ),
            stack,
        )


async def fill(namespace: Namespace, log: str, mib: int) -> list[dlog.DLSN]:
    """Write one segment for each MiB."""
    dlsns = []
    for _ in range(mib):
        async with namespace.open_writer(log, create=True) as writer:
            dlsns += await writer.append_many([os.urandom(MIB // 2) for _ in range(2)])
    return dlsns


async def count_in(namespace: Namespace, log: str) -> int:
    async with namespace.open_reader(log, follow=False) as reader:
        return len([record async for record in reader])


def bytes_below(path: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}


def entry_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in (path / "bookie" / "current").glob("*.log"))


async def collect(stack: EmbeddedStack) -> tuple[int, ...]:
    """Run a collection; return the ledgers that it deletes."""
    garbage = stack.hosting.garbage
    assert isinstance(garbage, EmbeddedGarbage), "this process must host the bookie"
    return (await garbage.collect()).ledger_ids


def copy_metadata(path: Path, to: Path) -> None:
    """Copy the metadata. No process has it open."""
    shutil.copy(path / "metadata.sqlite", to)


def put_metadata(path: Path, backup: Path | None) -> None:
    for name in ("metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm"):
        (path / name).unlink(missing_ok=True)
    if backup is not None:
        shutil.copy(backup, path / "metadata.sqlite")


async def test_the_space_of_a_deleted_log_is_freed_and_another_log_stays(tmp_path: Path) -> None:
    async with opened(tmp_path) as (namespace, _):
        await fill(namespace, "gone", 6)
        await fill(namespace, "kept", 2)
    async with opened(tmp_path) as (namespace, stack):
        before = entry_bytes(tmp_path)
        assert before > 8 * MIB
        await namespace.delete_log("gone")
        assert len(await collect(stack)) >= 6
        assert entry_bytes(tmp_path) < 3 * MIB
        assert await count_in(namespace, "kept") == 4
        assert await collect(stack) == ()
    async with opened(tmp_path) as (namespace, _):
        assert await count_in(namespace, "kept") == 4


async def test_the_space_of_truncated_segments_is_freed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (namespace, _):
        dlsns = await fill(namespace, "log", 8)
    async with opened(tmp_path) as (namespace, stack):
        assert entry_bytes(tmp_path) > 8 * MIB
        ledgers = {each.ledger_id for each in await namespace.segments("log")}
        async with namespace.open_writer("log") as writer:
            await writer.truncate(dlsns[-2])
        purged = ledgers - {each.ledger_id for each in await namespace.segments("log")}
        assert await collect(stack) == tuple(sorted(purged))
        assert len(purged) == 7
        assert entry_bytes(tmp_path) < 3 * MIB
        assert await count_in(namespace, "log") == 2


async def test_closing_collects_a_log_deleted_just_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as (namespace, _):
        await fill(namespace, "log", 2)
    assert entry_bytes(tmp_path) > 2 * MIB
    async with dlog.open_namespace(tmp_path.as_uri()) as public:
        await public.delete_log("log")
    assert entry_bytes(tmp_path) == 0


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_collection_follows_a_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """On a full disk at once: who deletes waits for the space."""
    async with opened(tmp_path) as (namespace, _):
        await fill(namespace, "log", 2)
    after_s = math.inf if is_full else AFTER_DELETION_S / 1000
    monkeypatch.setattr("bookie.embedded.garbage.AFTER_DELETION_S", after_s)
    async with opened(tmp_path) as (namespace, stack):
        garbage = stack.hosting.garbage
        assert garbage is not None
        done = trio.Event()
        collect = garbage.collect

        async def watched() -> object:
            try:
                return await collect()
            finally:
                done.set()

        monkeypatch.setattr(garbage, "collect", watched)
        monkeypatch.setattr(garbage, "_is_full", lambda: is_full)
        await namespace.delete_log("log")
        with trio.fail_after(30):
            await done.wait()
        assert entry_bytes(tmp_path) == 0


@attrs.define
class Rounds:
    """In place of a collector: counts the rounds."""

    count: int = 0

    def force(self, *, minor: bool) -> None:
        assert minor

    async def run_round(self) -> None:
        self.count += 1


@pytest.mark.parametrize("is_full", [False, True])
async def test_on_a_full_disk_rounds_come_often_for_what_other_processes_delete(
    autojump_clock: MockClock, is_full: bool
) -> None:
    rounds = Rounds()
    garbage = EmbeddedGarbage(
        cast(GarbageCollector, rounds), Path("d"), cast(BoundMetadata, None), lambda: is_full
    )
    with trio.move_on_after(FIRST_ROUND_S + 1):
        await garbage.run()
    assert rounds.count == (FIRST_ROUND_S // FULL_INTERVAL_S if is_full else 1)


class KeptLogs:
    """A collector with a log that must be kept; each round rewrites it all the same."""

    def __init__(self, *dead_bytes: int) -> None:
        self.config, self.stats = compaction_for(MIB), LogStats(total_bytes=10 * MIB)
        self.collectors, self._dead_bytes = [self], list(dead_bytes)
        self.rounds = 0

    def use(self, config: CompactionConfig) -> None:
        self.config = config

    def force(self, *, major: bool) -> None:
        assert major
        assert self.config.major_threshold == 1.0

    async def run_round(self) -> GcRoundResult:
        self.rounds += 1
        self.stats.compacted_logs += 1
        self.stats.live_bytes = self.stats.total_bytes - self._dead_bytes.pop(0)
        return GcRoundResult((), ())


@pytest.mark.parametrize(("dead_bytes", "rounds"), [((0, 0), 1), ((7, 0), 2), ((7, 7, 7), 2), ((7, 9, 9), 2)])
async def test_a_compaction_ends_when_a_round_leaves_as_much_as_the_last_one(
    dead_bytes: tuple[int, ...], rounds: int
) -> None:
    logs = KeptLogs(*dead_bytes)
    before = logs.config
    garbage = EmbeddedGarbage(cast(GarbageCollector, logs), Path("d"), cast(BoundMetadata, None))
    counts: list[int] = []
    assert await garbage.compact(counts.append) == dead_bytes[rounds - 1]
    assert (logs.rounds, counts, logs.config) == (rounds, [1] * rounds, before)


def test_a_disk_of_any_size_has_many_entry_logs_and_a_reserve_for_the_live_part_of_one() -> None:
    for total_bytes in (16 * MIB, 64 * MIB, 1 << 30, 1 << 34, 1 << 44):
        log_bytes = entry_log_bytes_for(total_bytes)
        assert MIB <= log_bytes <= min(64 * MIB, total_bytes // 16)
        assert compaction_for(log_bytes).reserve_bytes > log_bytes


@pytest.mark.parametrize("loss", ["deleted", "emptied", "without its WAL", "wiped"])
async def test_a_directory_whose_metadata_is_lost_is_refused_until_it_is_back(
    tmp_path: Path, loss: str
) -> None:
    path, backup = tmp_path / "log", tmp_path / "backup"
    async with opened(path) as (namespace, _):
        await fill(namespace, "log", 3)
    copy_metadata(path, backup)
    put_metadata(path, None)
    if loss == "emptied":
        (path / "metadata.sqlite").touch(0o600)
    elif loss == "without its WAL":  # all that a killed process has written is there
        with closing(sqlite3.connect(path / "metadata.sqlite")) as database:
            database.execute("PRAGMA journal_mode = WAL")
    elif loss == "wiped":
        async with dlog.open_namespace(f"file://{tmp_path / 'other'}") as other:
            await other.create_log("x")
        copy_metadata(tmp_path / "other", path)
    before = bytes_below(path)
    for read_only in (False, True, False):
        with pytest.raises(
            (dlog.EmbeddedStoreError, dlog.LogMetadataError), match=r"ogs would be missing|was used"
        ):
            async with dlog.open_namespace(f"file://{path}", read_only=read_only):
                pass
    if loss in ("deleted", "emptied"):
        assert bytes_below(path) == before, "nothing was written"
    put_metadata(path, backup)
    async with opened(path) as (namespace, _):
        assert await count_in(namespace, "log") == 6


@pytest.mark.parametrize("has_copy", [True, False])
async def test_with_an_older_metadata_file_nothing_is_opened(tmp_path: Path, has_copy: bool) -> None:
    path, older, newest = tmp_path / "log", tmp_path / "older", tmp_path / "newest"
    async with opened(path) as (namespace, _):
        await fill(namespace, "old", 1)
    copy_metadata(path, older)
    async with opened(path) as (namespace, _):
        await fill(namespace, "new", 3)
    copy_metadata(path, newest)
    put_metadata(path, older)
    for read_only in (False, True, False):
        if not has_copy:
            (path / "metadata.copy").unlink(missing_ok=True)
        with pytest.raises((dlog.EmbeddedStoreError, dlog.LogMetadataError), match="Logs would be missing"):
            async with dlog.open_namespace(f"file://{path}", read_only=read_only):
                pass
    put_metadata(path, newest)
    async with opened(path) as (namespace, _):
        assert await count_in(namespace, "new") == 6


@pytest.mark.parametrize("change", ["delete", "create", "truncate", "cursor"])
async def test_nor_with_an_older_one_that_knows_every_ledger(tmp_path: Path, change: str) -> None:
    path, older, newest = tmp_path / "log", tmp_path / "older", tmp_path / "newest"
    async with opened(path) as (namespace, _):
        await fill(namespace, "first", 1)
        await fill(namespace, "second", 3)
    copy_metadata(path, older)
    shutil.copy(path / "metadata.copy", tmp_path / "older.copy")
    async with opened(path) as (namespace, _):
        match change:
            case "delete":
                await namespace.delete_log("first")
            case "create":
                await namespace.create_log("third")
            case "truncate":
                await namespace.truncate_log("second", dlog.DLSN(2, 0, 0))
            case _:
                await namespace.cursors("second").set("reader", dlog.DLSN(1, 0, 0))
        before = await namespace.list_logs()
    copy_metadata(path, newest)
    shutil.copy(path / "metadata.copy", tmp_path / "newest.copy")
    put_metadata(path, older)
    shutil.copy(tmp_path / "older.copy", path / "metadata.copy")
    for read_only in (False, True, False):
        with pytest.raises((dlog.EmbeddedStoreError, dlog.LogMetadataError), match="Logs would be missing"):
            async with dlog.open_namespace(f"file://{path}", read_only=read_only):
                pass
    put_metadata(path, newest)
    shutil.copy(tmp_path / "newest.copy", path / "metadata.copy")
    async with opened(path) as (namespace, _):
        assert await namespace.list_logs() == before


async def test_accepted_metadata_frees_the_space_of_ledgers_that_it_does_not_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as (namespace, _):
        await fill(namespace, "lost", 3)
    put_metadata(tmp_path, None)
    (tmp_path / "bookie" / "current" / ACCEPT).touch()
    async with opened(tmp_path) as (namespace, stack):
        await fill(namespace, "kept", 1)
        assert len(await collect(stack)) >= 3
        assert await count_in(namespace, "kept") == 2
    assert not (tmp_path / "bookie" / "current" / ACCEPT).exists()
    async with opened(tmp_path) as (namespace, stack):
        assert await collect(stack) == ()
        assert await count_in(namespace, "kept") == 2


async def test_with_metadata_replaced_while_open_nothing_is_deleted(tmp_path: Path) -> None:
    path, backup = tmp_path / "log", tmp_path / "backup"
    async with opened(path) as (namespace, _):
        await fill(namespace, "log", 1)
    copy_metadata(path, backup)
    async with opened(path) as (namespace, stack):
        await fill(namespace, "gone", 1)
        await namespace.delete_log("gone")
        shutil.copy(backup, path / "copy")
        (path / "copy").replace(path / "metadata.sqlite")
        with pytest.raises(Exception, match="another file replaced it"):
            await collect(stack)


async def test_the_host_collects_a_log_that_another_namespace_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as (namespace, first):
        await fill(namespace, "log", 2)
        assert first.hosting.garbage is not None
        async with opened(tmp_path) as (other, second):
            assert second.hosting.garbage is None, "only one namespace hosts the bookie"
            await other.delete_log("log")
        assert len(await collect(first)) >= 2
        assert await namespace.list_logs() == []


async def test_only_the_bound_metadata_say_which_digest_a_ledger_has(tmp_path: Path) -> None:
    """With other metadata, sound entries would look damaged, and could be replaced."""
    path, backup = tmp_path / "log", tmp_path / "backup"

    async def digest_types(stack: EmbeddedStack) -> set[DigestType | None]:
        assert isinstance(stack.hosting._hosted, HostedBookie)
        service = stack.hosting._hosted.bookie.service
        assert service.digest_type_of is not None
        return {await service.digest_type_of(ledger_id) for ledger_id in service.storage.ledger_ids()}

    async with opened(path) as (namespace, stack):
        await fill(namespace, "log", 1)
        assert await digest_types(stack) == {DigestType.CRC32C}
    copy_metadata(path, backup)
    async with opened(path) as (namespace, stack):
        assert await count_in(namespace, "log") == 2
        assert await digest_types(stack) == {DigestType.CRC32C}
        shutil.copy(backup, path / "copy")
        (path / "copy").replace(path / "metadata.sqlite")
        assert await digest_types(stack) == {None}
