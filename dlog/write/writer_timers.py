"""What a log's writer sends when its time has come: records that were held, and control records.

Inside: the times. Not inside: whether a record is held or a control record is needed, and sending it
(``writer_machine``).
Always: a time that has passed only makes the machine look; it decides by what is in flight then.

With a thousand writers, the delay of visibility begins with nearly every append. So it is one of the client's
timers: a task that sleeps takes ten times as long.

Source: DistributedLog, BKLogSegmentWriter.java, its periodic flush (docs/stream-format.md 4.4 to 4.9).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from dlog.config import WriterConfig
from dlog.format.record import KEEP_ALIVE_PAYLOAD
from dlog.write.writer_machine import WriterMachine
from ledger.runtime.tasks.timers import Timer, Timers


class WriterTimers:
    """The timers of one writer."""

    def __init__(
        self,
        machine: WriterMachine,
        config: WriterConfig,
        timers: Timers,
        on_fault: Callable[[Exception], None],
    ) -> None:
        """``on_fault``: called with an error of the machine in a step of ``timers``."""
        self._machine, self._timers, self._on_fault = machine, timers, on_fault
        self._visibility_delay_s, self._keep_alive_s = config.visibility_delay_ms / 1000, config.keep_alive_s
        self._holds, self._linger_ms = trio.Event(), config.linger_ms
        self._visibility: Timer | None = None
        self._seen: int | None = None  # entries of the ledger in use when the delay began

    def hold(self) -> None:
        """See ``writer_machine.Shell``."""
        self._holds.set()

    def want_visible(self) -> None:
        """Send a control record if the last records stay the last for the configured delay."""
        if self._visibility is None:
            in_use = self._machine.in_use
            self._seen = None if in_use is None else in_use.writer.entry_count
            self._visibility = self._timers.after(self._visibility_delay_s, self._look)

    def _look(self) -> None:
        self._visibility, self._machine.wants_visible = None, False
        try:
            is_done = self._machine.send_if_last(self._seen)
        except Exception as exc:
            self._on_fault(exc)
            return
        if not is_done:
            self.want_visible()

    def stop(self) -> None:
        """Send no control record any more."""
        if self._visibility is not None:
            self._visibility.cancel()

    @property
    def needs_task(self) -> bool:
        """True if this configuration has times beside the delay of visibility: ``run`` keeps them."""
        return bool(self._linger_ms) or self._keep_alive_s is not None

    async def run(self) -> None:
        """Send what is due at a time: records that were held, and control records; for a task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.send_held)
            if self._keep_alive_s is not None:
                nursery.start_soon(self._keep_alive, self._keep_alive_s)

    async def send_held(self) -> None:
        """Send records when the time is over for which they wait for others; for a task."""
        while True:
            await self._holds.wait()
            await trio.sleep_until(self._machine.due_s)
            self._holds = trio.Event()  # entries that were sent since may have moved the time
            self._machine.pump()

    async def _keep_alive(self, interval_s: float) -> None:
        """Send a control record whenever nothing was sent for this long."""
        seen: tuple[int, int] | None = None  # the ledger and its entries half an interval ago
        while True:
            await trio.sleep(interval_s / 2)
            seen = self._machine.send_if_silent(seen, KEEP_ALIVE_PAYLOAD)
