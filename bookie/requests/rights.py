"""Which adds a bookie accepts now.

Inside: the value that ``DiskWatch`` changes, and that sessions read for each chunk. Not inside: the reasons.
"""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Rights:
    """See the module."""

    writable: bool = True
    high_priority_writable: bool = True  # accept adds of recoveries while the bookie is read-only
