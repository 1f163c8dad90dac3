"""Space of deleted logs in a directory: given back, if the metadata may say that they are deleted."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import dlog
from bookie.bound_metadata import ACCEPT
from dlog.embedded import NAMESPACE_PATH, EmbeddedStack, open_embedded_stack
from dlog.embedded_garbage import AFTER_DELETION_S
from dlog.namespace_handle import Namespace
from namespace import logs
from namespace.segment import TruncationStatus

MIB = 1 << 20


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Namespace, EmbeddedStack]]:
    """What ``dlog.open_namespace`` opens, with its parts in hand."""
    config = dlog.NamespaceConfig().for_scheme("file")
    async with open_embedded_stack(path) as stack:
        yield (
            Namespace(path.as_uri(), stack.store, stack.client, NAMESPACE_PATH, config, client_id="me"),
            stack,
        )


async def fill(namespace: Namespace, log: str, mib: int) -> list[dlog.DLSN]:
    """A segment for each MiB."""
    dlsns = []
    for _ in range(mib):
        async with namespace.open_writer(log, create=True) as writer:
            dlsns += await writer.append_many([os.urandom(MIB // 2) for _ in range(2)])
    return dlsns


async def count_in(namespace: Namespace, log: str) -> int:
    async with namespace.open_reader(log, follow=False) as reader:
        return len([record async for record in reader])


def entry_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in (path / "bookie" / "current").glob("*.log"))


async def collect(stack: EmbeddedStack) -> tuple[int, ...]:
    """The ledgers that a round deletes."""
    assert stack.hosting.garbage is not None, "this process collects garbage"
    return (await stack.hosting.garbage.collect()).ledger_ids


def copy_metadata(path: Path, to: Path) -> None:
    """While nobody has it open."""
    shutil.copy(path / "metadata.sqlite", to)


def put_metadata(path: Path, backup: Path | None) -> None:
    for name in ("metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm"):
        (path / name).unlink(missing_ok=True)
    if backup is not None:
        shutil.copy(backup, path / "metadata.sqlite")


async def test_a_deleted_log_gives_its_space_back_beside_one_that_stays(tmp_path: Path) -> None:
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


async def test_segments_deleted_from_the_beginning_of_a_log_give_their_space_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (namespace, _):
        dlsns = await fill(namespace, "log", 8)
    async with opened(tmp_path) as (namespace, stack):
        assert entry_bytes(tmp_path) > 8 * MIB
        async with namespace.open_writer("log") as writer:
            await writer.truncate(dlsns[-2])
        listed = await logs.list_segments(stack.store, NAMESPACE_PATH, "log")
        given_up = [each for each in listed.segments if each.truncation is TruncationStatus.TRUNCATED]
        for segment in given_up:
            await stack.client.delete(segment.ledger_id)
            await logs.delete_segment(stack.store, NAMESPACE_PATH, "log", segment)
        assert await collect(stack) == tuple(segment.ledger_id for segment in given_up)
        assert len(given_up) == 7
        assert entry_bytes(tmp_path) < 3 * MIB
        assert await count_in(namespace, "log") == 2


async def test_what_was_deleted_just_before_closing_is_collected_by_closing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (namespace, _):
        await fill(namespace, "log", 2)
    assert entry_bytes(tmp_path) > 2 * MIB
    async with dlog.open_namespace(tmp_path.as_uri()) as public:
        await public.delete_log("log")
    assert entry_bytes(tmp_path) == 0


async def test_a_round_follows_a_deletion_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as (namespace, _):
        await fill(namespace, "log", 2)
    monkeypatch.setattr("dlog.embedded_garbage.AFTER_DELETION_S", AFTER_DELETION_S / 1000)
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
        await namespace.delete_log("log")
        with trio.fail_after(30):
            await done.wait()
        assert entry_bytes(tmp_path) == 0


async def test_wiped_metadata_deletes_nothing_and_the_right_ones_put_back_find_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, backup = tmp_path / "log", tmp_path / "backup"
    async with opened(path) as (namespace, _):
        await fill(namespace, "log", 3)
    copy_metadata(path, backup)
    put_metadata(path, None)
    for _ in range(2):
        caplog.clear()
        async with opened(path) as (namespace, stack):
            assert stack.hosting.garbage is None
            assert "not the one this bookie was bound to" in caplog.text
            assert ACCEPT in caplog.text, "the remedy"
            await fill(namespace, "other", 2)  # goes on, and writes over nothing
            await namespace.delete_log("other")
    assert entry_bytes(path) > 5 * MIB
    put_metadata(path, backup)
    async with opened(path) as (namespace, _):
        assert await count_in(namespace, "log") == 6


async def test_an_older_metadata_file_put_back_deletes_nothing_however_long_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, older, newest = tmp_path / "log", tmp_path / "older", tmp_path / "newest"
    async with opened(path) as (namespace, _):
        await fill(namespace, "old", 1)
    copy_metadata(path, older)
    async with opened(path) as (namespace, _):
        await fill(namespace, "new", 3)
    copy_metadata(path, newest)
    put_metadata(path, older)
    for _ in range(3):
        caplog.clear()
        async with opened(path) as (namespace, stack):
            assert await count_in(namespace, "old") == 2
            assert stack.hosting.garbage is None
            assert ACCEPT in caplog.text, "the remedy"
            await fill(namespace, "later", 2)  # draws the ids that the older file has not given out
    put_metadata(path, newest)
    async with opened(path) as (namespace, _):
        assert await count_in(namespace, "new") == 6


async def test_who_accepts_other_metadata_gets_the_space_of_what_they_do_not_name(tmp_path: Path) -> None:
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


async def test_metadata_replaced_while_they_are_open_delete_nothing(tmp_path: Path) -> None:
    path, backup = tmp_path / "log", tmp_path / "backup"
    async with opened(path) as (namespace, _):
        await fill(namespace, "log", 1)
    copy_metadata(path, backup)
    async with opened(path) as (namespace, stack):
        await fill(namespace, "gone", 1)
        await namespace.delete_log("gone")
        shutil.copy(backup, path / "copy")
        (path / "copy").replace(path / "metadata.sqlite")
        with pytest.raises(Exception, match="No ledger is deleted"):
            await collect(stack)


async def test_the_host_collects_what_another_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path) as (namespace, first):
        await fill(namespace, "log", 2)
        assert first.hosting.garbage is not None
        async with opened(tmp_path) as (other, second):
            assert second.hosting.garbage is None, "one process hosts"
            await other.delete_log("log")
        assert len(await collect(first)) >= 2
        assert await namespace.list_logs() == []
