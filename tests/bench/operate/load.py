"""A writer that writes without a pause while a bookie's replicas are restored, and its rate.

Always: an interval ends with an acknowledgement. So the rate of a short one is above zero, and a writer that
stands still lowers it for as long as it stands.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs
import trio

from ledger.client import LedgerClient
from ledger.handle import WriteHandle
from ledger.ledger_spec import LedgerSpec
from tests.bench.work.link import BenchError

ENTRY_BYTES = 1024
IN_FLIGHT = 100  # entries
STILL_S = 60.0  # without an acknowledgement, before the benchmark fails


@attrs.define
class Load:
    """One ledger and its rate. Every entry is synced by an ack quorum before it counts."""

    handle: WriteHandle
    acknowledged: int = 0
    waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)  # for the next one

    async def run(self) -> None:
        """Write until cancelled.

        Raises:
            LedgerWriteError: The ledger failed.
        """
        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(self._append, os.urandom(ENTRY_BYTES))

    async def _append(self, payload: bytes) -> None:
        while True:
            await self.handle.append(payload)
            self.acknowledged += 1
            if self.waiting:
                self.waiting.unpark_all()

    def begin(self) -> Interval:
        """Begin to count."""
        return Interval(self, self.acknowledged, trio.current_time())


@attrs.frozen
class Interval:
    """A part of the time of a load."""

    load: Load
    acknowledged: int
    started_s: float

    async def per_s(self) -> float:
        """Entries acknowledged per second, from the begin to the next acknowledgement.

        Raises:
            BenchError: None came within ``STILL_S``.
        """
        with trio.move_on_after(STILL_S):
            await self.load.waiting.park()
            return (self.load.acknowledged - self.acknowledged) / (trio.current_time() - self.started_s)
        raise BenchError(f"the writer beside the repair got no acknowledgement within {STILL_S:g} s")


async def open_load(client: LedgerClient, bookies: Sequence[str]) -> Load:
    """Create the ledger on bookies that stay alive, so that its ensemble does not change."""
    return Load(await client.create_from(LedgerSpec(bookies=bookies)))
