"""How far each journal is in ledger storage, in every ledger directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.journal.format import NO_MARK, JournalMark, encode_mark
from bookie.journal.last_mark import LastMarks, greatest_marks, mark_name

FIRST, SECOND = JournalMark(7, 4096), JournalMark(9, 512)


class PickyDisk(RealDisk):
    """Refuses to write below some directories."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[Path] = set()
        self.errno = 5
        self.unreadable: set[Path] = set()
        self.written: list[Path] = []

    def replace_file(self, path: Path, data: bytes) -> None:
        if path.parent in self.refused:
            raise OSError(self.errno, f"refused: {path}")
        self.written.append(path)
        super().replace_file(path, data)

    def read_file(self, path: Path) -> bytes:
        if path.parent in self.unreadable:
            raise OSError(5, f"Input/output error: {path}")
        return super().read_file(path)


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for directory in made:
        directory.mkdir()
    return made


def test_the_names_are_apaches() -> None:
    assert mark_name(0, 1) == "lastMark"
    assert [mark_name(journal, 3) for journal in range(3)] == ["lastMark.0", "lastMark.1", "lastMark.2"]


def test_every_directory_gets_every_mark(directories: list[Path]) -> None:
    LastMarks(RealDisk(), directories, 2).write((FIRST, SECOND))
    for directory in directories:
        assert sorted(path.name for path in directory.iterdir()) == ["lastMark.0", "lastMark.1"]
        assert (directory / "lastMark.0").read_bytes()[:16] == bytes(7) + b"\x07" + bytes(6) + b"\x10\0"
        assert (directory / "lastMark.1").read_bytes()[:16] == bytes(7) + b"\x09" + bytes(6) + b"\x02\0"


def test_the_greatest_readable_mark_counts_for_each_journal_by_itself(directories: list[Path]) -> None:
    a, b = directories
    (a / "lastMark.0").write_bytes(encode_mark(FIRST))
    (a / "lastMark.1").write_bytes(b"torn")
    (b / "lastMark.0").write_bytes(encode_mark(JournalMark(6, 99999)))
    (b / "lastMark.1").write_bytes(encode_mark(SECOND))
    found = LastMarks(RealDisk(), directories, 2).read()
    assert found == [(FIRST, NO_MARK), (JournalMark(6, 99999), SECOND)]
    assert greatest_marks(found) == (FIRST, SECOND)


def test_nothing_readable_means_that_everything_is_replayed(directories: list[Path]) -> None:
    (directories[0] / "lastMark").write_bytes(b"")
    assert greatest_marks(LastMarks(RealDisk(), directories, 1).read()) == (NO_MARK,)


def test_one_directory_that_takes_the_marks_is_enough(
    directories: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    disk = PickyDisk()
    disk.refused.add(directories[0])
    marks = LastMarks(disk, directories, 1)
    marks.write((FIRST,))
    assert greatest_marks(marks.read()) == (FIRST,)
    assert "refused" in caplog.text
    disk.refused.clear()
    marks.write((FIRST,))
    assert [found for (found,) in marks.read()] == [FIRST, FIRST], "the copy that was missing is made up for"


def test_a_mark_that_no_directory_takes_is_an_error(directories: list[Path]) -> None:
    disk = PickyDisk()
    disk.refused.update(directories)
    with pytest.raises(OSError, match="refused"):
        LastMarks(disk, directories, 1).write((FIRST,))


def test_on_a_full_disk_a_mark_is_overwritten_and_a_torn_one_does_not_count(directories: list[Path]) -> None:
    disk = PickyDisk()
    disk.errno = 28
    marks = LastMarks(disk, directories, 1)
    disk.refused.update(directories)
    with pytest.raises(OSError, match="refused"):  # there is no file yet that could be overwritten
        marks.write((FIRST,))
    disk.refused.clear()
    marks.write((FIRST,))
    disk.refused.update(directories)
    marks.write((SECOND,))
    assert marks.read() == [(SECOND,), (SECOND,)]
    path = directories[0] / "lastMark"
    path.write_bytes(encode_mark(FIRST)[:12] + path.read_bytes()[12:])
    assert marks.read() == [(NO_MARK,), (SECOND,)]


def test_only_what_has_moved_is_written(directories: list[Path]) -> None:
    disk = PickyDisk()
    marks = LastMarks(disk, directories, 2)
    marks.write((FIRST, SECOND))
    disk.written.clear()
    marks.write((FIRST, JournalMark(9, 4096)))
    assert [path.name for path in disk.written] == ["lastMark.1", "lastMark.1"]


def test_a_copy_that_fails_to_be_read_does_not_count_unless_it_is_the_last(directories: list[Path]) -> None:
    disk = PickyDisk()
    marks = LastMarks(disk, directories, 1)
    marks.write((FIRST,))
    disk.unreadable.add(directories[0])
    assert marks.read() == [(NO_MARK,), (FIRST,)]
    disk.unreadable.add(directories[1])
    with pytest.raises(OSError, match="Input/output error"):
        marks.read()


def test_a_closed_mark_counts_if_every_copy_of_it_says_so(directories: list[Path]) -> None:
    marks = LastMarks(RealDisk(), directories, 1)
    marks.write((FIRST,), are_closed=True)
    assert greatest_marks(marks.read()) == (FIRST,)
    assert marks.closed((FIRST,)) == [True]
    assert marks.closed((SECOND,)) == [False]
    path = directories[0] / "lastMark"
    path.write_bytes(b"torn")
    marks.read()
    assert marks.closed((FIRST,)) == [True]
    path.write_bytes(encode_mark(FIRST))
    marks.read()
    assert marks.closed((FIRST,)) == [False]


def test_a_mark_found_closed_stays_so_until_it_moves_or_is_opened_again(directories: list[Path]) -> None:
    LastMarks(RealDisk(), directories, 2).write((FIRST, SECOND), are_closed=True)
    marks = LastMarks(RealDisk(), directories, 2)
    marks.read()
    later = JournalMark(SECOND.journal_id + 1, 4096)
    marks.write((FIRST, SECOND))
    marks.write((FIRST, later))
    found = LastMarks(RealDisk(), directories, 2)
    assert greatest_marks(found.read()) == (FIRST, later)
    assert found.closed((FIRST, later)) == [True, False]
    found.reopen((FIRST, later))
    found.read()
    assert found.closed((FIRST, later)) == [False, False]
