"""The producer and the consumer of `tail --rate` on DLog."""

from __future__ import annotations

import os
import secrets
import time

import trio

import dlog
from dlog.cli.bench.schedule import Schedule
from dlog.cli.bench.work.arrivals import Arrivals, cpu_s
from dlog.cli.bench.work.job import STAMP, Job, stamped
from dlog.cli.bench.work.link import Link
from dlog.cli.bench.work.timer import open_timer

READ_RECORDS = 8192


def produce(job: Job, link: Link) -> None:
    """Create a log and append its records when they are due; delete the log in the end."""
    trio.run(_produce, job, link)


def consume(job: Job, link: Link) -> None:
    """Follow the log to its last record."""
    trio.run(_consume, job, link)


async def _produce(job: Job, link: Link) -> None:
    log = f"bench-{secrets.token_hex(4)}"
    rest = os.urandom(job.size - STAMP.size)
    async with dlog.open_namespace(job.address["uri"]) as namespace:
        await namespace.create_log(log)
        async with namespace.open_writer(log) as writer:
            link.send("ready", log=log)
            started = await link.receive_in_loop()
            schedule = Schedule(started["start_ns"], job.rate, job.records)
            sent = 0
            cpu_at_mark = 0.0
            with open_timer(schedule) as timer:
                while sent < job.records:
                    due = schedule.due_from(sent, time.monotonic_ns())
                    if not due:
                        await timer.wait_in_loop()
                        continue
                    if job.left_out in due:
                        cpu_at_mark = cpu_s()
                        link.send("mark")
                    for number in due:
                        writer.submit(stamped(schedule.due_ns(number), number, rest))
                    sent = due.stop
                    await writer.wait_capacity()
                    if len(due) > 1:  # late: more may be due already, and the writer's tasks must run
                        await trio.lowlevel.checkpoint()
            await writer.flush()
            link.send("done", cpu_us=(cpu_s() - cpu_at_mark) / (job.records - job.left_out) * 1e6)
            await link.receive_in_loop()
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
