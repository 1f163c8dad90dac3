"""The producer and the consumer of `tail --rate` on DLog."""

from __future__ import annotations

import secrets
import time

import trio

import dlog
from tests.bench.work.arrivals import Arrivals
from tests.bench.work.due_records import write_due
from tests.bench.work.job import Job
from tests.bench.work.link import Link

READ_RECORDS = 8192


def produce(job: Job, link: Link) -> None:
    """Create a log and append its records when they are due; delete the log in the end."""
    trio.run(_produce, job, link)


def consume(job: Job, link: Link) -> None:
    """Follow the log to its last record."""
    trio.run(_consume, job, link)


async def _produce(job: Job, link: Link) -> None:
    log = f"bench-{secrets.token_hex(4)}"
    async with dlog.open_namespace(job.address["uri"]) as namespace:
        await namespace.create_log(log)
        async with namespace.open_writer(log) as writer:

            async def append(records: list[bytes]) -> None:
                for record in records:
                    writer.submit(record)
                await writer.wait_capacity()
                if len(records) > 1:  # late: more may be due already, and the writer's tasks must run
                    await trio.lowlevel.checkpoint()

            link.send("ready", log=log)
            await write_due(job, link, append, writer.flush)
        await namespace.delete_log(log)


async def _consume(job: Job, link: Link) -> None:
    arrivals = Arrivals(job.records, job.left_out)
    async with (
        dlog.open_namespace(job.address["uri"]) as namespace,
        namespace.open_reader(job.address["log"]) as reader,
    ):
        await reader.read_batch(1, wait_s=0)  # the log is found and open before the first record is due
        link.send("ready")
        while not arrivals.complete:
            records = await reader.read_batch(READ_RECORDS)
            if records is None:
                raise AssertionError("the log ended early")
            arrivals.add(records.payloads(), time.monotonic_ns())
        link.send("done", **arrivals.outcome())
        await link.receive_in_loop()
