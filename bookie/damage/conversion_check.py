"""Compares a new index with the one it replaces, and checks each of its locations in the entry logs.

Inside: the comparison; the old index's choice among several copies of an entry. Not inside: building the new
index (``rebuild``), the check of one location (``consistency_check``).
Always: an old index is replaced only if the new one has each of its entries, at a place that holds this
entry. No old index is changed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from bookie.damage.consistency_check import check_directory
from bookie.disk.disk import Disk
from bookie.errors import FormatError, StartError
from bookie.index.entry_index import EntryRange
from bookie.index.index_view import IndexBuild, IndexView

_SHOWN_MAX = 3  # problems in a message
_REMEDY = (
    ". Nothing was changed. `dlog bookie check` lists all such entries. Bring the lost files back, or let"
    " `dlog bookie rebuild-index --accept-damage` continue without them: it puts the ledgers in limbo"
)


def check_conversion(
    disk: Disk, directory: Path, old: IndexView, new: IndexBuild, ledger_ids: Iterable[int]
) -> int:
    """Take the old locations over, then check the new index; returns its number of entries. Blocks.

    The new index was built from the entry logs. An entry may have several copies there, and the old index
    says which one counts: a copy made by compaction may be in a later log than a copy added again.

    Args:
        ledger_ids: The ledgers of the old index that are compared.

    Raises:
        StartError: The old index cannot be read, the new one lacks an entry, or a location does not hold its
            entry. The caller drops the new index.
    """
    for ledger_id in ledger_ids:
        _take_locations(directory, old, new, ledger_id)
    problems: list[str] = []
    checked = check_directory(
        disk, directory, new, on_problem=problems.append, on_progress=lambda entries: None
    )
    if problems:
        shown = "; ".join(problems[:_SHOWN_MAX])
        raise StartError(
            f"{directory}: {checked.problems} of {checked.entries} indexed entries are not in the entry logs:"
            f" {shown}{_REMEDY}"
        )
    return checked.entries


def _take_locations(directory: Path, old: IndexView, new: IndexBuild, ledger_id: int) -> None:
    entry_ids, locations = array("q"), array("q")
    found = _entries(new, ledger_id)
    here, place = -1, 0
    for entry_id, location in _old_entries(directory, old, ledger_id):
        while here < entry_id:
            here, place = next(found, (1 << 63, 0))
        if here != entry_id:
            raise StartError(
                f"{directory}: the old index has entry {ledger_id}:{entry_id} at {location >> 32:x}.log,"
                f" offset {location & 0xFFFFFFFF}, and no entry log contains it{_REMEDY}"
            )
        if place != location:
            entry_ids.append(entry_id)
            locations.append(location)
    if entry_ids:
        new.put([EntryRange(ledger_id, entry_ids, locations)])


def _old_entries(directory: Path, old: IndexView, ledger_id: int) -> Iterator[tuple[int, int]]:
    try:
        yield from _entries(old, ledger_id)
    except (FormatError, OSError) as exc:
        raise StartError(f"{directory}: the old index cannot be read: {exc}{_REMEDY}") from exc


def _entries(index: IndexView, ledger_id: int) -> Iterator[tuple[int, int]]:
    for one in index.ranges(ledger_id):
        yield from zip(one.entry_ids, one.locations, strict=True)
