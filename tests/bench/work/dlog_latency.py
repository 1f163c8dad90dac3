"""`latency` on DLog: one awaited append at a time on a stream, with the blocking façade, or on a ledger."""

from __future__ import annotations

import trio

from dlog.cli.bench.lone_appends import LoneAppends
from tests.bench.work.job import Job
from tests.bench.work.link import Link


def measure(job: Job, link: Link) -> None:
    """Append ``job.records`` records; send the percentiles."""
    work, uri = lone_appends(job, link), job.address["uri"]
    if job.address["face"] == "blocking":
        work.by_blocking(uri)
    elif job.address["face"] == "stream":
        trio.run(work.to_stream, uri)
    else:
        trio.run(work.to_ledger, uri, job.address["root"])
    link.receive()


def lone_appends(job: Job, link: Link) -> LoneAppends:
    """The appends of a job, which say by the link when the clock starts, and what it showed at the end."""
    return LoneAppends(
        records=job.records,
        size=job.size,
        begin=lambda: link.send("mark"),
        done=lambda figures: link.send("done", **figures),
    )
