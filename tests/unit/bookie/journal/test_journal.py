"""The journal on a real disk: answers, rolling, recycling, failing."""

# covers: bookie/journal/group_writer.py

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from bookie.disk.disk import Buffer, Disk, File
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.errors import StorageFailedError
from bookie.journal.files import JournalConfig, JournalFiles
from bookie.journal.format import FIRST_GROUP_OFFSET, NO_MARK, JournalMark, Predecessor
from bookie.journal.group_commit import OnDurable, WriteBatch, take_group
from bookie.journal.group_writer import GroupWriter
from bookie.journal.journal import Journal, OnCommitted, open_journal
from bookie.journal.last_synced import read_last_synced
from bookie.journal.replay import read_journal
from ledger.runtime.loop_calls import CALLS_FIRST, STALL_S

SMALL = JournalConfig(file_bytes_max=64 << 10, preallocate_bytes=16 << 10, group_bytes_max=8 << 10)


def entry(entry_id: int, size: int = 100) -> bytes:
    return struct.pack(">qqq", 1, entry_id, -1) + bytes([entry_id % 256]) * size


def names(directory: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in directory.glob(pattern))


def size_of(records: Sequence[bytes]) -> int:
    return sum(map(len, records)) + 4 * len(records)


def acknowledge(group: Sequence[WriteBatch], error: BaseException | None) -> None:
    for batch in group:
        batch.on_durable(error)


def submit(journal: Journal, records: list[bytes], on_durable: OnDurable, *, sync: bool = True) -> None:
    batch = WriteBatch()
    batch.records = [records]
    batch.sizes_bytes = [size_of(records)]
    batch.on_durable, batch.sync = on_durable, sync
    journal.submit(batch)


@asynccontextmanager
async def opened(
    directory: Path,
    config: JournalConfig = SMALL,
    *,
    disk: Disk | None = None,
    next_id: int = 1,
    on_committed: OnCommitted | None = None,
) -> AsyncIterator[Journal]:
    disk = disk or RealDisk()
    files = JournalFiles(disk, directory, config)
    files.scan()
    writer = GroupWriter(disk, files, config, next_id=next_id, previous=Predecessor(0, 0))
    journal = await open_journal(writer, 0, on_committed or acknowledge)
    try:
        yield journal
    finally:
        await journal.aclose()


async def add(journal: Journal, records: list[bytes], *, sync: bool = True) -> BaseException | None:
    answered = trio.Event()
    answers: list[BaseException | None] = []

    def on_durable(error: BaseException | None) -> None:
        answers.append(error)
        answered.set()

    submit(journal, records, on_durable, sync=sync)
    await answered.wait()
    assert len(answers) == 1
    return answers[0]


async def replayed(directory: Path, mark: JournalMark = NO_MARK) -> list[bytes]:
    records: list[bytes] = []

    async def apply(some: Sequence[bytes], _: object) -> None:
        records.extend(some)

    ids = JournalFiles(RealDisk(), directory, SMALL).scan()
    await read_journal(RealDisk(), directory, ids, mark, apply)
    return records


@pytest.mark.slow
@pytest.mark.parametrize("direct", [True, False])
async def test_what_was_answered_is_read_back_over_many_files(tmp_path: Path, direct: bool) -> None:
    records = [entry(number, 50 * (number % 120)) for number in range(200)]
    async with opened(tmp_path, attrs.evolve(SMALL, direct=direct)) as journal:
        for start in range(0, 200, 5):
            assert await add(journal, records[start : start + 5]) is None
        assert journal.mark.journal_id > 3
        assert journal.queued_bytes == 0
    assert await replayed(tmp_path) == records


async def test_batches_are_answered_in_order_of_submission_and_share_syncs(tmp_path: Path) -> None:
    order: list[int] = []

    def note(number: int, error: BaseException | None) -> None:
        order.append(number)

    async with opened(
        tmp_path, attrs.evolve(SMALL, group_bytes_max=1 << 20, file_bytes_max=1 << 20)
    ) as journal:
        before = journal.sync_count
        for number in range(500):
            submit(journal, [entry(number)], partial(note, number))
        await add(journal, [])
        assert order == list(range(500))
        assert journal.sync_count - before < 100
    assert await replayed(tmp_path) == [entry(number) for number in range(500)]


async def test_each_record_counts_in_the_times_once_it_is_synced(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for records in [entry(0), entry(1)], [entry(2)]:
            synced = trio.Event()
            submit(journal, records, lambda _, synced=synced: synced.set())  # type: ignore[misc]
            await synced.wait()
        assert (journal.adds.count, journal.syncs.count) == (3, 2)
        assert journal.adds.sum_s >= journal.syncs.sum_s


async def test_a_batch_larger_than_a_group_is_cut_into_pieces(tmp_path: Path) -> None:
    records = [entry(number, 3000) for number in range(40)] + [entry(99, 70_000)]
    async with opened(tmp_path) as journal:
        assert await add(journal, records) is None
    assert await replayed(tmp_path) == records


@pytest.mark.slow
async def test_reading_can_begin_at_any_published_mark(tmp_path: Path) -> None:
    marks = [NO_MARK]
    async with opened(tmp_path) as journal:
        for number in range(30):
            await add(journal, [entry(number)])
            marks.append(journal.mark)
    assert marks == sorted(marks)
    for number, mark in enumerate(marks):
        assert await replayed(tmp_path, mark) == [entry(n) for n in range(number, 30)]


def read_as_apache_does(data: bytes) -> list[bytes]:
    """The reader of Journal.java: no trailers, no bounds; stops at a length of zero."""
    records, at = [], 512
    while at + 4 <= len(data):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        if length == 0:
            break
        if length == -0x100:
            (length,) = struct.unpack_from(">i", data, at)
            at += 4 + length
            continue
        assert length > 0, "Apache's bookie would refuse to start"
        records.append(data[at : at + length])
        at += length
    return records


async def test_apaches_reader_stops_cleanly_behind_the_tail_of_a_recycled_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for number in range(60):
            await add(journal, [entry(number, 900)] * 3)
            journal._writer._files.retire_below(journal.mark.journal_id)
            (current,) = names(tmp_path, "*.txn")
            expected = [] if journal.mark.offset == FIRST_GROUP_OFFSET else entry(number, 900)
            assert read_as_apache_does(RealDisk().read_file(tmp_path / current))[-1:] == [expected]
        assert journal.mark.journal_id > 4
    assert len(names(tmp_path, "spare-*")) <= SMALL.spare_files_max


async def test_files_below_the_mark_are_recycled_and_no_more_are_kept_than_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        for number in range(80):
            await add(journal, [entry(number, 3000)])
        last = journal.mark.journal_id
        journal._writer._files.retire_below(last)
        assert names(tmp_path, "*.txn") == [f"{last:x}.txn"]
        assert len(names(tmp_path, "spare-*")) == SMALL.spare_files_max
    async with opened(tmp_path, next_id=last + 1):
        assert len(names(tmp_path, "spare-*")) == SMALL.spare_files_max - 1


async def test_the_note_beside_the_files_never_says_more_than_was_synced_nor_less_than_was_answered(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as journal:
        for number in range(40):
            await add(journal, [entry(number, 3000)], sync=number % 3 > 0)
            assert read_last_synced(RealDisk(), tmp_path) == journal.mark
    assert journal.mark.journal_id > 1


async def test_deferred_batches_are_answered_unsynced_and_the_next_sync_covers_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        mark, syncs = journal.mark, journal.sync_count
        assert await add(journal, [entry(0)], sync=False) is None
        assert await add(journal, [entry(1)], sync=False) is None
        assert (journal.mark, journal.sync_count, journal.has_unsynced) == (mark, syncs, True)
        assert await add(journal, []) is None
        assert journal.mark.offset == mark.offset + 8192
        assert not journal.has_unsynced
        await add(journal, [entry(2)], sync=False)
        await add(journal, [entry(3)])
        assert journal.mark.offset == mark.offset + 16384
    assert await replayed(tmp_path) == [entry(number) for number in range(4)]


async def test_a_batch_without_records_is_answered_synced_whatever_it_shares_its_group_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, taken = threading.Event(), take_group

    def take_later(waiting: deque[WriteBatch], journal: int, size_bytes_max: int) -> list[WriteBatch]:
        held.wait()
        return taken(waiting, journal, size_bytes_max)

    monkeypatch.setattr("bookie.journal.journal.take_group", take_later)
    async with opened(tmp_path) as journal:
        unsynced: list[bool] = []
        for records in ([entry(0)], []):
            submit(journal, records, lambda error: unsynced.append(journal.has_unsynced), sync=False)
        held.set()
        await add(journal, [entry(1)], sync=False)
        assert unsynced == [False, False]


async def test_a_fault_of_the_thread_itself_stops_the_bookie_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(waiting: deque[WriteBatch], journal: int, size_bytes_max: int) -> list[WriteBatch]:
        raise MemoryError

    errors: list[StorageFailedError | None] = []
    has_failed = trio.Event()

    def on_committed(group: Sequence[WriteBatch], error: StorageFailedError | None) -> None:
        acknowledge(group, error)
        errors.append(error)
        has_failed.set()

    async with opened(tmp_path, on_committed=on_committed) as journal:
        monkeypatch.setattr("bookie.journal.journal.take_group", out_of_memory)
        submit(journal, [entry(0)], lambda error: errors.append(StorageFailedError("of the batch")))
        with trio.fail_after(60):
            await has_failed.wait()
        monkeypatch.undo()
        [error] = errors
        assert isinstance(error, StorageFailedError)
        assert isinstance(error.__cause__, MemoryError)
        assert await add(journal, [entry(1)]) is error
    assert await replayed(tmp_path) == []


class FailingFile(RealFile):
    """Fails the named call once; every later call would succeed."""

    fail: str = ""

    def write_durably(self, data: Buffer, offset: int) -> None:
        self._maybe("write_durably")
        super().write_durably(data, offset)

    def sync(self) -> None:
        self._maybe("sync")
        super().sync()

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._maybe("pwrite")
        super().pwrite(data, offset)

    def _maybe(self, what: str) -> None:
        if FailingFile.fail == what:
            FailingFile.fail = ""
            raise OSError(5, "Input/output error")


class FailingDisk(RealDisk):
    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        file = super().open(path, create=create, write=write, direct=direct)
        assert isinstance(file, RealFile)
        return FailingFile(path, file._descriptor, direct=file.direct)


@pytest.mark.parametrize(("what", "sync"), [("write_durably", True), ("pwrite", False), ("sync", None)])
async def test_after_one_error_nothing_is_acknowledged_any_more(
    tmp_path: Path, what: str, sync: bool | None
) -> None:
    async with opened(tmp_path, disk=FailingDisk()) as journal:
        assert await add(journal, [entry(0)]) is None
        if sync is None:
            assert await add(journal, [entry(1)], sync=False) is None
        mark = journal.mark
        FailingFile.fail = what
        error = await add(journal, [] if sync is None else [entry(2)], sync=sync is not False)
        assert isinstance(error, StorageFailedError)
        assert isinstance(error.__cause__, OSError)
        assert FailingFile.fail == "", "the fault was met"
        for again in ([entry(3)], []):
            assert await add(journal, again) is error
        assert journal.mark == mark
    assert (await replayed(tmp_path))[:1] == [entry(0)]
    assert entry(3) not in await replayed(tmp_path)


class WatchedFile(RealFile):
    """Notes which thread writes durably, before and after each write."""

    notes: list[tuple[str, int]]

    def write_durably(self, data: Buffer, offset: int) -> None:
        self.notes.append(("write", threading.get_ident()))
        super().write_durably(data, offset)
        self.notes.append(("written", threading.get_ident()))


class WatchedDisk(RealDisk):
    """A disk whose groups take as long as ``group_s`` says."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, int]] = []
        self.group_s = 0.0
        self._now_s = 0.0

    def clock_s(self) -> float:
        self._now_s += self.group_s  # asked before and after each group
        return self._now_s

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        file = super().open(path, create=create, write=write, direct=direct)
        assert isinstance(file, RealFile)
        watched = WatchedFile(path, file._descriptor, direct=file.direct)
        watched.notes = self.notes
        return watched

    def take_writers(self) -> list[str]:
        """Which thread wrote each group since the last call."""
        here = threading.get_ident()
        writers = ["loop" if thread == here else "thread" for what, thread in self.notes if what == "written"]
        self.notes.clear()
        return writers


WIDE = attrs.evolve(SMALL, file_bytes_max=4 << 20, preallocate_bytes=4 << 20, group_bytes_max=64 << 10)


async def known(journal: Journal, disk: WatchedDisk) -> None:
    """Have the journal sync so many groups that the loop may take the next lone one."""
    for number in range(CALLS_FIRST):
        assert await add(journal, [entry(number)]) is None
    assert set(disk.take_writers()) == {"thread"}
    await idle(journal)


async def idle(journal: Journal) -> None:
    """Wait for the thread, which has told of its last group, and may not have ended its job yet."""
    await journal._thread.call(lambda: None)


async def test_the_loop_syncs_a_lone_batch_of_a_fast_disk_and_acknowledges_it_afterwards(
    tmp_path: Path,
) -> None:
    disk = WatchedDisk()

    def note(error: BaseException | None) -> None:
        disk.notes.append(("acknowledged", 0))

    async with opened(tmp_path, WIDE, disk=disk) as journal:
        await known(journal, disk)
        for number in (100, 101):
            submit(journal, [entry(number)], note)
            assert disk.notes == [], "batches that come in the same step share the write"
            await trio.testing.wait_all_tasks_blocked()
            assert [what for what, _ in disk.notes] == ["write", "written", "acknowledged"]
            assert disk.take_writers() == ["loop"]
        assert journal.mark.offset > FIRST_GROUP_OFFSET
    assert (await replayed(tmp_path))[-2:] == [entry(100), entry(101)]


async def test_batches_that_come_together_share_one_write_of_the_thread(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(tmp_path, WIDE, disk=disk) as journal:
        await known(journal, disk)
        submit(journal, [entry(100)], lambda error: None)
        await add(journal, [entry(101)])
        assert disk.take_writers() == ["thread"]
        await add(journal, [entry(102)])
        assert disk.take_writers() == ["thread"], "the group before was not alone"
        await idle(journal)
        await add(journal, [entry(103)])
        assert disk.take_writers() == ["loop"]
    assert (await replayed(tmp_path))[-4:] == [entry(number) for number in range(100, 104)]


async def test_a_disk_that_became_slow_does_not_hold_the_loop_again(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(tmp_path, WIDE, disk=disk) as journal:
        await known(journal, disk)
        disk.group_s = 2 * STALL_S
        for number in range(30):
            await add(journal, [entry(number)])
        assert disk.take_writers() == ["loop"] + 29 * ["thread"]


async def test_the_loop_neither_fills_nor_creates_a_file(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with opened(tmp_path, disk=disk) as journal:
        for number in range(CALLS_FIRST + 40):
            await idle(journal)  # it may fill the file after its last group
            first_id, allocated = journal.mark.journal_id, journal._writer._allocated
            await add(journal, [entry(number)])
            writers = disk.take_writers()
            if (journal.mark.journal_id, journal._writer._allocated) != (first_id, allocated):
                assert set(writers) == {"thread"}
        assert journal.mark.journal_id > 3


async def test_closing_commits_the_batch_that_the_loop_was_about_to_commit(tmp_path: Path) -> None:
    disk = WatchedDisk()
    errors: list[BaseException | None] = []
    async with opened(tmp_path, WIDE, disk=disk) as journal:
        await known(journal, disk)
        submit(journal, [entry(100)], errors.append)
    await trio.testing.wait_all_tasks_blocked()
    assert errors == [None]
    assert (await replayed(tmp_path))[-1] == entry(100)


async def test_after_an_error_on_the_loop_nothing_is_acknowledged_any_more(tmp_path: Path) -> None:
    class Failing(FailingDisk):
        def clock_s(self) -> float:
            return 0.0

    async with opened(tmp_path, WIDE, disk=Failing()) as journal:
        for number in range(CALLS_FIRST + 1):
            assert await add(journal, [entry(number)]) is None
        mark = journal.mark
        FailingFile.fail = "write_durably"
        error = await add(journal, [entry(100)])
        assert isinstance(error, StorageFailedError)
        assert isinstance(error.__cause__, OSError)
        for again in ([entry(101)], []):
            assert await add(journal, again) is error
        assert journal.mark == mark
    assert entry(101) not in await replayed(tmp_path)


def test_a_half_made_file_is_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    for name in ("5.txn.new", "VERSION", "3.txn"):
        (tmp_path / name).touch()
    assert JournalFiles(RealDisk(), tmp_path, SMALL).scan() == [3]
    assert names(tmp_path) == ["3.txn", "VERSION"]
