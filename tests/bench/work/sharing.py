"""`shared` on DLog: a process with a writer, its own or a shared one, that appends when it is asked."""

from __future__ import annotations

import os
import time
from typing import Any

import trio

import dlog
from tests.bench.work.job import Job
from tests.bench.work.link import Link

LOG = "shared"


def share(job: Job, link: Link) -> None:
    """Open the writer, and serve the requests of the command until one of them says ``stop``."""
    trio.run(_serve, job, link)


async def _serve(job: Job, link: Link) -> None:
    payload = os.urandom(job.size)
    async with (
        dlog.open_namespace(job.address["uri"]) as namespace,
        namespace.open_writer(LOG, create=True, shared=job.address["shared"]) as writer,
    ):
        await writer.append(payload)  # whatever the first append does once is done
        link.send("open", is_owner=writer.is_owner)
        while not (request := await link.receive_in_loop()).get("stop"):
            link.send("done", **await _append(writer, payload, job.batch, request), is_owner=writer.is_owner)


async def _append(
    writer: dlog.LogWriter, payload: bytes, batch: int, request: dict[str, Any]
) -> dict[str, Any]:
    """``lone`` awaited appends, with the time of each; or ``batches`` of records in ``tasks`` tasks."""
    if "lone" in request:
        times_ns = list[int]()
        for _ in range(request["lone"]):
            began_ns = time.perf_counter_ns()
            await writer.append(payload)
            times_ns.append(time.perf_counter_ns() - began_ns)
        return {"times_ns": times_ns}
    left = request["batches"]
    began_ns = time.monotonic_ns()

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await writer.append_many([payload] * batch)

    async with trio.open_nursery() as nursery:
        for _ in range(request["tasks"]):
            nursery.start_soon(work)
    # Of all processes of a machine: the clock is the system's.
    return {"began_ns": began_ns, "ended_ns": time.monotonic_ns()}
