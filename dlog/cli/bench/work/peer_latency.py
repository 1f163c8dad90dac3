"""`latency` on another system: one append at a time in a plain thread."""

from __future__ import annotations

from dlog.cli.bench.peers.table import SYSTEMS
from dlog.cli.bench.work.dlog_latency import timed
from dlog.cli.bench.work.job import Job
from dlog.cli.bench.work.link import Link


def measure(job: Job, link: Link) -> None:
    """As for DLog."""
    with SYSTEMS[job.system].open_writer(job.address, job.size) as writer:
        timed(job, link, lambda payload: writer.append([payload]))
        link.receive()
