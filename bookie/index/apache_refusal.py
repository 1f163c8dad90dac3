"""Marks in an index directory that stop Apache's bookie, which would not read our index but deny its entries.

With another ``ledgerStorageClass`` than the files have, Apache's bookie starts with an empty index. It
replies "no such ledger", and a recovery closes ledgers without their entries. It has no check of its own for
that, but it cannot start beside these files:

ledgers/CURRENT, locations/CURRENT   DbLedgerStorage's databases: RocksDB refuses this text in place of the
                                     name of a manifest
dlog/index/<sentence>.idx            Sorted- and InterleavedLedgerStorage take the name of each such file for
                                     a ledger id in hex

Inside: the marks. Not inside: which index is on disk (``index_factory``).
Always: each mark is put or removed atomically and durably. Databases of Apache's are kept: their CURRENT
stays as CURRENT.apache.

Source: KeyValueStorageRocksDB.java, IndexPersistenceMgr.java (getActiveLedgers).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from bookie.disk.disk import Disk

_DATABASES = ("ledgers", "locations")
_CURRENT, _KEPT = "CURRENT", "CURRENT.apache"
_TEXT = b"This directory has an index of DLog, which DbLedgerStorage cannot read.\n"
_MARKS = ("dlog", "index")
_NAME = "this directory has the chunk index of DLog, which Apache's bookie cannot read.idx"


def refuse_apache(disk: Disk, index_directory: Path, *, has_page_files: bool) -> None:
    """Stop Apache's bookies that cannot read the index. Blocks; durable on return.

    Args:
        has_page_files: The index is complete and has page files. Then SortedLedgerStorage and
            InterleavedLedgerStorage may start.
    """
    page_mark = index_directory.joinpath(*_MARKS, _NAME)
    has_page_mark = stops_page_files(disk, index_directory)
    if not has_page_files and not has_page_mark:
        disk.make_directory(page_mark.parent)
        disk.replace_file(page_mark, b"")
    for name in _DATABASES:
        directory = index_directory / name
        current = directory / _CURRENT
        try:
            found = disk.read_file(current)
        except FileNotFoundError:
            disk.make_directory(directory)
            found = None
        if found == _TEXT:
            continue
        if found is not None:
            with contextlib.suppress(FileExistsError):
                disk.link(current, directory / _KEPT)
        disk.replace_file(current, _TEXT)
    if has_page_files and has_page_mark:
        disk.unlink(page_mark)
        disk.sync_directory(page_mark.parent)


def stops_page_files(disk: Disk, index_directory: Path) -> bool:
    """True if Apache's SortedLedgerStorage cannot start in the directory."""
    return _exists(disk, index_directory.joinpath(*_MARKS, _NAME))


def _exists(disk: Disk, path: Path) -> bool:
    try:
        disk.open(path).close()
    except FileNotFoundError:
        return False
    return True
