"""An index for those who only look: ours of either kind, or the bare files that an Apache bookie left.

Inside: finding out which it is, the view of bare files. Not inside: the indexes; the disk that refuses writes
(``disk_read_only``).
Always: nothing is changed; which kind it is says the index itself, not a configuration.

Source: FileInfo.java, IndexPersistenceMgr.java for Apache's files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bookie.disk import Disk
from bookie.errors import FormatError, IndexMissingError
from bookie.index import LedgerRun
from bookie.index_kinds import INDEX_DIRECTORY, stored_index
from bookie.ledgers import LedgerData
from bookie.page_file import (
    PAGE_FILE_HEADER_BYTES,
    decode_page_file_header,
    page_file_ledger_id,
    page_file_path,
    page_file_runs,
)


class IndexView(Protocol):
    """What can be seen of an index; ``EntryIndex`` is one."""

    def ledgers(self) -> Iterator[tuple[int, LedgerData]]: ...
    def runs(self, ledger_id: int) -> Iterator[LedgerRun]: ...
    def close(self) -> None: ...


class BareFiles:
    """Index files without anything beside them: no checksums, and what the headers say of ledgers."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory

    def ledgers(self) -> Iterator[tuple[int, LedgerData]]:
        """As ``EntryIndex.ledgers``; LAC and last entry are unknown."""
        for high in _hex_names(self._disk, self._directory):
            for low in _hex_names(self._disk, self._directory / high):
                below = self._directory / high / low
                ids = map(page_file_ledger_id, self._disk.list_directory(below))
                for ledger_id in sorted(one for one in ids if one is not None):
                    yield ledger_id, self._data(ledger_id)

    def runs(self, ledger_id: int) -> Iterator[LedgerRun]:
        """As ``EntryIndex.runs``."""
        file = self._disk.open(page_file_path(self._directory, ledger_id))
        try:
            yield from page_file_runs(file.pread, ledger_id)
        finally:
            file.close()

    def close(self) -> None:
        """Nothing is open."""

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


def open_view(disk: Disk, directory: Path) -> IndexView:
    """What there is in an index directory; blocks.

    Raises:
        IndexMissingError: There is no index.
        StartError, OSError: It cannot be opened.
    """
    names = disk.list_directory(directory)
    index = stored_index(disk, directory) if INDEX_DIRECTORY in names else None
    if index is not None:
        return index
    if any(True for high in _hex_names(disk, directory) for _ in _hex_names(disk, directory / high)):
        return BareFiles(disk, directory)
    raise IndexMissingError(f"{directory}: there is no complete index")


def _hex_names(disk: Disk, directory: Path) -> list[str]:
    wanted = {f"{number:x}" for number in range(256)}
    return sorted(wanted.intersection(disk.list_directory(directory)), key=lambda name: int(name, 16))
