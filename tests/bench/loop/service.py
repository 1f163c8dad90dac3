"""The processes of the replicas, for the command."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from dlog.cluster import process
from tests.bench.peers.seam import Service, no_servers
from tests.bench.work.job import Job
from tests.bench.work.link import open_worker

SYSTEM = "loop"


@contextlib.asynccontextmanager
async def serve(directory: Path, replicas: int, *, records: int, size: int) -> AsyncIterator[Service]:
    """Start the replicas in an empty directory. The producer has a single one in its own process.

    Raises:
        BenchError: A process did not start.
    """
    address = {"directory": str(directory), "replicas": replicas}
    if replicas == 1:
        yield Service(address, 1, no_servers)
        return
    async with contextlib.AsyncExitStack() as stack:
        found: list[process.ProcessId] = []
        for number in range(replicas):
            job = Job(
                role="replicate",
                system=SYSTEM,
                address={**address, "number": number},
                records=records,
                size=size,
            )
            worker = await stack.enter_async_context(open_worker(job))
            await worker.receive("ready")
            identity = process.identify(worker.pid)
            assert identity is not None, "it has just said that it is ready"  # received above
            found.append(identity)
        yield Service(
            address,
            replicas,
            lambda: sum(stats.cpu_s for one in found if (stats := process.stats(one)) is not None),
        )
