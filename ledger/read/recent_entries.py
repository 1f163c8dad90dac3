"""The entries that came with the replies to long polls, until they are confirmed and read.

A long poll is answered with the bookie's last entry, which proves the LAC before it. The next long poll
usually proves that this entry is confirmed too. Then it is here already, and needs no read.

Inside: keeping a few entries, handing out consecutive ones. Not inside: which entries are confirmed: the
caller takes none beyond the LAC (``handle``).
Always: an entry is kept as its bookie sent it, with verified digest and ids; a writer never gives an entry id
other bytes; entries and bytes kept are bounded.

Source: our own.
"""

from __future__ import annotations

from ledger.digest import Entry

ENTRIES_MAX = 4
ENTRY_BYTES_MAX = 65_536  # a longer entry is read again: a process may have thousands of readers


class RecentEntries:
    """See the module."""

    def __init__(self) -> None:
        self._payloads: dict[int, bytes] = {}  # by entry id, in ascending order

    def __repr__(self) -> str:
        return f"<RecentEntries {list(self._payloads)}>"

    def add(self, entry: Entry) -> None:
        """Keep an entry that was verified. It need not be confirmed."""
        payloads = self._payloads
        if len(entry.payload) > ENTRY_BYTES_MAX or (payloads and entry.entry_id <= next(reversed(payloads))):
            return
        if len(payloads) >= ENTRIES_MAX:
            del payloads[next(iter(payloads))]
        payloads[entry.entry_id] = entry.payload

    def take(self, first: int, last: int) -> list[bytes]:
        """The payloads of consecutive entries from ``first`` on, at most to ``last``; empty if unknown.

        Entries up to the last one returned, or up to ``first`` if it is unknown, are dropped: a reader reads
        forward.
        """
        payloads, taken = self._payloads, []
        if not payloads:
            return []
        stop = first
        while stop <= last and (payload := payloads.get(stop)) is not None:
            taken.append(payload)
            stop += 1
        for entry_id in [each for each in payloads if each < max(stop, first + 1)]:
            del payloads[entry_id]
        return taken
