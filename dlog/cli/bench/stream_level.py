"""The three workloads on a log: records pass a writer and a reader, as in an application."""

from __future__ import annotations

import secrets
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby

import trio

import dlog
from dlog.cli.bench.latency import Latencies
from dlog.cli.bench.options import PAYLOADS, BenchOptions, Outcome

Begin = Callable[[], None]
READ_RECORDS = 8192
STAMP = struct.Struct(">d")  # the moment of submission, at the beginning of each payload of `tail`
now = time.perf_counter


@asynccontextmanager
async def _log(namespace: dlog.Namespace) -> AsyncIterator[str]:
    """Create a log for the benchmark; delete it at the end."""
    name = f"bench-{secrets.token_hex(4)}"
    await namespace.create_log(name)
    try:
        yield name
    finally:
        with trio.move_on_after(10, shield=True):
            await namespace.delete_log(name)


def _sizes(count: int, batch: int) -> Iterator[int]:
    for first in range(0, count, batch):
        yield min(batch, count - first)


async def feed(
    writer: dlog.LogWriter, options: BenchOptions, count: int, *, stamped: bool = False
) -> Latencies:
    """Append ``count`` records; return the latency of each append.

    Single records are submitted, batches are appended with one task for each that is in flight.
    """
    if options.batch == 1:
        return await _submit(writer, options, count, stamped=stamped)
    latencies = Latencies()
    sizes = _sizes(count, options.batch)
    payloads = (options.payloads() * (options.batch // PAYLOADS + 1))[: options.batch]

    rest = payloads[0][STAMP.size :]

    async def append_in_turn() -> None:
        for size in sizes:
            moment = now()
            batch = [STAMP.pack(moment) + rest] * size if stamped else payloads[:size]
            await writer.append_many(batch)
            latencies.add(now() - moment, size)

    async with trio.open_nursery() as nursery:
        for _ in range(max(1, options.inflight // options.batch)):
            nursery.start_soon(append_in_turn)
    return latencies


async def _submit(writer: dlog.LogWriter, options: BenchOptions, count: int, *, stamped: bool) -> Latencies:
    """Submit single records, and await the oldest one when ``inflight`` of them are not acknowledged."""
    latencies = Latencies()
    payloads = options.payloads()
    rest = payloads[0][STAMP.size :]
    waiting: deque[tuple[dlog.Pending, float]] = deque()

    async def settle_oldest() -> None:
        pending, submitted = waiting.popleft()
        await pending
        latencies.add(now() - submitted)

    for number in range(count):
        if len(waiting) == options.inflight:
            await settle_oldest()
        if number % PAYLOADS == 0:
            await writer.wait_capacity()
        moment = now()
        payload = STAMP.pack(moment) + rest if stamped else payloads[number % PAYLOADS]
        waiting.append((writer.submit(payload), moment))
    while waiting:
        await settle_oldest()
    return latencies


async def append(namespace: dlog.Namespace, options: BenchOptions, begin: Begin) -> Outcome:
    """Append batches of records, several in flight; the latency runs from call to return."""
    async with _log(namespace) as log, namespace.open_writer(log) as writer:
        await feed(writer, options, options.warm_up)
        begin()
        started = now()
        latencies = await feed(writer, options, options.records)
        return Outcome(now() - started, latencies)


async def tail(namespace: dlog.Namespace, options: BenchOptions, begin: Begin) -> Outcome:
    """Write, and follow the log; the latency runs from the call until the reader has the record."""
    latencies = Latencies()
    async with _log(namespace) as log, trio.open_nursery() as nursery:
        writer_open = namespace.open_writer(log)
        async with writer_open as writer, namespace.open_reader(log) as reader:
            await feed(writer, options, options.warm_up, stamped=True)
            met = 0
            while met < options.warm_up:
                met += len(await reader.read_batch(READ_RECORDS) or ())
            begin()
            started = now()

            async def write() -> None:
                await feed(writer, options, options.records, stamped=True)

            nursery.start_soon(write)
            left = options.records
            while left > 0:
                records = await reader.read_batch(READ_RECORDS)
                if records is None:
                    raise AssertionError(f"the log ended {left} records early")
                moment = now()
                stamps = (STAMP.unpack_from(record.payload)[0] for record in records)
                for submitted, batch in groupby(stamps):
                    latencies.add(moment - submitted, sum(1 for _ in batch))
                left -= len(records)
            return Outcome(now() - started, latencies)


async def catchup(namespace: dlog.Namespace, options: BenchOptions, begin: Begin) -> Outcome:
    """Read a log from its beginning; the latency is that of one batch of records."""
    latencies = Latencies()
    async with _log(namespace) as log:
        async with namespace.open_writer(log) as writer:
            await feed(writer, options, options.records)
        async with namespace.open_reader(log, follow=False) as reader:
            begin()
            started = moment = now()
            left = options.records
            while left > 0:
                records = await reader.read_batch(READ_RECORDS)
                if not records:
                    raise AssertionError(f"the log {log} ended {left} records early")
                left -= len(records)
                before, moment = moment, now()
                latencies.add(moment - before)
            return Outcome(moment - started, latencies)
