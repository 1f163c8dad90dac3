"""Which adds a bookie accepts now.

Inside: the value that ``DiskWatch`` changes, and that sessions read for each chunk. Not inside: the reasons.
"""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Rights:
    """See the module."""

    writable: bool = True
    takes_records: bool = True  # False: not even a fence has space in the journal
    high_priority_writable: bool = True  # accept adds of recoveries while the bookie is read-only

    def hold(self, *, takes_records: bool) -> None:
        """For a storage that was opened on a full disk; ``takes_records``: its journal has some space."""
        self.writable = False
        self.takes_records = self.high_priority_writable = takes_records
