"""How the readers of embedded stores wait: the store has no call that waits for another process's commit."""

from __future__ import annotations

import time

POLL_S = 0.0005  # between two looks for new records
READ_RECORDS = 8192


def pause() -> None:
    """Sleep until the next look."""
    time.sleep(POLL_S)
