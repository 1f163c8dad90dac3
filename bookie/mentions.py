"""Which entry logs an index mentions: asked where nothing else can tell, since it means reading all of it.

Inside: two walks over an index. Not inside: what follows from them.
Always: a walk sees every entry that was indexed before it began and not moved or deleted meanwhile.

A log that a crash has left ends in a torn record or in zeros. So does a log whose last part is damaged. The
entries that an index mentions were synced before it did: if it mentions one in that part, it is damage.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookie.index import EntryIndex


def greatest_log_id(index: EntryIndex) -> int:
    """The greatest id of any log the index mentions; -1: none."""
    greatest = -1
    for ledger_id, _ in index.ledgers():
        for run in index.runs(ledger_id):
            greatest = max(greatest, max(run.locations) >> 32)
    return greatest


def logs_mentioned_from(index: EntryIndex, offsets: Mapping[int, int]) -> set[int]:
    """Those of the logs (id -> offset) in which the index mentions an entry at or behind the offset."""
    found: set[int] = set()
    for ledger_id, _ in index.ledgers():
        for run in index.runs(ledger_id):
            for location in run.locations:
                offset = offsets.get(location >> 32)
                if offset is not None and location & 0xFFFF_FFFF >= offset:
                    found.add(location >> 32)
    return found
