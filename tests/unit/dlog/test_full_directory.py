"""A directory whose disk is full: its records are read, each call says why it fails, and it goes on later."""

# covers: bookie/embedded/space.py

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

import dlog
import dlog.aio
import dlog.blocking
from bookie.bookie import Bookie, open_bookie
from bookie.embedded import host
from bookie.embedded.space import Space
from bookie.gc.compaction_rules import CompactionConfig
from dlog.errors import WriterDiskFullError
from ledger.metadata_store.sqlite_store.reserve import LOAN_BYTES, RESERVE_BYTES, SpaceReserve
from tests.fakes.small_disk import SmallDirectory, SmallDisk, small_directory

pytestmark = pytest.mark.mounts
MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDirectory]:
    with small_directory(tmp_path / "disk", 64 * MIB) as made:
        yield made


def uri_of(small: SmallDirectory) -> str:
    return f"file://{small.path}/ns"


def payload(number: int) -> bytes:
    return b"%08d" % number * 2500


def check_says_why(error: BaseException, small: SmallDirectory) -> None:
    assert isinstance(error, dlog.DiskFullError)
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.errno == errno.ENOSPC
    assert "disk is full" in str(error)
    assert "kept" in str(error)
    assert str(small.path) in str(error)


async def read_all(namespace: dlog.Namespace, log: str) -> list[bytes]:
    async with namespace.open_reader(log, follow=False) as reader:
        return [bytes(record.payload) async for record in reader]


async def write_two_logs(namespace: dlog.Namespace) -> None:
    for log in ("a", "b"):
        async with namespace.open_writer(log, create=True) as writer:
            await writer.append_many(map(payload, range(100)))


async def append_until_full(writer: dlog.LogWriter, start: int = 0) -> tuple[int, WriterDiskFullError]:
    """The number of records that the log has then, and the error of the last append."""
    count = start

    async def append() -> None:
        nonlocal count
        while count < 10_000:
            await writer.append(payload(count))
            count += 1

    with pytest.raises(WriterDiskFullError) as caught:
        await append()
    assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN
    return count, caught.value


async def reopened(writer: dlog.LogWriter, number: int) -> None:
    """Append one record as soon as the namespace takes it."""
    with trio.fail_after(30):
        while True:
            try:
                await writer.reopen()
                await writer.append(payload(number))
            except dlog.DiskFullError:
                await trio.sleep(0.05)  # the next look at the disk comes by itself
            else:
                return


@pytest.mark.slow
async def test_a_writer_says_that_the_disk_is_full_and_goes_on_when_there_is_space(
    small: SmallDirectory,
) -> None:
    async with dlog.open_namespace(uri_of(small)) as namespace:
        async with namespace.open_writer("a", create=True) as writer:
            await writer.append(payload(0))
            small.fill(10 * MIB)
            count, error = await append_until_full(writer, 1)
            check_says_why(error, small)
            small.fill()
            for call in (lambda: writer.append(b"x"), lambda: writer.append_many([b"x"]), writer.flush):
                with pytest.raises(dlog.DiskFullError) as caught:
                    await call()
                check_says_why(caught.value, small)
            assert await read_all(namespace, "a") == [payload(number) for number in range(count)]
            await writer.reopen()  # takes the lock, and no space for records
            with pytest.raises(dlog.DiskFullError) as caught:
                await writer.append(b"x")
            check_says_why(caught.value, small)
            small.free()
            await reopened(writer, count)
        assert await read_all(namespace, "a") == [payload(number) for number in range(count + 1)]


@pytest.mark.slow
async def test_tries_on_a_full_disk_leave_the_reserve_to_deletions(small: SmallDirectory) -> None:
    async with dlog.open_namespace(uri_of(small)) as namespace:
        await write_two_logs(namespace)
        async with namespace.open_writer("c", create=True) as writer:
            small.fill(6 * MIB)
            count, _ = await append_until_full(writer)
            wal = small.path / "ns/metadata.sqlite-wal"
            before = wal.stat().st_size
            for number in range(40):
                if number == 20:  # until then there is what the bookie's reserve gave
                    small.fill()
                with trio.fail_after(30):
                    with suppress(dlog.DiskFullError):
                        await writer.reopen()
                    with pytest.raises(dlog.DiskFullError):
                        await writer.append(b"x")
            assert wal.stat().st_size < before + LOAN_BYTES, "it takes nothing of what a reserve gave"
            created: list[str] = []

            async def create() -> None:
                while len(created) < 1000:
                    await namespace.create_log(f"new-{len(created)}")
                    created.append(f"new-{len(created)}")

            with pytest.raises(dlog.DiskFullError) as caught:
                await create()
            check_says_why(caught.value, small)
            with trio.fail_after(30):
                await namespace.truncate_log("b", dlog.DLSN(1, 1, 0))
                for log in ("a", *created):
                    await namespace.delete_log(log)
            small.free()
            await reopened(writer, count)
        assert await read_all(namespace, "c") == [payload(number) for number in range(count + 1)]


@pytest.mark.slow
async def test_a_full_directory_opens_for_all_but_appends_as_often_as_it_must(small: SmallDirectory) -> None:
    async with dlog.open_namespace(uri_of(small)) as namespace:
        await write_two_logs(namespace)
        async with namespace.open_writer("c", create=True) as writer:
            small.fill(6 * MIB)
            count, _ = await append_until_full(writer)
    small.fill()
    for _ in range(20):
        async with dlog.open_namespace(uri_of(small)) as namespace:
            assert await read_all(namespace, "c") == [payload(number) for number in range(count)]
        assert small.free_bytes() < MIB, "what was free at the end is kept for the next opening"
        small.fill()
    async with dlog.open_namespace(uri_of(small)) as namespace:
        await namespace.truncate_log("b", dlog.DLSN(1, 1, 0))
        await namespace.delete_log("a")
        with pytest.raises(dlog.DiskFullError) as caught:
            async with namespace.open_writer("b") as writer:
                await writer.append(b"x")
        check_says_why(caught.value, small)
    small.free()
    async with dlog.open_namespace(uri_of(small)) as namespace:
        async with namespace.open_writer("c") as writer:
            await writer.append(payload(count))
        assert await read_all(namespace, "c") == [payload(number) for number in range(count + 1)]
    sizes = [path.stat().st_size for path in (small.path / "ns").rglob("*") if path.is_file()]
    fresh = small.path.with_name("fresh")
    async with dlog.open_namespace(f"file://{fresh}") as namespace:
        async with namespace.open_writer("b", create=True) as writer:
            await writer.append_many(map(payload, range(100)))
        async with namespace.open_writer("c", create=True) as writer:
            await writer.append_many(map(payload, range(count + 1)))
    assert sum(sizes) <= 1.3 * sum(path.stat().st_size for path in fresh.rglob("*") if path.is_file())


async def fill_in_turns(writers: Sequence[dlog.LogWriter], counts: list[int]) -> None:
    """Append to one log after the other, so that their entries lie beside each other, until it fails."""

    async def append() -> None:
        while sum(counts) < 20_000:
            for at, writer in enumerate(writers):
                await writer.append(payload(counts[at]))
                counts[at] += 1

    with pytest.raises(WriterDiskFullError) as caught:
        await append()
    assert caught.value.outcome is dlog.RecordOutcome.NOT_WRITTEN


@pytest.mark.slow
async def test_on_a_disk_that_dlog_alone_has_filled_a_deleted_log_gives_its_space_to_others(
    small: SmallDirectory,
) -> None:
    """Its entries lie beside living ones. Again and again: no round may use up what the next one needs."""
    async with (
        dlog.open_namespace(uri_of(small)) as namespace,
        namespace.open_writer("kept", create=True) as kept,
    ):
        count = 0
        for turn in range(3):
            counts = [count, 0]
            with suppress(WriterDiskFullError):  # once more when the writer is closed
                async with namespace.open_writer("gone", create=True) as gone:
                    await fill_in_turns([kept, gone], counts)
            # How many depends on when the first of them comes: compaction goes on meanwhile.
            assert counts[1] > 20, "others get space each time"
            await namespace.delete_log("gone")
            await reopened(kept, counts[0])
            count = counts[0] + 1
            assert await read_all(namespace, "kept") == [payload(number) for number in range(count)], turn


@pytest.mark.slow
async def test_on_a_disk_that_dlog_alone_has_filled_a_truncated_log_goes_on_itself(
    small: SmallDirectory,
) -> None:
    async with dlog.open_namespace(uri_of(small)) as namespace:
        async with namespace.open_writer("a", create=True) as writer:
            for number in range(1000):
                await writer.append(payload(number))
        async with namespace.open_writer("a") as writer:  # the second segment
            count, _ = await append_until_full(writer, 1000)
            await namespace.truncate_log("a", dlog.DLSN(2, 0, 0))
            await namespace.purge_log("a")
            await reopened(writer, count)
        assert await read_all(namespace, "a") == [payload(number) for number in range(1000, count + 1)]


@pytest.mark.slow
async def test_a_directory_opens_after_its_given_reserve_was_taken(small: SmallDirectory) -> None:
    """As after a kill: another program takes what the bookie was given."""
    async with dlog.open_namespace(uri_of(small)) as namespace:
        async with namespace.open_writer("a", create=True) as writer:
            await writer.append(payload(0))
        async with namespace.open_writer("b", create=True) as writer:
            await writer.append(payload(0))
    for _ in range(6):
        os.truncate(small.path / "ns/bookie/current/flush.reserve", 0)
        small.fill()
        async with dlog.open_namespace(uri_of(small)) as namespace:
            small.fill()
            assert await read_all(namespace, "a") == [payload(0)]
    assert (small.path / "ns/metadata.reserve").stat().st_size < RESERVE_BYTES, "it lent"
    async with dlog.open_namespace(uri_of(small)) as namespace:
        with pytest.raises(dlog.DiskFullError) as caught:
            async with namespace.open_writer("a") as writer:
                await writer.append(b"x")
        check_says_why(caught.value, small)
        await namespace.truncate_log("a", dlog.DLSN(1, 1, 0))
        await namespace.delete_log("b")
    small.free()
    async with dlog.open_namespace(uri_of(small)) as namespace:
        async with namespace.open_writer("a") as writer:
            await writer.append(payload(1))
        assert await read_all(namespace, "a") == [payload(1)]


@pytest.mark.slow
async def test_a_bookie_that_finds_no_space_to_be_opened_is_said_as_the_full_disk(
    small: SmallDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_refusing = False

    def refuse(*args: Any, **more: Any) -> AbstractAsyncContextManager[Bookie]:
        if is_refusing:
            raise OSError(errno.ENOSPC, "no space to be opened")
        return open_bookie(*args, **more)

    monkeypatch.setattr(host, "open_bookie", refuse)
    async with dlog.open_namespace(uri_of(small)) as namespace:
        with suppress(WriterDiskFullError):  # once more when the writer is closed: of records that were sent
            async with namespace.open_writer("a", create=True) as writer:
                await writer.append(payload(0))
                is_refusing = True
                small.fill(2 * MIB)
                with trio.fail_after(25), pytest.raises(WriterDiskFullError) as caught:
                    await writer.append_many(map(payload, range(1, 2_000)))
                assert isinstance(caught.value.__cause__, OSError)
        is_refusing = False
        small.free()
        with trio.fail_after(25):
            await written(namespace)


async def written(namespace: dlog.Namespace) -> None:
    while True:
        try:
            async with namespace.open_writer("b", create=True) as writer:
                await writer.append(b"later")
        except dlog.DLogError:
            await trio.sleep(0.05)
        else:
            return


@pytest.mark.slow
def test_the_other_faces_say_it_too(small: SmallDirectory) -> None:
    with (
        dlog.blocking.open_namespace(uri_of(small)) as namespace,
        namespace.open_writer("a", create=True) as writer,
    ):
        writer.append(payload(0))
        small.fill(2 * MIB)
        with pytest.raises(WriterDiskFullError) as caught:
            deque(map(writer.append, map(payload, range(2_000))))
        check_says_why(caught.value, small)

    async def append_all(writer: dlog.aio.LogWriter) -> None:
        for number in range(2_000):
            await writer.append(payload(number))

    async def write() -> None:
        async with (
            dlog.aio.open_namespace(uri_of(small)) as namespace,
            namespace.open_writer("b", create=True) as writer,
        ):
            with pytest.raises(WriterDiskFullError) as caught:
                await append_all(writer)
            check_says_why(caught.value, small)

    asyncio.run(write())


def leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group, and in the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


@pytest.mark.slow
async def test_an_attached_process_and_the_tasks_of_a_nursery_are_told_the_cause_and_not_cancelled(
    small: SmallDirectory,
) -> None:
    async def append_all(writer: dlog.LogWriter) -> None:
        while True:
            await writer.append(payload(0))

    async def write() -> None:
        async with (
            dlog.open_namespace(uri_of(small)) as attached,
            attached.open_writer("a", create=True) as writer,
        ):
            await writer.append(payload(0))
            small.fill(4 * MIB)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append_all, writer)
                nursery.start_soon(append_all, writer)

    async with dlog.open_namespace(uri_of(small)):  # hosts the bookie
        with trio.fail_after(60), pytest.raises((WriterDiskFullError, ExceptionGroup)) as caught:
            await write()
    for error in leaves(caught.value):
        check_says_why(error, small)


@pytest.mark.parametrize("free_bytes", [2 * MIB, 20 * MIB])
async def test_what_the_reserves_have_given_is_taken_back_before_anybody_appends(
    small: SmallDirectory, free_bytes: int
) -> None:
    """Appends would use it up. While there are none it stays free: a deletion needs space as well."""
    disk, current = SmallDisk(small.path, 64 * MIB), small.path / "current"
    current.mkdir()
    rights = SimpleNamespace(writable=None)
    bookie = SimpleNamespace(storage=SimpleNamespace(full=None), service=SimpleNamespace(rights=rights))
    names = [current / "flush.reserve", current / "compaction.reserve"]
    for name in names:
        name.touch()
    disk.others_bytes = disk.free_bytes() - free_bytes
    metadata = cast(SpaceReserve, SimpleNamespace(missing_bytes=lambda: 0))
    space = Space(cast(Bookie, bookie), disk, current, metadata, CompactionConfig(reserve_bytes=2 * MIB))
    await space.check()
    assert rights.writable == (free_bytes == 20 * MIB)
    held = [name.stat().st_size for name in names]
    assert held == ([3 * MIB, 2 * MIB] if rights.writable else [0, 0])


def test_what_the_reserves_have_given_does_not_count_as_free_for_appends(small: SmallDirectory) -> None:
    disk, current, bookie = SmallDisk(small.path, 64 * MIB), small.path / "current", cast(Bookie, None)
    current.mkdir()
    fd = os.open(small.path, os.O_RDONLY)
    try:
        metadata = SpaceReserve(fd, "metadata.reserve")
        space = Space(bookie, disk, current, metadata, CompactionConfig(reserve_bytes=2 * MIB))
        (current / "flush.reserve").touch()
        metadata.fill()
        assert space.free_bytes() == disk.free_bytes() - 3 * MIB
        metadata.lend()
        assert space.free_bytes() == disk.free_bytes() - 3 * MIB - LOAN_BYTES
        (current / "compaction.reserve").touch()
        assert space.free_bytes() == disk.free_bytes() - 5 * MIB - LOAN_BYTES
    finally:
        os.close(fd)
