"""`latency`: one awaited append at a time, of DLog and of other systems, each in a process of its own.

Not inside: the appends (``work``), other systems (``peers``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from dlog.cli.bench.latency import SHARES
from dlog.cli.bench.lone_appends import (
    COLUMNS,
    RATIOS,
    lone_options,
    per_append_us,
    print_summary,
    wanted_levels,
)
from dlog.cli.bench.rows import print_rows, with_ratios
from dlog.cli.bench.target import LEDGERS_ROOT, BenchTarget, open_target
from dlog.cli.terminal.output import print_json
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from tests.bench.peers.seam import Peer
from tests.bench.peers.table import FLOOR, chosen, peers_option, print_missing
from tests.bench.work.job import Job
from tests.bench.work.link import BenchError, open_worker

LIMIT_S = 120  # of one system, before it is given up


@attrs.frozen(kw_only=True)
class LatencyOptions:
    """One measurement."""

    records: int
    size: int

    def job(self, system: str, address: dict[str, Any]) -> Job:
        """The job of one system."""
        return Job(role="latency", system=system, address=address, records=self.records, size=self.size)


@click.command("latency")
@lone_options
@peers_option
def command(
    levels: Sequence[str],
    uri: str | None,
    bookies: int | None,
    records: int,
    size: int,
    peers: str | None,
    as_json: bool,
) -> None:
    """Measure one awaited append at a time: the next begins when the last is acknowledged.

    Measures an embedded log unless --uri or --cluster is given. The floor writes the same bytes to a plain
    file for each replica and calls fdatasync. Ratios are those of the first row to each other row.
    """
    wanted = wanted_levels(levels, uri, bookies)
    systems, missing = chosen(peers)
    options = LatencyOptions(records=records, size=size)
    with open_scratch("bench") as directory:
        document = run(partial(_measure, directory, options, uri, bookies, wanted, systems))
    document["not_installed"] = missing
    if as_json:
        print_json(document)
        return
    print_rows(COLUMNS, document["systems"])
    print_missing(missing)
    print_summary(records, size)


async def _measure(
    directory: Path,
    options: LatencyOptions,
    uri: str | None,
    bookies: int | None,
    levels: Sequence[str],
    peers: Sequence[Peer],
) -> dict[str, Any]:
    rows = []
    async with open_target(directory, uri, bookies) as target:
        for level in levels:
            rows.append({"level": level, **await _measure_level(level, options, target)})
        for peer in (FLOOR, *peers):
            place = directory / f"peer-{peer.name}"
            place.mkdir()
            async with peer.serve(place, target.replicas) as service:
                job = options.job(peer.name, service.address)
                row = await measure_system(job, service.replicas, service.servers_cpu_s)
                rows.append({"level": None, **row})
        return {
            "systems": with_ratios(rows, RATIOS),
            "options": attrs.asdict(options) | {"uri": target.uri, "replicas": target.replicas},
        }


async def _measure_level(level: str, options: LatencyOptions, target: BenchTarget) -> dict[str, object]:
    root = LEDGERS_ROOT if target.cluster else None
    job = options.job("dlog", {"uri": target.uri, "face": level, "root": root})
    return await measure_system(job, target.replicas, target.bookies_cpu_s)


async def measure_system(
    job: Job, replicas: int, servers_cpu_s: Callable[[], float | None]
) -> dict[str, object]:
    """Run the process of one system; return its row.

    Raises:
        BenchError: The process failed, or took longer than ``LIMIT_S``.
    """
    with trio.move_on_after(LIMIT_S):
        async with open_worker(job) as worker:
            await worker.receive("mark")
            before = servers_cpu_s()
            done = await worker.receive("done")
            after = servers_cpu_s()
            await worker.stop()
        return {
            "system": job.system,
            "replicas": replicas,
            **{name: done[name] for name in SHARES},
            "cpu_us": done["cpu_us"],
            "cpu_servers_us": per_append_us(before, after, job.records),
        }
    raise BenchError(
        f"{job.system}: {job.records} appends took longer than {LIMIT_S} s; give fewer with --records"
    )
