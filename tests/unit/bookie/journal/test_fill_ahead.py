"""The zeros of a journal file are written before a group needs them, and an error of that hides nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from bookie.disk.disk import Buffer, File
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.errors import StorageFailedError
from bookie.journal.files import RESERVE_BYTES, JournalConfig, JournalFiles
from bookie.journal.group_commit import WriteBatch
from bookie.journal.group_writer import FILL_AHEAD_BYTES
from bookie.journal.journal import Journal
from tests.unit.bookie.journal.test_journal import add, entry, opened, replayed

LARGE = JournalConfig(file_bytes_max=8 << 20, preallocate_bytes=2 << 20, group_bytes_max=64 << 10)
RECORD_BYTES = 60_000


@attrs.define
class Fills:
    """The fills of a journal: where, and whether a group waited for it. ``fail`` may raise in its place."""

    all: list[tuple[int, int, bool]] = attrs.field(factory=list)
    fail: Callable[[], None] = lambda: None
    is_in_group: bool = False

    def within(self) -> list[tuple[int, int]]:
        """Those that a group waited for."""
        return [(start, stop) for start, stop, in_group in self.all if in_group]

    def ahead(self) -> list[tuple[int, int]]:
        """The others."""
        return [(start, stop) for start, stop, in_group in self.all if not in_group]


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> Fills:
    fills = Fills()
    fill, commit = JournalFiles.fill, Journal._commit

    def noted(self: JournalFiles, file: File, start: int, stop: int) -> int:
        if start:  # not the first bytes of a new file
            fills.all.append((start, stop, fills.is_in_group))
            fills.fail()
        return fill(self, file, start, stop)

    def in_group(self: Journal, group: Sequence[WriteBatch]) -> None:
        fills.is_in_group = True
        try:
            commit(self, group)  # type: ignore[arg-type]
        finally:
            fills.is_in_group = False

    monkeypatch.setattr(JournalFiles, "fill", noted)
    monkeypatch.setattr(Journal, "_commit", in_group)
    return fills


async def add_one(journal: Journal, number: int, *, sync: bool = True) -> BaseException | None:
    """Add one record, and let the thread do what it has to do afterwards."""
    error = await add(journal, [entry(number, RECORD_BYTES)], sync=sync)
    while journal._is_filling:
        await journal._thread.call(lambda: None)
    return error


@pytest.mark.slow
async def test_no_group_waits_for_a_fill_if_groups_come_one_by_one(tmp_path: Path, fills: Fills) -> None:
    count = 125
    async with opened(tmp_path, LARGE) as journal:
        for number in range(count):
            assert await add_one(journal, number) is None
        assert journal.mark.journal_id == 1
    assert fills.within() == []
    ahead = fills.ahead()
    assert [stop for _, stop in ahead] == [start for start, _ in ahead[1:]] + [LARGE.file_bytes_max]
    assert all(stop - start <= FILL_AHEAD_BYTES for start, stop in ahead)
    assert await replayed(tmp_path) == [entry(number, RECORD_BYTES) for number in range(count)]


async def test_a_full_disk_stops_no_group_that_has_space(tmp_path: Path, fills: Fills) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with opened(tmp_path, LARGE) as journal:
        fills.fail = full
        count = 0
        while not fills.within():
            error = await add_one(journal, count)
            if error is None:
                count += 1
        assert isinstance(error, StorageFailedError), "the group that needs more space fails"
        assert len(fills.ahead()) == 1, "it is not tried for each group"
        assert count * RECORD_BYTES > LARGE.preallocate_bytes - 3 * RECORD_BYTES
    assert await replayed(tmp_path) == [entry(number, RECORD_BYTES) for number in range(count)]


class FullDisk(RealDisk):
    """So many bytes are left for a new file."""

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        return FullFile(super().open(path, create=create, write=write, direct=direct))


class FullFile(RealFile):
    def __init__(self, file: File) -> None:
        assert isinstance(file, RealFile)
        super().__init__(file._path, file._descriptor, direct=file.direct)

    def pwrite(self, data: Buffer, offset: int) -> None:
        if offset + len(data) > RESERVE_BYTES:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(data, offset)


async def test_a_file_made_of_what_a_full_disk_had_left_is_not_filled_ahead(
    tmp_path: Path, fills: Fills
) -> None:
    """A flush or a compaction may need the space more than a record that may never come."""
    async with opened(tmp_path, LARGE, disk=FullDisk()) as journal:
        for number in range(10):
            assert await add_one(journal, number) is None
    assert fills.all == []


@pytest.mark.parametrize(("error", "sync"), [(errno.EIO, True), (errno.ENOSPC, False)])
async def test_after_a_fill_that_may_have_dropped_groups_nothing_is_acknowledged(
    tmp_path: Path, fills: Fills, error: int, sync: bool
) -> None:
    """A sync that failed is not repeated: it would succeed, and prove nothing."""

    def fail() -> None:
        raise OSError(error, "the sync of the fill failed")

    async with opened(tmp_path, LARGE) as journal:
        fills.fail = fail
        number = 0
        while not fills.ahead():
            assert await add_one(journal, number, sync=sync) is None
            number += 1
        fills.fail = lambda: None
        for again in ([entry(number)], []):
            assert isinstance(await add(journal, again), StorageFailedError)


async def test_closing_does_not_leave_a_fill_behind(tmp_path: Path, fills: Fills) -> None:
    async with opened(tmp_path, LARGE) as journal:
        for number in range(20):
            assert await add(journal, [entry(number, RECORD_BYTES)]) is None
    assert not journal._is_filling
    assert await replayed(tmp_path) == [entry(number, RECORD_BYTES) for number in range(20)]
