"""How long the lock of a ledger is kept after an attempt that failed.

The pause grows with each failure of the ledger, so that workers do not copy a hopeless ledger again and
again.

Source: ReplicationWorker.java (getLockReleaseDelay); docs/autorecovery.md.
"""

from __future__ import annotations

STEPS = 5  # the full pause comes after this many failures
LEDGERS_MAX = 10_000  # remembered; the oldest are forgotten first


class FailureBackoff:
    """The failures of the ledgers that one worker tried."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._failures: dict[int, int] = {}

    def on_failed(self, ledger_id: int) -> float:
        """Count a failure; return how long to keep the lock, in seconds: 1/32 of the pause, doubled each
        time."""
        count = self._failures.pop(ledger_id, 0)
        self._failures[ledger_id] = count + 1
        if len(self._failures) > LEDGERS_MAX:
            del self._failures[next(iter(self._failures))]
        return self._pause_s if count >= STEPS else self._pause_s * 2**count / 2**STEPS

    def on_healed(self, ledger_id: int) -> None:
        """Forget the failures of a ledger."""
        self._failures.pop(ledger_id, None)
