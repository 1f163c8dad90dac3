"""The three workloads on a ledger: entries go to bookies without a log around them.

Always: the benchmark does its own bookkeeping per batch, never per entry, so that it measures the client and
not itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from dlog.cli.bench.latency import BatchesInFlight, Latencies, SubmitTimes
from dlog.cli.bench.options import PAYLOADS, BenchOptions, Outcome
from ledger.client import LedgerClient
from ledger.handle import WriteHandle

Begin = Callable[[], None]
now = time.perf_counter


class Feeder:
    """Keeps a bounded number of entries in flight on one handle."""

    def __init__(self, handle: WriteHandle, options: BenchOptions) -> None:
        self._handle, self._inflight = handle, options.inflight
        self._payloads = options.payloads()
        self._progress = trio.Event()
        self._failure: BaseException | None = None
        self._batches = BatchesInFlight(Latencies())
        self.times = SubmitTimes()
        handle.on_confirmed(self._confirmed)

    def _confirmed(self, lac: int, error: BaseException | None) -> None:
        self._batches.confirmed(lac, now())
        self._failure = error
        self._progress.set()

    async def feed(self, count: int) -> Latencies:
        """Write ``count`` entries; return their latencies when all of them are confirmed.

        Raises the writer's error if the writer fails.
        """
        self._batches.latencies = latencies = Latencies()
        handle, payloads = self._handle, self._payloads
        submit = handle.submit
        stop = handle.last_pushed + 1 + count
        while handle.lac < stop - 1:
            if self._failure is not None:
                raise self._failure
            self._progress = trio.Event()
            first = handle.last_pushed + 1
            size = min(stop - first, self._inflight - (handle.last_pushed - handle.lac))
            if size > 0:
                moment = now()
                for number in range(first, first + size):
                    submit(payloads[number % PAYLOADS])
                self._batches.submitted(first + size - 1, moment)
                self.times.submitted(first + size - 1, moment)
                await handle.wait_capacity()
            if handle.lac < stop - 1:
                await self._progress.wait()
        return latencies


async def append(client: LedgerClient, options: BenchOptions, begin: Begin) -> Outcome:
    """Write entries with a bounded number in flight; the latency runs from submit to confirmation."""
    handle = await client.create()
    async with handle:
        feeder = Feeder(handle, options)
        await feeder.feed(options.warm_up)
        begin()
        started = now()
        latencies = await feeder.feed(options.records)
        return Outcome(now() - started, latencies)


async def tail(client: LedgerClient, options: BenchOptions, begin: Begin) -> Outcome:
    """Write, and follow the open ledger; the latency runs from submit until the reader has the entry."""
    handle = await client.create()
    total = options.warm_up + options.records
    latencies = Latencies()
    seconds = 0.0
    async with trio.open_nursery() as nursery:
        feeder = Feeder(handle, options)
        await feeder.feed(options.warm_up)
        begin()
        started = now()

        async def write() -> None:
            async with handle:  # the close publishes the last entry to the reader
                await feeder.feed(options.records)

        nursery.start_soon(write)
        reader = await client.open(handle.ledger_id, recover=False)
        position = options.warm_up
        while position < total:
            lac = reader.last_confirmed
            if lac < position:
                await reader.wait_last_confirmed_beyond(position - 1, timeout_s=10)
                continue
            payloads = await reader.read_payloads(position, lac)
            feeder.times.met(position, position + len(payloads) - 1, now(), latencies)
            position += len(payloads)
        seconds = now() - started
        await reader.close()
    return Outcome(seconds, latencies)


async def catchup(client: LedgerClient, options: BenchOptions, begin: Begin) -> Outcome:
    """Read a closed ledger from its beginning; the latency is that of one read."""
    handle = await client.create()
    async with handle:
        await Feeder(handle, options).feed(options.records)
    reader = await client.open(handle.ledger_id)
    latencies = Latencies()
    begin()
    started = moment = now()
    position = 0
    while position < options.records:
        payloads = await reader.read_payloads(position, options.records - 1)
        position += len(payloads)
        before, moment = moment, now()
        latencies.add(moment - before)
    seconds = moment - started
    await reader.close()
    return Outcome(seconds, latencies)
