"""`append` and `catchup` in processes of their own: of other systems, and of DLog with `--second-process`.

Not inside: the work of the processes (``work/throughput``), the options (``command``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from dlog.cli.bench.latency import Latencies
from dlog.cli.bench.options import BenchOptions, Outcome
from tests.bench.peers.seam import Peer
from tests.bench.work.job import Job
from tests.bench.work.link import BenchError, Worker, open_worker

LIMIT_S = 300  # of one system, before it is given up

COLUMNS = {
    "system": "system",
    "copies": "replicas",
    "records/s": "records_per_s",
    "p50 ms": "p50_ms",
    "p99 ms": "p99_ms",
    "CPU s": "cpu_client_s",
    "servers": "cpu_servers_s",
    "dlog/it": "rate_ratio",
}


@attrs.frozen
class Measured:
    """The outcome of one system, and the CPU time of its client and of its servers."""

    outcome: Outcome
    client_cpu_s: float
    servers_cpu_s: float | None


async def measure_peers(
    peers: Sequence[Peer], directory: Path, options: BenchOptions, replicas: int, rate: float
) -> list[dict[str, object]]:
    """Do the work of ``options`` with each peer; return a row for each.

    Args:
        rate: DLog's records per second in this run.
    """
    rows = []
    for peer in peers:
        place = directory / f"peer-{peer.name}"
        place.mkdir()
        async with peer.serve(place, replicas) as service:
            measure = append_in_process if options.workload == "append" else catch_up_in_processes
            measured = await measure(peer.name, service.address, options, service.servers_cpu_s)
        rows.append(peer_row(peer.name, service.replicas, measured, options.records, rate))
    return rows


def peer_row(system: str, replicas: int, measured: Measured, records: int, rate: float) -> dict[str, object]:
    """The figures of one peer; ``rate_ratio`` is DLog's rate divided by the peer's."""
    outcome, servers_s = measured.outcome, measured.servers_cpu_s
    return {
        "system": system,
        "replicas": replicas,
        "records_per_s": round(records / outcome.seconds, 1),
        "p50_ms": round(outcome.latencies.quantile(0.50) * 1000, 3),
        "p99_ms": round(outcome.latencies.quantile(0.99) * 1000, 3),
        "cpu_client_s": round(measured.client_cpu_s, 3),
        "cpu_servers_s": None if servers_s is None else round(servers_s, 3),
        "rate_ratio": round(rate * outcome.seconds / records, 3),
    }


def job_of(options: BenchOptions, role: str, system: str, address: Mapping[str, Any]) -> Job:
    """The job of one process."""
    return Job(
        role=role,
        system=system,
        address=dict(address),
        records=options.records,
        size=options.size,
        inflight=options.inflight,
        batch=options.batch,
    )


async def append_in_process(
    system: str, address: Mapping[str, Any], options: BenchOptions, servers_cpu_s: Callable[[], float | None]
) -> Measured:
    """Append in one process.

    Raises:
        BenchError: The process failed, or took longer than ``LIMIT_S``.
    """
    with trio.move_on_after(LIMIT_S):
        async with open_worker(job_of(options, "append", system, address)) as worker:
            return await _measured(worker, servers_cpu_s)
    raise _too_slow(system, options)


async def catch_up_in_processes(
    system: str, address: Mapping[str, Any], options: BenchOptions, servers_cpu_s: Callable[[], float | None]
) -> Measured:
    """Fill in one process, then read in another.

    Raises:
        BenchError: A process failed, or both took longer than ``LIMIT_S``.
    """
    with trio.move_on_after(LIMIT_S):
        async with open_worker(job_of(options, "fill", system, address)) as writer:
            ready = await writer.receive("ready")
            # DLog's process names the log that it made.
            place = {**address, **{name: value for name, value in ready.items() if name != "event"}}
            async with open_worker(job_of(options, "catchup", system, place)) as reader:
                measured = await _measured(reader, servers_cpu_s)
            await writer.stop()
            return measured
    raise _too_slow(system, options)


async def _measured(worker: Worker, servers_cpu_s: Callable[[], float | None]) -> Measured:
    await worker.receive("mark")
    before = servers_cpu_s()
    done = await worker.receive("done")
    after = servers_cpu_s()
    await worker.stop()
    latencies = Latencies([(seconds, count) for seconds, count in done["samples"]])
    return Measured(
        Outcome(done["seconds"], latencies),
        done["cpu_s"],
        None if before is None or after is None else after - before,
    )


def _too_slow(system: str, options: BenchOptions) -> BenchError:
    return BenchError(
        f"{system}: {options.records} records took longer than {LIMIT_S} s; give fewer with --records"
    )
