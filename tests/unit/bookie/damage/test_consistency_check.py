"""The consistency check of a stopped bookie's directory: it finds problems and changes no file."""

# covers: bookie/disk/read_only.py
# covers: bookie/index/index_view.py

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from bookie.damage.consistency_check import ConsistencyResult, check_directory
from bookie.disk.read_only import ReadOnlyDisk
from bookie.disk.real_disk import RealDisk
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import DirectoryInUseError, IndexMissingError
from bookie.index.entry_index import EntryRange
from bookie.index.index_factory import IndexConfig, IndexKind, open_index
from bookie.index.index_view import PageFilesView, open_index_view
from bookie.index.page_cache import PageIndexConfig
from bookie.index.page_file import page_file_path
from bookie.ledger_record import LedgerData
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "bookie_files"
DATA = LedgerData(b"key", False, None, 3, 4)
KINDS = pytest.mark.parametrize("kind", IndexKind)


def body(ledger_id: int, entry_id: int, size: int) -> bytes:
    return struct.pack(">qqq", ledger_id, entry_id, -1).ljust(size, b"x")


def fill(directory: Path, kind: IndexKind) -> None:
    """Ledger 1 has small entries, ledger 2 large ones."""
    writer = EntryLogWriter(RealDisk(), directory, log_bytes_max=1_000_000)
    pages = PageIndexConfig(page_bytes=512, pages_max=8, open_files_max=2)
    index = open_index(RealDisk(), directory, IndexConfig(kind=kind, pages=pages))
    small = {e: body(1, e, 60) for e in range(500)}
    large = {e: body(2, e, 30_000) for e in range(0, 60, 2)}
    index.put(writer.append({1: small, 2: large}), [(1, DATA), (2, DATA)])
    writer.close()
    index.mark_complete()
    index.sync()
    index.close()


def checked(directory: Path) -> tuple[ConsistencyResult, list[str]]:
    problems: list[str] = []
    disk = ReadOnlyDisk()
    index = open_index_view(disk, directory)
    result = check_directory(
        disk, directory, index, on_problem=problems.append, on_progress=lambda count: None
    )
    index.close()
    return result, problems


def fingerprint(directory: Path) -> dict[Path, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@KINDS
def test_a_sound_directory_has_no_problems_and_the_check_changes_no_file(
    tmp_path: Path, kind: IndexKind
) -> None:
    fill(tmp_path, kind)
    before = fingerprint(tmp_path)
    assert checked(tmp_path) == (ConsistencyResult(ledgers=2, entries=530, problems=0), [])
    assert fingerprint(tmp_path) == before


@KINDS
def test_each_wrong_entry_is_reported_with_its_offset(tmp_path: Path, kind: IndexKind) -> None:
    fill(tmp_path, kind)
    log = tmp_path / "0.log"
    data = bytearray(log.read_bytes())
    at = 1024 + 7 * 64
    data[at + 4 : at + 12] = (9).to_bytes(8, "big")  # entry 1:7 gets ledger id 9
    data[1024 + 11 * 64 : 1024 + 11 * 64 + 4] = (3).to_bytes(4, "big")  # entry 1:11 gets length 3
    log.write_bytes(data)
    result, problems = checked(tmp_path)
    assert result.problems == 2
    assert problems == [
        f"entry 1:7, at offset {at + 4} of 0.log: entry 9:7 is stored there",
        f"entry 1:11, at offset {1024 + 11 * 64 + 4} of 0.log: its length reads as 3",
    ]
    log.write_bytes(data[: 1024 + 500 * 64 + 29 * 30_004 + 100])  # the last entry of ledger 2 is cut short
    assert checked(tmp_path)[1][2:] == [
        f"entry 2:58, at offset {1024 + 500 * 64 + 29 * 30_004 + 4} of 0.log: the log ends within it"
    ]
    log.unlink()
    result, problems = checked(tmp_path)
    assert (result.problems, problems[-1].split(": ")[-1]) == (530, "the log is missing")


def test_a_damaged_page_is_a_problem_of_its_ledger_only(tmp_path: Path) -> None:
    fill(tmp_path, IndexKind.PAGES)
    path = page_file_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[1024:1536] = bytes(512)
    path.write_bytes(data)
    result, problems = checked(tmp_path)
    assert (result.problems, result.entries) == (1, 30)
    assert "does not match its checksum" in problems[0]


def golden(name: str) -> bytes:
    first, *lines = (GOLDEN / name).read_text().splitlines()
    data = bytearray(int(first.removeprefix("size ")))
    for line in lines:
        offset, content = line.split()
        data[int(offset, 16) : int(offset, 16) + len(content) // 2] = bytes.fromhex(content)
    return bytes(data)


@pytest.mark.parametrize(
    "bookie", ["4.17.3-Sorted", "4.18.0-Sorted", "4.17.3-Interleaved", "4.18.0-Interleaved"]
)
def test_apaches_directories_are_checked_by_their_index_files(tmp_path: Path, bookie: str) -> None:
    for name in ("1", "2", "102", "384"):
        path = page_file_path(tmp_path, int(name, 16))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(golden(f"{bookie}-restarted-{name}.idx.hex"))
    for source in GOLDEN.glob(f"{bookie}-restarted-*.log.hex"):
        (tmp_path / source.name.split("-")[-1].removesuffix(".hex")).write_bytes(golden(source.name))
    view = open_index_view(ReadOnlyDisk(), tmp_path)
    assert isinstance(view, PageFilesView)
    assert [(ledger_id, data.fenced) for ledger_id, data in view.ledgers()] == [
        (1, False),
        (2, False),
        (258, True),
        (900, False),
    ]
    counts = [len(view_range.entry_ids) for one in (1, 2, 258, 900) for view_range in view.ranges(one)]
    assert counts == [5, 4, 3, 1]
    assert checked(tmp_path) == (ConsistencyResult(ledgers=4, entries=13, problems=0), [])


def test_pages_that_were_being_overwritten_at_a_power_cut_are_read(tmp_path: Path) -> None:
    config = IndexConfig(kind=IndexKind.PAGES)
    index = open_index(RealDisk(), tmp_path, config)
    index.put([EntryRange(1, [0], [11])], [(1, DATA)])
    index.mark_complete()
    index.sync()
    index.put([EntryRange(1, [1], [12])])
    index._write_back()  # type: ignore[attr-defined]  # without sealing
    index.close()
    view = open_index_view(ReadOnlyDisk(), tmp_path)
    assert [list(entry_range.locations) for entry_range in view.ranges(1)] == [[11, 12]]
    view.close()


def test_a_read_only_disk_refuses_changes_and_shares_its_lock(tmp_path: Path) -> None:
    disk = ReadOnlyDisk()
    (tmp_path / "file").write_bytes(b"x")
    for change in (
        lambda: disk.open(tmp_path / "new", create=True, write=True),
        lambda: disk.open(tmp_path / "file", write=True).pwrite(b"y", 0),
        lambda: disk.rename(tmp_path / "file", tmp_path / "other"),
        lambda: disk.link(tmp_path / "file", tmp_path / "other"),
        lambda: disk.unlink(tmp_path / "file"),
        lambda: disk.remove_tree(tmp_path),
        lambda: disk.make_directory(tmp_path / "below"),
        lambda: disk.replace_file(tmp_path / "file", b""),
    ):
        with pytest.raises(OSError, match=r"inspection only|Bad file descriptor"):
            change()
    disk.lock(tmp_path / "LOCK")()  # no bookie has used the directory
    assert fingerprint(tmp_path) == {tmp_path / "file": hashlib.sha256(b"x").hexdigest()}
    unlock = RealDisk().lock(tmp_path / "LOCK")
    with pytest.raises(DirectoryInUseError):
        disk.lock(tmp_path / "LOCK")
    unlock()
    first, second = disk.lock(tmp_path / "LOCK"), disk.lock(tmp_path / "LOCK")
    with pytest.raises(DirectoryInUseError):
        RealDisk().lock(tmp_path / "LOCK")
    first()
    second()
    with pytest.raises(IndexMissingError):
        open_index_view(disk, tmp_path)
