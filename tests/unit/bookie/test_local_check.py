"""The look at a stopped bookie's directories: what it finds, and that it changes nothing."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from bookie.disk import RealDisk
from bookie.disk_read_only import ReadOnlyDisk
from bookie.entry_log import EntryLogWriter
from bookie.errors import DirectoryInUseError, IndexMissingError
from bookie.index import LedgerRun
from bookie.index_kinds import IndexConfig, IndexKind, open_index
from bookie.index_view import BareFiles, open_view
from bookie.ledgers import LedgerData
from bookie.local_check import Checked, check_directory
from bookie.page_file import page_file_path
from bookie.page_index import PageIndexConfig

GOLDEN = Path(__file__).parents[2] / "golden" / "bookie_files"
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


def checked(directory: Path) -> tuple[Checked, list[str]]:
    told: list[str] = []
    disk = ReadOnlyDisk()
    index = open_view(disk, directory)
    result = check_directory(disk, directory, index, tell=told.append, progress=lambda count: None)
    index.close()
    return result, told


def fingerprint(directory: Path) -> dict[Path, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@KINDS
def test_a_whole_directory_is_whole_and_looking_changes_nothing(tmp_path: Path, kind: IndexKind) -> None:
    fill(tmp_path, kind)
    before = fingerprint(tmp_path)
    assert checked(tmp_path) == (Checked(ledgers=2, entries=530, problems=0), [])
    assert fingerprint(tmp_path) == before


@KINDS
def test_each_wrong_entry_is_told_of_with_its_place(tmp_path: Path, kind: IndexKind) -> None:
    fill(tmp_path, kind)
    log = tmp_path / "0.log"
    data = bytearray(log.read_bytes())
    at = 1024 + 7 * 64
    data[at + 4 : at + 12] = (9).to_bytes(8, "big")  # entry 1:7 says that it is of ledger 9
    data[1024 + 11 * 64 : 1024 + 11 * 64 + 4] = (3).to_bytes(4, "big")  # entry 1:11 is 3 bytes long
    log.write_bytes(data)
    result, told = checked(tmp_path)
    assert result.problems == 2
    assert told == [
        f"entry 1:7, at offset {at + 4} of 0.log: entry 9:7 is there",
        f"entry 1:11, at offset {1024 + 11 * 64 + 4} of 0.log: its length reads as 3",
    ]
    log.write_bytes(data[: 1024 + 500 * 64 + 29 * 30_004 + 100])  # the last entry of ledger 2 is cut short
    assert checked(tmp_path)[1][2:] == [
        f"entry 2:58, at offset {1024 + 500 * 64 + 29 * 30_004 + 4} of 0.log: the log ends within it"
    ]
    log.unlink()
    result, told = checked(tmp_path)
    assert (result.problems, told[-1].split(": ")[-1]) == (530, "there is no such log")


def test_a_damaged_page_is_a_problem_of_its_ledger_only(tmp_path: Path) -> None:
    fill(tmp_path, IndexKind.PAGES)
    path = page_file_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[1024:1536] = bytes(512)
    path.write_bytes(data)
    result, told = checked(tmp_path)
    assert (result.problems, result.entries) == (1, 30)
    assert "is not what was written" in told[0]


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
    view = open_view(ReadOnlyDisk(), tmp_path)
    assert isinstance(view, BareFiles)
    assert [(ledger_id, data.fenced) for ledger_id, data in view.ledgers()] == [
        (1, False),
        (2, False),
        (258, True),
        (900, False),
    ]
    assert [len(run.entry_ids) for ledger_id in (1, 2, 258, 900) for run in view.runs(ledger_id)] == [
        5,
        4,
        3,
        1,
    ]
    assert checked(tmp_path) == (Checked(ledgers=4, entries=13, problems=0), [])


def test_pages_that_were_being_overwritten_when_the_power_went_are_read_as_they_are(tmp_path: Path) -> None:
    config = IndexConfig(kind=IndexKind.PAGES)
    index = open_index(RealDisk(), tmp_path, config)
    index.put([LedgerRun(1, [0], [11])], [(1, DATA)])
    index.mark_complete()
    index.sync()
    index.put([LedgerRun(1, [1], [12])])
    index._write_back()  # type: ignore[attr-defined]  # and not sealed
    index.close()
    view = open_view(ReadOnlyDisk(), tmp_path)
    assert [list(run.locations) for run in view.runs(1)] == [[11, 12]]
    view.close()


def test_looking_writes_nothing_and_shares_its_lock(tmp_path: Path) -> None:
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
        with pytest.raises(OSError, match=r"looked at|Bad file descriptor"):
            change()
    disk.lock(tmp_path / "LOCK")()  # no bookie was ever here
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
        open_view(disk, tmp_path)
