"""`latency` on another system: one append at a time in a plain thread."""

from __future__ import annotations

from tests.bench.peers.table import SYSTEMS
from tests.bench.work.dlog_latency import lone_appends
from tests.bench.work.job import Job
from tests.bench.work.link import Link


def measure(job: Job, link: Link) -> None:
    """As for DLog."""
    with SYSTEMS[job.system].open_writer(job.address, job.size) as writer:
        lone_appends(job, link).called(lambda payload: writer.append([payload]))
        link.receive()
