"""How a writer is, for those who watch it.

Inside: values. Not inside: what they are made of (``log_writer``), the states of the machine
(``writer_state``).

Source: our own.
"""

from __future__ import annotations

import enum

import attrs


class WriterState(enum.Enum):
    """The states of a writer: each says what it does with a record that it gets now."""

    OPEN = "open"
    """It is written at once."""
    RECOVERING = "recovering"
    """It is taken, and written when the next segment has begun: the one in use failed, or the log moved."""
    REOPENING = "reopening"
    """``append`` waits, and ``submit`` refuses it: the writer has stopped and takes the log again."""
    FAILED = "failed"
    """It is refused; ``LogWriter.failure`` says why. ``reopen`` may help."""
    CLOSING = "closing"
    """It is refused; those that were taken are being written."""
    CLOSED = "closed"
    """It is refused."""


# Of several writers that are one object, the last in this order says how it is.
WORST_LAST = (
    WriterState.OPEN,
    WriterState.CLOSED,
    WriterState.CLOSING,
    WriterState.RECOVERING,
    WriterState.REOPENING,
    WriterState.FAILED,
)


@attrs.frozen
class WriterHealth:
    """A writer at one moment."""

    log: str
    state: WriterState
    oldest_pending_s: float
    """The age of the oldest record that is neither durable nor failed; 0.0 without one."""
    bytes_in_flight: int
    reason: str | None
    """Why it stopped last; None if it is writing."""
