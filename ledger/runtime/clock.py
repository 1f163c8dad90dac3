"""The system's clock, for dates that are stored or shown.

Inside: ``wall_ms``, the only reader of this clock. Not inside: timeouts and pauses, which go by the clock of
the event loop.
Always: the clock may go backwards, so no caller relies on its order.
"""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
