"""What a log's writer sends when its time has come: records that were held, and control records.

Inside: the times. Not inside: whether a record is held or a control record is needed, and sending it
(``writer_machine``).
Always: a time that has passed only makes the machine look; it decides by what is in flight then.

Source: DistributedLog, BKLogSegmentWriter.java, its periodic flush (docs/stream-format.md 4.4 to 4.9).
"""

from __future__ import annotations

import trio

from dlog.config import WriterConfig
from dlog.format.record import KEEP_ALIVE_PAYLOAD
from dlog.write.writer_machine import WriterMachine


class WriterTimers:
    """The timers of one writer; they run while a task executes ``run``."""

    def __init__(self, machine: WriterMachine, config: WriterConfig) -> None:
        self._machine = machine
        self._visibility_delay_s, self._keep_alive_s = config.visibility_delay_ms / 1000, config.keep_alive_s
        self._holds, self._visibility_wanted = trio.Event(), trio.Event()

    def hold(self) -> None:
        """See ``writer_machine.Shell``."""
        self._holds.set()

    def want_visible(self) -> None:
        """See ``writer_machine.Shell``."""
        self._visibility_wanted.set()

    async def run(self) -> None:
        """Send what is due at a time: records that were held, and control records; for a task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.send_held)
            nursery.start_soon(self._keep_visible)
            if self._keep_alive_s is not None:
                nursery.start_soon(self._keep_alive, self._keep_alive_s)

    async def send_held(self) -> None:
        """Send records when the time is over for which they wait for others; for a task."""
        while True:
            await self._holds.wait()
            await trio.sleep_until(self._machine.due_s)
            self._holds = trio.Event()  # entries that were sent since may have moved the time
            self._machine.pump()

    async def _keep_visible(self) -> None:
        """Send a control record when the last records stay the last for the configured delay."""
        while True:
            await self._visibility_wanted.wait()
            in_use = self._machine.in_use
            seen = None if in_use is None else in_use.writer.entry_count
            await trio.sleep(self._visibility_delay_s)
            self._visibility_wanted = trio.Event()
            self._machine.wants_visible = False
            if not self._machine.send_if_last(seen):
                self._visibility_wanted.set()

    async def _keep_alive(self, interval_s: float) -> None:
        """Send a control record whenever nothing was sent for this long."""
        seen: tuple[int, int] | None = None  # the ledger and its entries half an interval ago
        while True:
            await trio.sleep(interval_s / 2)
            seen = self._machine.send_if_silent(seen, KEEP_ALIVE_PAYLOAD)
