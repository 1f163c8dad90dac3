"""The files of the page index: a ledger of its own for each of many strangers is synced with the others."""

# covers: bookie/index/page_keys.py

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bookie.disk.disk import File
from bookie.disk.real_disk import RealDisk, RealFile
from bookie.index.entry_index import EntryRange
from bookie.index.index_factory import IndexConfig, IndexKind, open_index
from bookie.index.page_cache import PageIndexConfig
from bookie.index.page_file import (
    PAGE_FILE_HEADER_BYTES,
    PageFileHeader,
    decode_page_file_header,
    page_file_path,
)
from bookie.index.page_files import PageFiles
from bookie.ledger_record import LedgerData

LEDGER_IDS = [7919 * number for number in range(200)]  # nearly each in a directory of its own
HEADER = bytes(PAGE_FILE_HEADER_BYTES)


class CountingDisk(RealDisk):
    """Counts the syncs that run alone, and keeps what was synced together."""

    def __init__(self) -> None:
        super().__init__()
        self.is_together = False
        self.alone = 0
        self.together = 0
        self.directories: set[Path] = set()

    def sync_all(self, files: Sequence[File], directories: Sequence[Path]) -> None:
        self.is_together = True
        self.together += 1
        super().sync_all(files, directories)
        self.is_together = False

    def sync_directory(self, path: Path) -> None:
        self.alone += not self.is_together
        self.directories.add(path)
        super().sync_directory(path)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> CountingDisk:
    counting = CountingDisk()
    sync = RealFile.sync

    def count(file: RealFile) -> None:
        counting.alone += not counting.is_together
        sync(file)

    monkeypatch.setattr(RealFile, "sync", count)
    return counting


def write_all(files: PageFiles) -> None:
    for ledger_id in LEDGER_IDS:
        files.write(ledger_id, [(len(HEADER), [bytearray(b"page")])], HEADER, has_pages=lambda: False)
    files.sync()


@pytest.mark.slow
@pytest.mark.parametrize("directories_exist", [False, True])
def test_many_new_files_are_synced_together_with_every_name_above_them(
    tmp_path: Path, disk: CountingDisk, directories_exist: bool
) -> None:
    """A killed process may have made the directories, and not synced their names."""
    if directories_exist:
        for ledger_id in LEDGER_IDS:
            page_file_path(tmp_path, ledger_id).parent.mkdir(parents=True, exist_ok=True)
    files = PageFiles(disk, tmp_path, open_files_max=50)
    write_all(files)
    files.close()
    assert disk.alone == 0
    assert disk.together <= 2 + len(LEDGER_IDS) // 50
    for ledger_id in LEDGER_IDS:
        path = page_file_path(tmp_path, ledger_id)
        assert path.read_bytes() == HEADER + b"page"
        assert {path.parent, path.parent.parent, tmp_path} <= disk.directories


def test_a_file_is_synced_before_it_is_closed_for_another(
    tmp_path: Path, disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PageFiles(disk, tmp_path, open_files_max=2)
    synced: list[Path] = []
    sync_all = disk.sync_all

    def keep(some: Sequence[File], directories: Sequence[Path]) -> None:
        synced.extend(file._path for file in some if isinstance(file, RealFile))
        sync_all(some, directories)

    monkeypatch.setattr(disk, "sync_all", keep)
    for ledger_id in (1, 2, 3):
        files.write(ledger_id, [], HEADER, has_pages=lambda: False)
    assert len(files) == 2
    assert page_file_path(tmp_path, 1) in synced
    files.close()


@pytest.mark.slow
def test_more_ledgers_than_pages_in_memory_are_written_and_synced_once(
    tmp_path: Path, disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = PageFiles.write

    def count(files: PageFiles, ledger_id: int, *args: object, **more: object) -> None:
        writes.append(ledger_id)
        write(files, ledger_id, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(PageFiles, "write", count)
    config = IndexConfig(kind=IndexKind.PAGES, pages=PageIndexConfig(pages_max=16, open_files_max=8))
    index = open_index(disk, tmp_path, config)
    data = LedgerData(b"k" * 20, True, None, -1, 0)
    index.put(
        [EntryRange(ledger_id, [0], [1 << 32 | 8]) for ledger_id in LEDGER_IDS],
        [(ledger_id, data) for ledger_id in LEDGER_IDS],
    )
    index.sync()
    index.close()
    assert sorted(writes) == LEDGER_IDS
    for ledger_id in LEDGER_IDS:
        header = page_file_path(tmp_path, ledger_id).read_bytes()[:PAGE_FILE_HEADER_BYTES]
        assert decode_page_file_header(header) == PageFileHeader(b"k" * 20, True, None)


@pytest.mark.slow
def test_deleted_ledgers_leave_no_directory_and_each_removal_is_durable(
    tmp_path: Path, disk: CountingDisk
) -> None:
    config = IndexConfig(kind=IndexKind.PAGES, pages=PageIndexConfig(pages_max=64))
    index = open_index(disk, tmp_path, config)
    index.put([EntryRange(ledger_id, [0], [ledger_id + 1]) for ledger_id in LEDGER_IDS])
    index.sync()
    kept = LEDGER_IDS[3]
    neighbours = [kept + (1 << 16), LEDGER_IDS[5] + (1 << 16)]  # each in a directory with another one
    index.put([EntryRange(ledger_id, [0], [5]) for ledger_id in neighbours])
    index.sync()
    disk.directories.clear()
    for ledger_id in LEDGER_IDS:
        if ledger_id != kept:
            index.delete_ledger(ledger_id)
    for ledger_id in neighbours:
        index.delete_ledger(ledger_id)
    index.sync()
    left = page_file_path(tmp_path, kept)
    assert [path for path in tmp_path.rglob("*") if "index" not in path.parts] == [
        left.parent.parent,
        left.parent,
        left,
    ]
    assert tmp_path in disk.directories
    assert list(index.locate(kept, 0)) == [kept + 1]
    index.put([EntryRange(LEDGER_IDS[9], [0], [77])])  # in a directory that was removed
    index.sync()
    assert list(index.locate(LEDGER_IDS[9], 0)) == [77]
    index.close()
