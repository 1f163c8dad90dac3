"""The producer and the consumer of `tail --rate` on another system, in a plain thread."""

from __future__ import annotations

import os
import time

from dlog.cli.bench.meter import cpu_s
from tests.bench.peers.table import SYSTEMS
from tests.bench.schedule import Schedule, due_ranges
from tests.bench.work.arrivals import Arrivals
from tests.bench.work.job import STAMP, Job, stamped
from tests.bench.work.link import Link
from tests.bench.work.timer import open_timer


def produce(job: Job, link: Link) -> None:
    """Append the records when they are due; those that are due together in one append."""
    rest = os.urandom(job.size - STAMP.size)
    with SYSTEMS[job.system].open_writer(job.address, job.size) as writer:
        link.send("ready")
        schedule = Schedule(link.receive()["start_ns"], job.rate, job.records)
        cpu_at_mark = 0.0
        with open_timer(schedule) as timer:
            for due in due_ranges(schedule, time.monotonic_ns, timer.wait):
                if job.left_out in due:
                    cpu_at_mark = cpu_s()
                    link.send("mark")
                writer.append([stamped(schedule.due_ns(number), number, rest) for number in due])
        link.send("done", cpu_us=(cpu_s() - cpu_at_mark) / (job.records - job.left_out) * 1e6)
        link.receive()


def consume(job: Job, link: Link) -> None:
    """Follow the system to the last record."""
    arrivals = Arrivals(job.records, job.left_out)
    with SYSTEMS[job.system].open_reader(job.address, job.size) as reader:
        link.send("ready")
        while not arrivals.complete:
            payloads = reader.read()
            arrivals.add(payloads, time.monotonic_ns())
        link.send("done", **arrivals.outcome())
        link.receive()
