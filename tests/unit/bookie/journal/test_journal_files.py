"""The files of a journal directory: made, recycled, kept as backups, one held in reserve."""

# covers: bookie/journal/files.py

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from bookie.disk.disk import File
from bookie.disk.real_disk import RealDisk
from bookie.journal.files import RESERVE_BYTES, JournalConfig, JournalFiles
from bookie.journal.flushed import read_flushed
from bookie.journal.format import (
    FIRST_GROUP_OFFSET,
    NO_MARK,
    JournalMark,
    Predecessor,
    decode_file_trailer,
    journal_name,
)
from tests.fakes.small_disk import SmallDisk

SMALL = JournalConfig(file_bytes_max=64 << 10, preallocate_bytes=64 << 10, group_bytes_max=8 << 10)


class FullDisk(RealDisk):
    """Makes no new file while it is full."""

    is_full = False

    def open(self, path: Path, *, create: bool = False, write: bool = False, direct: bool = False) -> File:
        if create and self.is_full:
            raise OSError(28, f"No space left on device: {path}")
        return super().open(path, create=create, write=write, direct=direct)


def make(files: JournalFiles, *journal_ids: int) -> None:
    for journal_id in journal_ids:
        file, _ = files.create(journal_id, Predecessor(journal_id - 1, 0))
        file.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_reserve_is_made_with_the_first_mark_and_stays(tmp_path: Path) -> None:
    files = JournalFiles(RealDisk(), tmp_path, attrs.evolve(SMALL, spare_files_max=0))
    make(files, 1)
    files.retire_below(1)
    assert names(tmp_path) == ["1.txn", "reserve"]
    assert (tmp_path / "reserve").stat().st_size == min(RESERVE_BYTES, SMALL.file_bytes_max)
    make(files, 2, 3)
    files.retire_below(3)
    assert names(tmp_path) == ["3.txn", "reserve"]


def test_on_a_full_disk_a_start_takes_the_reserve_and_the_file_before_is_the_next(tmp_path: Path) -> None:
    disk = FullDisk()
    files = JournalFiles(disk, tmp_path, SMALL)
    make(files, 1)
    files.retire_below(1)
    disk.is_full = True
    for journal_id in range(2, 9):  # as many starts
        files = JournalFiles(disk, tmp_path, SMALL)
        assert files.scan() == [journal_id - 1]
        file, allocated = files.create(journal_id, Predecessor(journal_id - 1, 4096), may_use_reserve=True)
        assert allocated >= 64 << 10
        file.close()
        block = disk.read_file(tmp_path / journal_name(journal_id))[:FIRST_GROUP_OFFSET]
        assert decode_file_trailer(block, journal_id) == Predecessor(journal_id - 1, 4096)
        assert names(tmp_path) == [journal_name(journal_id - 1), journal_name(journal_id)]
        files.retire_below(journal_id)
        assert names(tmp_path) == [journal_name(journal_id), "reserve"]


def test_only_a_start_takes_the_reserve(tmp_path: Path) -> None:
    disk = FullDisk()
    files = JournalFiles(disk, tmp_path, SMALL)
    make(files, 1)
    files.retire_below(1)
    disk.is_full = True
    with pytest.raises(OSError, match="No space left"):
        files.create(2, Predecessor(1, 0))
    assert names(tmp_path) == ["1.txn", "reserve"]


def test_a_disk_without_room_for_the_reserve_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    files = JournalFiles(disk, tmp_path, SMALL)
    make(files, 1)
    disk.is_full = True
    files.retire_below(1)
    files.retire_below(1)
    assert len(caplog.records) == 1
    disk.is_full = False
    files.retire_below(1)
    assert names(tmp_path) == ["1.txn", "reserve"]


@pytest.mark.parametrize("backups", [0, 1, 3, 10])
def test_the_newest_files_below_the_mark_are_kept_as_backups(tmp_path: Path, backups: int) -> None:
    files = JournalFiles(RealDisk(), tmp_path, attrs.evolve(SMALL, backups_max=backups, spare_files_max=0))
    make(files, *range(1, 8))
    files.retire_below(6)
    kept = [journal_name(journal_id) for journal_id in range(max(1, 6 - backups), 8)]
    assert names(tmp_path) == [*kept, "reserve"]


@pytest.mark.slow
@pytest.mark.parametrize("backups", range(8))
def test_as_many_backups_as_wanted_gather_file_by_file(tmp_path: Path, backups: int) -> None:
    files = JournalFiles(RealDisk(), tmp_path, attrs.evolve(SMALL, backups_max=backups, spare_files_max=0))
    for journal_id in range(1, 13):
        make(files, journal_id)
        files.retire_below(journal_id)
        kept = [journal_name(one) for one in range(max(1, journal_id - backups), journal_id + 1)]
        assert names(tmp_path) == sorted([*kept, "reserve"])


def test_what_a_crash_left_half_made_is_removed(tmp_path: Path) -> None:
    for name in ("5.txn.new", "reserve.new", "VERSION", "3.txn", "reserve", "spare-2"):
        (tmp_path / name).touch()
    assert JournalFiles(RealDisk(), tmp_path, SMALL).scan() == [3]
    assert names(tmp_path) == ["3.txn", "VERSION", "reserve", "spare-2"]


def test_a_spare_file_that_a_crash_emptied_is_filled_again(tmp_path: Path) -> None:
    (tmp_path / "spare-1").touch()
    files = JournalFiles(RealDisk(), tmp_path, SMALL)
    assert files.scan() == []
    file, allocated = files.create(4, Predecessor(0, 0))
    assert allocated == file.size() == 64 << 10
    file.close()
    assert names(tmp_path) == ["4.txn"]


def test_a_journal_that_becomes_the_reserve_is_cut_to_its_size(tmp_path: Path) -> None:
    """Otherwise a small directory holds a second journal in reserve."""
    large = JournalConfig(file_bytes_max=8 << 20, preallocate_bytes=4 << 20, spare_files_max=0)
    disk = FullDisk()
    files = JournalFiles(disk, tmp_path, large)
    make(files, 1, 2)
    disk.is_full = True  # so that no other file can be made in its place
    files.retire_below(2)
    assert names(tmp_path) == ["2.txn", "reserve"]
    assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
    (tmp_path / "1.txn").write_bytes(bytes(4 << 20))
    (tmp_path / "1.txn").rename(tmp_path / "reserve")  # killed after the rename, or an older release
    files = JournalFiles(disk, tmp_path, large)
    assert files.scan() == [2]
    files.retire_below(2)
    assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES


BLOCKS = attrs.evolve(SMALL, file_bytes_max=256 << 10, preallocate_bytes=256 << 10)
MARK = JournalMark(1, 100_000)


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_space_below_the_mark_is_given_back_and_all_else_stays(tmp_path: Path) -> None:
    files = JournalFiles(RealDisk(), tmp_path, BLOCKS)
    make(files, 1)
    path = tmp_path / journal_name(1)
    head = path.read_bytes()[:FIRST_GROUP_OFFSET]
    with path.open("r+b") as file:
        file.seek(FIRST_GROUP_OFFSET)
        file.write(bytes([7]) * ((256 << 10) - FIRST_GROUP_OFFSET))
    before = allocated_bytes(path)
    assert files.give_back(MARK)
    freed = MARK.offset // 4096 * 4096 - FIRST_GROUP_OFFSET
    assert before - allocated_bytes(path) == freed
    content = path.read_bytes()
    assert content[:FIRST_GROUP_OFFSET] == head
    assert content[FIRST_GROUP_OFFSET:][:freed] == bytes(freed)
    assert set(content[FIRST_GROUP_OFFSET + freed :]) == {7}
    assert read_flushed(RealDisk(), tmp_path, [1]) == MARK


def test_whether_space_can_be_given_back_is_known_before(tmp_path: Path) -> None:
    files = JournalFiles(RealDisk(), tmp_path, BLOCKS)
    assert files.can_give_back(), "no file would need it"
    make(files, 1)
    path = tmp_path / journal_name(1)
    before = path.read_bytes(), allocated_bytes(path)
    assert files.can_give_back()
    assert (path.read_bytes(), allocated_bytes(path)) == before
    disk = SmallDisk(tmp_path, 1 << 30)
    disk.can_give_back = False
    assert not JournalFiles(disk, tmp_path, BLOCKS).can_give_back()


class StubbornDisk(RealDisk):
    """Replaces no file: there is no space for that."""

    def replace_file(self, path: Path, data: bytes) -> None:
        raise OSError(28, f"No space left on device: {path}")


def test_no_space_is_given_back_before_the_mark_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = JournalFiles(StubbornDisk(), tmp_path, BLOCKS)
    make(files, 1)
    before = allocated_bytes(tmp_path / journal_name(1))
    assert not files.give_back(MARK)
    assert allocated_bytes(tmp_path / journal_name(1)) == before
    assert "its first part is not freed" in caplog.text


@pytest.mark.parametrize("mark", [NO_MARK, JournalMark(1, FIRST_GROUP_OFFSET), JournalMark(9, 1 << 20)])
def test_a_mark_below_which_nothing_is_there_gives_nothing_back(tmp_path: Path, mark: JournalMark) -> None:
    files = JournalFiles(RealDisk(), tmp_path, BLOCKS)
    make(files, 1)
    assert files.give_back(mark)
    assert names(tmp_path) == ["1.txn"]


@pytest.mark.parametrize("spares", [0, 1])
def test_a_file_with_holes_becomes_neither_the_reserve_nor_a_spare_file(tmp_path: Path, spares: int) -> None:
    """A write into a hole needs space, and these files are for a day without."""
    files = JournalFiles(RealDisk(), tmp_path, attrs.evolve(BLOCKS, spare_files_max=spares))
    make(files, 1)
    if spares:
        files.retire_below(1)  # makes the reserve
    assert files.give_back(MARK)
    make(files, 2)
    files.retire_below(2)
    assert names(tmp_path) == ["2.txn", "flushed", "reserve"]
    assert allocated_bytes(tmp_path / "reserve") == (tmp_path / "reserve").stat().st_size


def test_on_a_full_disk_the_spare_files_go(tmp_path: Path) -> None:
    files = JournalFiles(RealDisk(), tmp_path, attrs.evolve(SMALL, spare_files_max=2))
    make(files, 1, 2, 3)
    files.retire_below(3)
    assert [name for name in names(tmp_path) if name.startswith("spare-")] == ["spare-2"]
    files.drop_spares()
    assert names(tmp_path) == ["3.txn", "reserve"]
    make(files, 4)
    assert "4.txn" in names(tmp_path)
