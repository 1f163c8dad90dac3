"""Reading a whole range of a segment's entries.

Inside: the repeated read, and the number of entries that a backward scan for the last record reads at once.
Not inside: the records in the entries (``segment_reader``).
"""

from __future__ import annotations

from ledger.handle import ReadHandle

SCAN_ENTRIES_FIRST, SCAN_ENTRIES_MAX = 2, 16  # windows of the backward scan for the last record


async def read_entries(handle: ReadHandle, first: int, last: int) -> list[bytes]:
    """All entries from first to last, both included, with as many reads as necessary."""
    entries: list[bytes] = []
    while first + len(entries) <= last:
        entries += await handle.read_payloads(first + len(entries), last)
    return entries
