"""`dlog bench latency`: one awaited append at a time; options, rows and output.

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

from dlog.cli.bench.peers.seam import Peer
from dlog.cli.bench.peers.table import FLOOR, chosen, peers_option, print_missing
from dlog.cli.bench.rows import print_rows, with_ratios
from dlog.cli.bench.target import LEDGERS_ROOT, Target, open_target
from dlog.cli.bench.work.arrivals import SHARES
from dlog.cli.bench.work.job import Job
from dlog.cli.bench.work.link import BenchError, open_worker
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run

LEVELS = ("stream", "blocking", "ledger")
LIMIT_S = 120  # of one system, before it is given up
RATIOS = {"p50_ratio": "p50_ms", "p99_ratio": "p99_ms"}
COLUMNS = {
    "system": "system",
    "level": "level",
    "copies": "replicas",
    "p50 ms": "p50_ms",
    "p90 ms": "p90_ms",
    "p99 ms": "p99_ms",
    "p99.9 ms": "p99_9_ms",
    "max ms": "max_ms",
    "CPU us": "cpu_us",
    "servers": "cpu_servers_us",
    "dlog/p50": "p50_ratio",
    "dlog/p99": "p99_ratio",
}


@attrs.frozen(kw_only=True)
class LatencyOptions:
    """One measurement."""

    records: int
    size: int

    def job(self, system: str, address: dict[str, Any]) -> Job:
        """The job of one system."""
        return Job(
            role="latency",
            system=system,
            address=address,
            records=self.records,
            size=self.size,
            left_out=max(1, self.records // 10),
        )


@click.command("latency")
@click.option(
    "--level",
    "levels",
    type=click.Choice(LEVELS),
    multiple=True,
    help="stream: with await; blocking: dlog.blocking; ledger: without a log. Repeatable. [default: all]",
)
@click.option("--uri", metavar="URI", help="An existing namespace. Its other logs are not touched.")
@click.option(
    "--cluster",
    "bookies",
    type=click.IntRange(3, 20),
    metavar="N",
    help="Start a ZooKeeper and N bookies for this benchmark.",
)
@click.option("--records", type=click.IntRange(1, 1_000_000), default=2000, show_default=True)
@click.option("--size", type=click.IntRange(1, 1_000_000), default=1024, show_default=True)
@peers_option
@json_option("measurements and options")
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
    if uri is not None and bookies is not None:
        raise click.UsageError("--uri and --cluster exclude each other; give one of them")
    has_bookies = bookies is not None or (uri or "").startswith("distributedlog")
    if "ledger" in levels and not has_bookies:
        raise click.UsageError("--level ledger needs bookies; add --cluster 3 or --uri distributedlog://...")
    wanted = [one for one in LEVELS if one in (levels or LEVELS) and (one != "ledger" or has_bookies)]
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
    print_note(
        f"{records} appends of {size} bytes, one at a time. CPU of each append in us: user and system time of"
        " the client's process, and of the servers."
    )


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


async def _measure_level(level: str, options: LatencyOptions, target: Target) -> dict[str, object]:
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
        servers_us = None if before is None or after is None else (after - before) / job.records * 1e6
        return {
            "system": job.system,
            "replicas": replicas,
            **{name: done[name] for name in SHARES},
            "cpu_us": done["cpu_us"],
            "cpu_servers_us": None if servers_us is None else round(servers_us, 1),
        }
    raise BenchError(
        f"{job.system}: {job.records} appends took longer than {LIMIT_S} s; give fewer with --records"
    )
