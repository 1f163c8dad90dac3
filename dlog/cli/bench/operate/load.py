"""A writer that writes without a pause while a bookie's replicas are restored, and its rate."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import attrs
import trio

from ledger.client import LedgerClient
from ledger.handle import WriteHandle

ENTRY_BYTES = 1024
IN_FLIGHT = 100  # entries


@attrs.define
class Load:
    """One ledger and its rate. Every entry is synced by an ack quorum before it counts."""

    handle: WriteHandle
    acknowledged: int = 0

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

    def begin(self) -> Interval:
        """Begin to count."""
        return Interval(self, self.acknowledged, time.perf_counter())


@attrs.frozen
class Interval:
    """A part of the time of a load."""

    load: Load
    acknowledged: int
    started_s: float

    def per_s(self) -> float:
        """Entries acknowledged per second since the begin."""
        return (self.load.acknowledged - self.acknowledged) / (time.perf_counter() - self.started_s)


async def open_load(client: LedgerClient, bookies: Sequence[str]) -> Load:
    """Create the ledger on bookies that stay alive, so that its ensemble does not change."""
    return Load(await client.create(bookies=bookies))
