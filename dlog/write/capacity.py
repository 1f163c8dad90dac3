"""Callers of a log's writer that wait until fewer bytes are in flight.

Inside: the two things that they wait for: records that become durable, and a slow replica. Not inside: the
limits (``writer_machine``), bytes in flight of a ledger (``ledger.handle``).
Always: a caller that waits when the writer stops gets the reason.
"""

from __future__ import annotations

import trio

from dlog.errors import RecordOutcome
from dlog.write.writer_machine import WriterMachine
from dlog.write.writer_state import Phase


class Capacity:
    """Wakes the callers that wait for capacity of one writer."""

    def __init__(self, machine: WriterMachine, bytes_in_flight_max: int) -> None:
        self._machine, self._wake_bytes = machine, bytes_in_flight_max // 2
        self.wait_count = 0
        self._freed, self._waiting = trio.Event(), 0
        self._ledger_waits: set[trio.CancelScope] = set()  # of callers that wait for a slow replica

    def free(self) -> None:
        """See ``writer_machine.Shell.free_capacity``."""
        if self._machine.waiting_bytes <= self._wake_bytes:
            self._freed.set()
            self._freed = trio.Event()

    def release(self) -> None:
        """Wake all callers: the writer has stopped."""
        self._freed.set()
        for scope in self._ledger_waits:
            scope.cancel()

    async def wait(self) -> None:
        """Return when the writer is below its limits; raise the reason if it has stopped."""
        machine = self._machine
        self.wait_count += machine.is_over_limit
        while machine.is_over_limit and machine.stopped is None:
            in_use = machine.in_use
            if in_use is None or machine.is_full or machine.phase not in (Phase.RUNNING, Phase.ROLLING):
                self._waiting += 1
                machine.callers_wait = True
                try:
                    await self._freed.wait()
                finally:
                    self._waiting -= 1
                    machine.callers_wait = self._waiting > 0
            else:
                # Returns also when the ledger fails. Then the phase changes, and a recovery frees capacity.
                with trio.CancelScope() as scope:
                    self._ledger_waits.add(scope)
                    try:
                        await in_use.handle.wait_bytes_in_flight_below(machine.ledger_bytes_max)
                    finally:
                        self._ledger_waits.discard(scope)
        if machine.stopped is not None:
            raise machine.stopped.about(RecordOutcome.NOT_WRITTEN)
