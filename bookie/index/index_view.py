"""A read-only view of an index: ours of either kind, or the index files or databases of an Apache bookie.

Inside: detecting the kind, the view of Apache's files. Not inside: the indexes; Apache's databases
(``apache_databases``); the disk that refuses writes (``disk.read_only``).
Always: no file is changed. The kind is read from the index itself, not from the configuration.

Source: FileInfo.java, IndexPersistenceMgr.java for Apache's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from bookie.disk.disk import Disk
from bookie.errors import FormatError, IndexMissingError
from bookie.index.apache_databases import ApacheDatabases
from bookie.index.apache_refusal import shows_databases
from bookie.index.entry_index import EntryRange
from bookie.index.index_factory import INDEX_DIRECTORY, open_existing_index
from bookie.index.page_file import (
    PAGE_FILE_HEADER_BYTES,
    decode_page_file_header,
    page_file_ledger_id,
    page_file_path,
    page_file_ranges,
)
from bookie.ledger_record import LedgerData


class IndexView(Protocol):
    """The inspectable part of an index; each ``EntryIndex`` has it."""

    def ledgers(self) -> Iterator[tuple[int, LedgerData]]: ...
    def ranges(self, ledger_id: int) -> Iterator[EntryRange]: ...
    def close(self) -> None: ...


class IndexBuild(IndexView, Protocol):
    """The part of an index that a rebuild needs; each ``EntryIndex`` has it."""

    def put(self, ranges: Iterable[EntryRange], ledgers: Iterable[tuple[int, LedgerData]] = ()) -> None: ...
    def sync(self) -> None: ...


class PageFilesView:
    """Index files without a key-value map: no checksums, and ledger data from the headers only."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory

    def ledgers(self) -> Iterator[tuple[int, LedgerData]]:
        """As ``EntryIndex.ledgers``. LAC and last entry id are unknown, and given as -1."""
        for high in _hex_names(self._disk, self._directory):
            for low in _hex_names(self._disk, self._directory / high):
                below = self._directory / high / low
                ids = map(page_file_ledger_id, self._disk.list_directory(below))
                for ledger_id in sorted(one for one in ids if one is not None):
                    yield ledger_id, self._data(ledger_id)

    def ranges(self, ledger_id: int) -> Iterator[EntryRange]:
        """As ``EntryIndex.ranges``."""
        file = self._disk.open(page_file_path(self._directory, ledger_id))
        try:
            yield from page_file_ranges(file.pread, ledger_id)
        finally:
            file.close()

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _data(self, ledger_id: int) -> LedgerData:
        path = page_file_path(self._directory, ledger_id)
        file = self._disk.open(path)
        try:
            header = decode_page_file_header(file.pread(PAGE_FILE_HEADER_BYTES, 0))
        except FormatError as exc:
            raise FormatError(f"{path}: {exc}") from exc
        finally:
            file.close()
        return LedgerData(header.master_key, header.fenced, header.explicit_lac, -1, -1)


def open_index_view(disk: Disk, directory: Path) -> IndexView:
    """Open the index of a directory for reading; blocks.

    Raises:
        IndexMissingError: There is no complete index.
        StartError, OSError: It cannot be opened.
    """
    names = disk.list_directory(directory)
    index = open_existing_index(disk, directory) if INDEX_DIRECTORY in names else None
    if index is not None:
        return index
    if shows_databases(disk, directory):
        return ApacheDatabases(disk, directory)
    if any(True for high in _hex_names(disk, directory) for _ in _hex_names(disk, directory / high)):
        return PageFilesView(disk, directory)
    raise IndexMissingError(f"{directory}: there is no complete index")


def _hex_names(disk: Disk, directory: Path) -> list[str]:
    wanted = {f"{number:x}" for number in range(256)}
    return sorted(wanted.intersection(disk.list_directory(directory)), key=lambda name: int(name, 16))
