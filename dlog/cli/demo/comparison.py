"""Compares the records of a log with the lines that were to be written.

Line n has the transaction id n. Pure: the caller passes records and gets numbers.

lost        lines without an unchanged record
repeated    records of a line that an earlier record held already
reordered   first records of a line that follow a record of a later line
"""

from __future__ import annotations

from array import array

import attrs

from dlog.cli.demo.lines import fingerprint


@attrs.define(eq=False)
class LineComparison:
    """Takes the records in the order in which they were read."""

    prints: array[int]  # prints[n - 1] is the fingerprint of line n
    records: int = 0
    size_bytes: int = 0
    repeated: int = 0
    reordered: int = 0
    changed: int = 0  # records with another payload than their line, or with a number beyond the last line
    _seen: bytearray = attrs.field(init=False)
    _greatest: int = 0

    def __attrs_post_init__(self) -> None:
        self._seen = bytearray(len(self.prints))

    def take(self, txid: int, payload: bytes) -> None:
        """Take the next record."""
        self.records += 1
        self.size_bytes += len(payload)
        if not 1 <= txid <= len(self.prints) or self.prints[txid - 1] != fingerprint(payload):
            self.changed += 1
            return
        if self._seen[txid - 1]:
            self.repeated += 1
            return
        self._seen[txid - 1] = 1
        if txid < self._greatest:
            self.reordered += 1
        self._greatest = max(self._greatest, txid)

    @property
    def lost(self) -> int:
        """The number of lost lines."""
        return self._seen.count(0)

    def lost_up_to(self, line: int) -> int:
        """The number of lost lines among the first ``line`` lines."""
        return self._seen.count(0, 0, line)

    @property
    def is_good(self) -> bool:
        """True if the log has every line once, unchanged and in order."""
        return not (self.lost or self.repeated or self.reordered or self.changed)
