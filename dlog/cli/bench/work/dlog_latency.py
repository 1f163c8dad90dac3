"""`latency` on DLog: one awaited append at a time on a stream, with the blocking façade, or on a ledger."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Awaitable, Callable

import trio

import dlog
import dlog.blocking
from dlog.cli.bench.latency import Latencies
from dlog.cli.bench.target import open_ledgers
from dlog.cli.bench.work.arrivals import cpu_s, milliseconds
from dlog.cli.bench.work.job import Job
from dlog.cli.bench.work.link import Link

now = time.perf_counter


def measure(job: Job, link: Link) -> None:
    """Append ``job.records`` records after ``job.left_out`` others; send the percentiles."""
    face = job.address["face"]
    if face == "blocking":
        _on_blocking(job, link)
    else:
        trio.run(_on_stream if face == "stream" else _on_ledger, job, link)
    link.receive()


def outcome(latencies: Latencies, used_cpu_s: float) -> dict[str, float]:
    """The percentiles in ms, and this process's CPU time of each append in microseconds."""
    return {**milliseconds(latencies), "cpu_us": round(used_cpu_s / len(latencies.samples) * 1e6, 1)}


async def _on_stream(job: Job, link: Link) -> None:
    log = f"bench-{secrets.token_hex(4)}"
    async with dlog.open_namespace(job.address["uri"]) as namespace:
        await namespace.create_log(log)
        async with namespace.open_writer(log) as writer:
            await _timed(job, link, writer.append)
        await namespace.delete_log(log)


async def _on_ledger(job: Job, link: Link) -> None:
    async with open_ledgers(job.address["uri"], root=job.address["root"]) as client:
        handle = await client.create()
        async with handle:
            await _timed(job, link, handle.append)
        await client.delete(handle.ledger_id)


async def _timed(job: Job, link: Link, append: Callable[[bytes], Awaitable[object]]) -> None:
    payload = os.urandom(job.size)
    for _ in range(job.left_out):
        await append(payload)
    latencies = Latencies()
    link.send("mark")
    cpu_before = cpu_s()
    for _ in range(job.records):
        started = now()
        await append(payload)
        latencies.add(now() - started)
    link.send("done", **outcome(latencies, cpu_s() - cpu_before))


def _on_blocking(job: Job, link: Link) -> None:
    log = f"bench-{secrets.token_hex(4)}"
    with dlog.blocking.open_namespace(job.address["uri"]) as namespace:
        namespace.create_log(log)
        with namespace.open_writer(log) as writer:
            timed(job, link, writer.append)
        namespace.delete_log(log)


def timed(job: Job, link: Link, append: Callable[[bytes], object]) -> None:
    """Call ``append`` in a plain thread, and send the percentiles."""
    payload = os.urandom(job.size)
    for _ in range(job.left_out):
        append(payload)
    latencies = Latencies()
    link.send("mark")
    cpu_before = cpu_s()
    for _ in range(job.records):
        started = now()
        append(payload)
        latencies.add(now() - started)
    link.send("done", **outcome(latencies, cpu_s() - cpu_before))
