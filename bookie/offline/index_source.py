"""What a rebuild keeps of the old index of a ledger directory: keys, fences, explicit LACs, locations.

Inside: which index was written last, ours or Apache's, and merging their ledger data. Not inside: the new
index (``index_rebuild``).
Always: no old index is changed. An index that another bookie has written beside is not enough: it lacks that
bookie's ledgers, and they would be taken for deleted ones.

Source: LedgersIndexRebuildOp.java; docs/storage-format.md 5.6.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import attrs

from bookie.disk.disk import Disk
from bookie.errors import BookieServerError, IndexMissingError, StartError
from bookie.index.apache_databases import ApacheDatabases
from bookie.index.apache_refusal import shows_databases, stops_page_files
from bookie.index.index_factory import INDEX_DIRECTORY, open_existing_index, read_ledger_data
from bookie.index.index_view import IndexView, PageFilesView
from bookie.ledger_record import UNKNOWN_KEY, LedgerData, lac_of_packet
from bookie.offline.index_places import READY, REBUILDING
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)


@attrs.frozen(kw_only=True)
class IndexSource:
    """The old index of one ledger directory."""

    ledgers: dict[int, LedgerData] | None = None  # the data of all ledgers; None: they are lost
    has_databases: bool = False  # Apache's DbLedgerStorage has run last
    unlisted: frozenset[int] = frozenset()  # ledgers with locations and without data, in its databases
    is_uncertain: bool = False  # Apache's bookie has noted that entries may be missing


def read_source(
    disk: Disk, index_directory: Path, *, is_foreign: bool, fences_unreadable: bool
) -> IndexSource:
    """Read the ledger data of the old index, which is of any kind. Blocks.

    Args:
        is_foreign: Apache's bookie has run last. Then its index files count, too.
        fences_unreadable: If Apache's databases cannot be read, their data are lost. Otherwise
            ``StartError``.
    """
    ours: dict[int, LedgerData] | None = None
    names = disk.list_directory(index_directory)
    try:
        if INDEX_DIRECTORY in names:
            ours = read_ledger_data(disk, index_directory)
    except (BookieServerError, OSError) as exc:
        return _lost(index_directory, exc)
    if shows_databases(disk, index_directory):
        try:
            return _read_databases(disk, index_directory, ours or {})
        except (BookieServerError, OSError) as exc:
            if fences_unreadable:
                return _lost(index_directory, exc)
            raise StartError(
                f"{index_directory}: the databases of Apache's DbLedgerStorage cannot be read: {exc}. Nothing"
                " was changed. Bring back `ledgers` and `locations`, or let `dlog bookie rebuild-index` take"
                " the entries from the entry logs; that fences every ledger"
            ) from exc
    has_begun = READY in names or (
        ours is None and REBUILDING in names and stops_page_files(disk, index_directory)
    )
    if not is_foreign or has_begun:  # an exchange that has begun has moved a part of the page files
        return IndexSource(ledgers=ours)
    try:
        theirs = dict(PageFilesView(disk, index_directory).ledgers())
    except (BookieServerError, OSError) as exc:
        return _lost(index_directory, exc)
    if theirs:
        return IndexSource(ledgers=_merged(ours or {}, theirs))
    # Without files of Apache's, and with nothing under construction, ours is complete: an exchange of several
    # directories was interrupted after this one.
    return IndexSource(ledgers=None if REBUILDING in names else ours)


@contextlib.contextmanager
def open_source(
    disk: Disk, index_directory: Path, source: IndexSource, *, is_foreign: bool
) -> Iterator[tuple[IndexView, list[int]]]:
    """The locations of the index that was written last, and its ledgers."""
    view: IndexView | None
    if source.has_databases:
        view = ApacheDatabases(disk, index_directory)
    elif is_foreign:
        view = PageFilesView(disk, index_directory)
    else:
        view = open_existing_index(disk, index_directory)
        if view is None:
            raise IndexMissingError(f"{index_directory}: the index was there a moment ago, and is gone")
    try:
        yield view, sorted({ledger_id for ledger_id, _ in view.ledgers()} | source.unlisted)
    finally:
        view.close()


def _read_databases(disk: Disk, index_directory: Path, ours: dict[int, LedgerData]) -> IndexSource:
    databases = ApacheDatabases(disk, index_directory)
    try:
        ledgers = _merged(ours, dict(databases.ledgers()))
        unlisted = frozenset(one for one in databases.ledgers_with_entries() if one not in ledgers)
        is_uncertain = databases.needs_integrity_check()
    finally:
        databases.close()
    if unlisted:
        # Apache's bookie has stopped within a flush, or ``ledgers`` is damaged. The replay brings the keys.
        log.warning("%s: %d ledgers have entries and no data, and are fenced", index_directory, len(unlisted))
    ledgers.update(dict.fromkeys(unlisted, LedgerData(UNKNOWN_KEY, True, None, -1, -1)))
    return IndexSource(ledgers=ledgers, has_databases=True, unlisted=unlisted, is_uncertain=is_uncertain)


def _lost(index_directory: Path, reason: Exception) -> IndexSource:
    log.warning("%s: the old index cannot be read: %s", index_directory, reason)
    return IndexSource()


def _merged(ours: dict[int, LedgerData], theirs: dict[int, LedgerData]) -> dict[int, LedgerData]:
    """The data from both indexes: a fence counts if either has it, and so does limbo."""
    merged = dict(ours)
    for ledger_id, data in theirs.items():
        known = ours.get(ledger_id, data)
        lac = -1  # Apache's bookie may have added entries since; the last one has it
        if data.explicit_lac is not None:
            lac = lac_of_packet(data.explicit_lac)
        merged[ledger_id] = attrs.evolve(
            known,
            master_key=data.master_key or known.master_key,
            fenced=data.fenced or known.fenced,
            limbo=data.limbo or known.limbo,
            explicit_lac=data.explicit_lac or known.explicit_lac,
            lac=max(known.lac, lac),
        )
    return merged
