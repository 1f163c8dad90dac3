"""The producer's part of `tail --rate` that is the same for every system on trio's loop."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable

from dlog.cli.bench.meter import cpu_s
from tests.bench.schedule import Schedule
from tests.bench.work.job import STAMP, Job, stamped
from tests.bench.work.link import Link
from tests.bench.work.timer import open_timer


async def write_due(
    job: Job,
    link: Link,
    append: Callable[[list[bytes]], Awaitable[None]],
    flush: Callable[[], Awaitable[object]],
) -> None:
    """Append all records when they are due, from the start that the command sends; flush, and report the CPU.

    Args:
        append: Takes records of ``job.size`` bytes; returns when there may be more.
        flush: Returns when no record waits any more.
    """
    started = await link.receive_in_loop()
    rest = os.urandom(job.size - STAMP.size)
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
            await append([stamped(schedule.due_ns(number), number, rest) for number in due])
            sent = due.stop
    await flush()
    link.send("done", cpu_us=(cpu_s() - cpu_at_mark) / (job.records - job.left_out) * 1e6)
    await link.receive_in_loop()
