"""Which entry logs an index references. This decides where the content of a log alone is not conclusive.

Inside: scans of an index. Not inside: the decisions of garbage collection (``log_collector``).
Always: a scan sees every entry that was indexed before it began and was not moved or deleted meanwhile.

After a crash a log may end anywhere: in a torn record, in zeros, or in older bytes of the disk. A log with a
damaged end looks the same. The index tells them apart: an entry is synced before the index references it. So
if the index references an entry in the unreadable part, that part is damaged. Also, a flipped bit in a length
may make a scan of a log skip an entry. So no log is deleted while the index references it, even if a scan
finds no live entry in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from bookie.index.entry_index import EntryIndex


def greatest_log_id(index: EntryIndex) -> int:
    """The greatest log id that the index references; -1 if it references none."""
    greatest = -1
    for ledger_id, _ in index.ledgers():
        for entry_range in index.ranges(ledger_id):
            greatest = max(greatest, max(entry_range.locations) >> 32)
    return greatest


def referenced_logs(
    index: EntryIndex, offsets: Mapping[int, int], ledger_ids: Iterable[int] | None = None
) -> set[int]:
    """Those of the logs (id -> offset) in which the index references an entry at or after the offset.

    ``ledger_ids``: the ledgers to scan; None: all, which reads the whole index.
    """
    found: set[int] = set()
    if not offsets:
        return found
    least, greatest = min(offsets) << 32, (max(offsets) + 1) << 32
    for ledger_id in [ledger for ledger, _ in index.ledgers()] if ledger_ids is None else ledger_ids:
        for entry_range in index.ranges(ledger_id):
            if max(entry_range.locations) < least or min(entry_range.locations) >= greatest:
                continue
            for location in entry_range.locations:
                offset = offsets.get(location >> 32)
                if offset is not None and location & 0xFFFF_FFFF >= offset:
                    found.add(location >> 32)
    return found


@attrs.frozen
class LastNamed:
    """The entry of a log with the greatest offset that the index references."""

    offset: int  # of its body
    ledger_id: int
    entry_id: int


def last_named(index: EntryIndex, log_ids: Collection[int]) -> dict[int, LastNamed]:
    """The last referenced entry of each of the logs; none for a log that the index does not reference.

    Reads the whole index.
    """
    found: dict[int, LastNamed] = {}
    if not log_ids:
        return found
    least, greatest = min(log_ids) << 32, (max(log_ids) + 1) << 32
    for ledger_id, _ in index.ledgers():
        for entry_range in index.ranges(ledger_id):
            if max(entry_range.locations) < least or min(entry_range.locations) >= greatest:
                continue
            for entry_id, location in zip(entry_range.entry_ids, entry_range.locations, strict=True):
                log_id, offset = location >> 32, location & 0xFFFF_FFFF
                if log_id in log_ids and (log_id not in found or found[log_id].offset < offset):
                    found[log_id] = LastNamed(offset, ledger_id, entry_id)
    return found
