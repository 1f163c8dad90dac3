"""`append` and `catchup` with other systems, and `catchup` of DLog in a process of its own.

A catch-up has two processes: one fills the log, or the store, and keeps it open; the other reads.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator, Sequence

import trio

import dlog
from dlog.cli.bench.latency import Latencies
from dlog.cli.bench.meter import cpu_s
from dlog.cli.bench.options import BenchOptions
from dlog.cli.bench.stream_level import READ_RECORDS, feed
from tests.bench.peers.seam import PeerWriter
from tests.bench.peers.table import SYSTEMS
from tests.bench.work.job import Job
from tests.bench.work.link import Link

now = time.perf_counter


def options_of(job: Job) -> BenchOptions:
    """The options of the command for this job."""
    return BenchOptions(
        workload=job.role,
        level="stream",
        records=job.records,
        size=job.size,
        inflight=job.inflight,
        batch=job.batch,
    )


def chunks(payloads: Sequence[bytes], records: int, size: int) -> Iterator[list[bytes]]:
    """So many records in chunks of ``size``, of the payloads in turn."""
    turns = itertools.cycle(payloads)
    for first in range(0, records, size):
        yield list(itertools.islice(turns, min(size, records - first)))


def append_to_peer(job: Job, link: Link) -> None:
    """Append all records, ``job.inflight`` of them at once."""
    options = options_of(job)
    payloads = options.payloads()
    with SYSTEMS[job.system].open_writer(job.address, job.size) as writer:
        for chunk in chunks(payloads, options.warm_up, options.inflight):
            _append(writer, chunk, job.batch)
        latencies = Latencies()
        link.send("mark")
        cpu_before, started = cpu_s(), now()
        for chunk in chunks(payloads, job.records, options.inflight):
            moment = now()
            _append(writer, chunk, job.batch)
            latencies.add(now() - moment, len(chunk))
        seconds = now() - started
        _send(link, seconds, latencies, cpu_s() - cpu_before)
        link.receive()


def _append(writer: PeerWriter, chunk: Sequence[bytes], batch: int) -> None:
    if batch == 1:
        writer.append_each(chunk)
    else:
        writer.append(chunk)


def fill_peer(job: Job, link: Link) -> None:
    """Append all records, and keep the store open until the reader is done."""
    with SYSTEMS[job.system].open_writer(job.address, job.size) as writer:
        for chunk in chunks(options_of(job).payloads(), job.records, job.inflight):
            writer.append(chunk)
        link.send("ready")
        link.receive()


def catch_up_with_peer(job: Job, link: Link) -> None:
    """Read all records; each latency is that of one read."""
    latencies = Latencies()
    with SYSTEMS[job.system].open_reader(job.address, job.size) as reader:
        link.send("mark")
        cpu_before = cpu_s()
        started = moment = now()
        left = job.records
        while left > 0:
            left -= len(reader.read())
            before, moment = moment, now()
            latencies.add(moment - before)
        _send(link, moment - started, latencies, cpu_s() - cpu_before)
        link.receive()


def fill_log(job: Job, link: Link) -> None:
    """Create a log with all records, and keep its namespace open until the reader is done; delete it then."""
    trio.run(_fill_log, job, link)


async def _fill_log(job: Job, link: Link) -> None:
    log = f"bench-{secrets.token_hex(4)}"
    async with dlog.open_namespace(job.address["uri"]) as namespace:
        await namespace.create_log(log)
        async with namespace.open_writer(log) as writer:
            await feed(writer, options_of(job), job.records)
        link.send("ready", log=log)
        await link.receive_in_loop()
        await namespace.delete_log(log)


def catch_up_with_log(job: Job, link: Link) -> None:
    """As ``catch_up_with_peer``."""
    trio.run(_catch_up_with_log, job, link)


async def _catch_up_with_log(job: Job, link: Link) -> None:
    latencies = Latencies()
    async with (
        dlog.open_namespace(job.address["uri"]) as namespace,
        namespace.open_reader(job.address["log"], follow=False) as reader,
    ):
        link.send("mark")
        cpu_before = cpu_s()
        started = moment = now()
        left = job.records
        while left > 0:
            records = await reader.read_batch(READ_RECORDS)
            if not records:
                raise AssertionError(f"the log {job.address['log']} ended {left} records early")
            left -= len(records)
            before, moment = moment, now()
            latencies.add(moment - before)
        _send(link, moment - started, latencies, cpu_s() - cpu_before)
        await link.receive_in_loop()


def _send(link: Link, seconds: float, latencies: Latencies, used_cpu_s: float) -> None:
    link.send("done", seconds=seconds, samples=latencies.samples, cpu_s=used_cpu_s)
