"""What a log gave back, compared with what was to be written: lost, repeated, reordered.

Line n was written with transaction id n. Pure: records are handed in, numbers come out.

lost        lines of which no unchanged record was read
repeated    records whose line had been read before
reordered   first records of a line that came after a later line's
"""

from __future__ import annotations

from array import array

import attrs

from dlog.cli.demo.lines import fingerprint


@attrs.define(eq=False)
class Comparison:
    """Takes the records in the order in which they were read."""

    prints: array[int]  # of line n at n - 1
    records: int = 0
    size_bytes: int = 0
    repeated: int = 0
    reordered: int = 0
    changed: int = 0  # records that are no line's: another payload, or a number beyond the last
    _seen: bytearray = attrs.field(init=False)
    _greatest: int = 0

    def __attrs_post_init__(self) -> None:
        self._seen = bytearray(len(self.prints))

    def take(self, txid: int, payload: bytes) -> None:
        """The next record."""
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
        """Lines that were not read."""
        return self._seen.count(0)

    def lost_up_to(self, line: int) -> int:
        """Lines that were not read among the first ``line`` ones."""
        return self._seen.count(0, 0, line)

    @property
    def is_good(self) -> bool:
        """Every line once, unchanged, in order."""
        return not (self.lost or self.repeated or self.reordered or self.changed)
