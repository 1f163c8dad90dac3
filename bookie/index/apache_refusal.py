"""Marks in an index directory that stop Apache's bookie, which would not read our index but deny its entries.

With another ``ledgerStorageClass`` than the files have, Apache's bookie starts with an empty index. It
replies "no such ledger", and a recovery closes ledgers without their entries. It has no check of its own for
that, but it cannot start beside these files:

ledgers/CURRENT, locations/CURRENT   DbLedgerStorage's databases: RocksDB refuses this text in place of the
                                     name of a manifest
dlog/index/<sentence>.idx            Sorted- and InterleavedLedgerStorage take the name of each such file for
                                     a ledger id in hex

A database whose CURRENT is replaced in this way is hidden. ``show_databases`` brings it back.

Inside: the marks. Not inside: which index is on disk (``index_factory``).
Always: each mark is put or removed atomically and durably. Databases of Apache's are kept: their CURRENT
stays as CURRENT.apache.

Source: KeyValueStorageRocksDB.java, IndexPersistenceMgr.java (getActiveLedgers).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from bookie.disk.disk import Disk

DATABASES = ("ledgers", "locations")
_CURRENT, _KEPT = "CURRENT", "CURRENT.apache"
_TEXT = b"This directory has an index of DLog, which DbLedgerStorage cannot read.\n"
_MARKS = ("dlog", "index")
_CHUNKS = "this directory has the chunk index of DLog, which Apache's bookie cannot read.idx"
_ONLY_DATABASES = "this directory has databases that only DbLedgerStorage can read.idx"


def refuse_apache(disk: Disk, index_directory: Path, *, has_page_files: bool) -> None:
    """Stop Apache's bookies that cannot read the index. Blocks; durable on return.

    Args:
        has_page_files: The index is complete and has page files. Then SortedLedgerStorage and
            InterleavedLedgerStorage may start.
    """
    if not has_page_files:
        _put_page_mark(disk, index_directory, _CHUNKS)
    hide_databases(disk, index_directory)
    _remove_page_marks(disk, index_directory, *(() if has_page_files else (_ONLY_DATABASES,)))


def hide_databases(disk: Disk, directory: Path) -> None:
    """Keep RocksDB from opening databases that are, or would be made, in this directory. Durable."""
    for name in DATABASES:
        current = directory / name / _CURRENT
        found = _content(disk, current)
        if found == _TEXT:
            continue
        if found is None:
            disk.make_directory(current.parent)
        else:
            with contextlib.suppress(FileExistsError):
                disk.link(current, current.with_name(_KEPT))
        disk.replace_file(current, _TEXT)


def show_databases(disk: Disk, index_directory: Path) -> None:
    """Let Apache's DbLedgerStorage open the hidden databases, and no other storage class. Durable.

    ``ledgers`` last: one hidden database is enough to stop Apache's bookie.
    """
    _put_page_mark(disk, index_directory, _ONLY_DATABASES)
    for name in reversed(DATABASES):
        current = index_directory / name / _CURRENT
        if _content(disk, current) == _TEXT:
            disk.rename(current.with_name(_KEPT), current)
            disk.sync_directory(current.parent)
    _remove_page_marks(disk, index_directory, _CHUNKS)


def shows_databases(disk: Disk, index_directory: Path) -> bool:
    """True if Apache's DbLedgerStorage has databases in the directory, and none of them is hidden."""
    found = [_content(disk, index_directory / name / _CURRENT) for name in DATABASES]
    return _TEXT not in found and any(one is not None for one in found)


def stops_page_files(disk: Disk, index_directory: Path) -> bool:
    """True if Apache's SortedLedgerStorage cannot start in the directory."""
    return bool(_page_marks(disk, index_directory))


def _page_marks(disk: Disk, index_directory: Path) -> list[Path]:
    directory = index_directory.joinpath(*_MARKS)
    return [directory / name for name in (_CHUNKS, _ONLY_DATABASES) if _exists(disk, directory / name)]


def _put_page_mark(disk: Disk, index_directory: Path, name: str) -> None:
    mark = index_directory.joinpath(*_MARKS, name)
    if not _exists(disk, mark):
        disk.make_directory(mark.parent)
        disk.replace_file(mark, b"")


def _remove_page_marks(disk: Disk, index_directory: Path, *names: str) -> None:
    for mark in _page_marks(disk, index_directory):
        if not names or mark.name in names:
            disk.unlink(mark)
            disk.sync_directory(mark.parent)


def _content(disk: Disk, path: Path) -> bytes | None:
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return None


def _exists(disk: Disk, path: Path) -> bool:
    try:
        disk.open(path).close()
    except FileNotFoundError:
        return False
    return True
