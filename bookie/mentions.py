"""Which entry logs an index mentions: asked where the logs themselves cannot be believed.

Inside: walks over an index. Not inside: what follows from them.
Always: a walk sees every entry that was indexed before it began and not moved or deleted meanwhile.

A log that a crash has left ends anywhere, in a torn record, in zeros, in what was there before. So does a
log whose last part is damaged. But the entries that an index mentions were synced before it did: if it
mentions one in that part, it is damage. And a flipped bit in a length may make a scan step over an entry
without noticing. Hence nothing is deleted because a scan has found nothing more in it, if the index still
points there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bookie.index import EntryIndex


def greatest_log_id(index: EntryIndex) -> int:
    """The greatest id of any log the index mentions; -1: none."""
    greatest = -1
    for ledger_id, _ in index.ledgers():
        for run in index.runs(ledger_id):
            greatest = max(greatest, max(run.locations) >> 32)
    return greatest


def logs_mentioned(
    index: EntryIndex, offsets: Mapping[int, int], ledger_ids: Iterable[int] | None = None
) -> set[int]:
    """Those of the logs (id -> offset) in which the index mentions an entry at or behind the offset.

    ``ledger_ids``: the ledgers to look through; None for all, which means reading the whole index.
    """
    found: set[int] = set()
    if not offsets:
        return found
    least, greatest = min(offsets) << 32, (max(offsets) + 1) << 32
    for ledger_id in [ledger for ledger, _ in index.ledgers()] if ledger_ids is None else ledger_ids:
        for run in index.runs(ledger_id):
            if max(run.locations) < least or min(run.locations) >= greatest:
                continue
            for location in run.locations:
                offset = offsets.get(location >> 32)
                if offset is not None and location & 0xFFFF_FFFF >= offset:
                    found.add(location >> 32)
    return found
