"""`dlog bench append|tail|catchup`: options, set-up and output.

Not inside: the workloads (``ledger_level``, ``stream_level``), the floor (``floor``), the measurements of
one bookie's storage (``storage``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

import dlog
from dlog.cli.bench import (
    floor,
    ledger_level,
    lone_appends,
    resting,
    stream_level,
    tail_rate,
    throughput,
)
from dlog.cli.bench.meter import Meter, Reading, Usage
from dlog.cli.bench.operate import command as operate
from dlog.cli.bench.options import BenchOptions, Outcome
from dlog.cli.bench.peers.seam import Peer
from dlog.cli.bench.peers.table import chosen, peers_option, print_missing
from dlog.cli.bench.rows import print_rows
from dlog.cli.bench.spark import command as spark
from dlog.cli.bench.storage import command as storage
from dlog.cli.bench.target import LEDGERS_ROOT, Target, open_ledgers, open_target
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_facts, print_json
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run

DEFAULTS = {  # level -> records, size, inflight, batch
    "ledger": (100_000, 1024, 1000, 1),
    "stream": (500_000, 100, 10_000, 100),
}


Callback = TypeVar("Callback", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--level", type=click.Choice(list(DEFAULTS)), default="stream", show_default=True),
    click.option("--uri", metavar="URI", help="An existing namespace. Its other logs are not touched."),
    click.option(
        "--cluster",
        "bookies",
        type=click.IntRange(3, 20),
        help="Start a ZooKeeper and N bookies for this benchmark.",
        metavar="N",
    ),
    click.option("--records", type=click.IntRange(min=1), help="[default: ledger 100000, stream 500000]"),
    click.option(
        "--size",
        type=click.IntRange(0, 1_000_000),
        help="Payload bytes of each record. [default: ledger 1024, stream 100]",
    ),
    click.option(
        "--inflight",
        type=click.IntRange(min=1),
        help="Records submitted and not yet acknowledged. [default: ledger 1000, stream 10000]",
    ),
    click.option(
        "--batch",
        type=click.IntRange(min=1),
        help="Records of one append_many, at the stream level only. [default: 100]",
    ),
    json_option("measurements and options"),
)


def _with_options(callback: Callback) -> Callback:
    """Add the options that the three workloads share."""
    for option in reversed(_OPTIONS):
        callback = option(callback)
    return callback


@click.group("bench", cls=CommandGroup)
def command() -> None:
    """Measure speed, and compare it with the speed of the disk.

    append, tail and catchup measure a fresh embedded log, at the stream level only, unless --uri or
    --cluster is given. Every acknowledged record is synced to disk. The floor is a plain loop on the same
    disk: it writes the same bytes to three files in groups and calls fdatasync for each. For catchup, it
    reads the bytes from one file. latency measures one awaited append at a time; idle, followers that wait;
    logs, the life of a log and the start of programs; spark, reading and writing from Spark. storage measures
    one bookie without a network; operate, the repair after a bookie's death, an idle cluster and the page.
    """


command.add_command(storage.command)
command.add_command(lone_appends.command)
command.add_command(resting.idle)
command.add_command(resting.life_of_logs)
command.add_command(spark.command)
command.add_command(operate.command)


@command.command()
@_with_options
@peers_option
def append(**options: Any) -> None:
    """Measure appending. The latency runs from submit to acknowledgement."""
    _measure_workload("append", **options)


@command.command()
@_with_options
@click.option(
    "--rate",
    type=click.FloatRange(min=1, max=1_000_000),
    metavar="R",
    help="Append R records per second by an open-loop schedule, and read them in a second process.",
)
@peers_option
def tail(rate: float | None, peers: str | None, **options: Any) -> None:
    """Measure following a log.

    Without --rate, one process writes as fast as it can and reads; the latency runs from submit until the
    reader returns the record. With --rate, a record's latency begins when the record is due, also if the
    writer is late, and ends when a reader in another process has it. The first 5 % are left out. The default
    is 8 seconds with records of 1,024 bytes.
    """
    if rate is not None:
        tail_rate.measure(rate, peers=peers, **options)
    elif peers is not None:
        raise click.UsageError("tail --peers needs --rate R, so that all systems get the same load")
    else:
        _measure_workload("tail", **options)


@command.command()
@_with_options
@click.option(
    "--second-process", is_flag=True, help="Read in a process of its own, as the peers' readers do."
)
@peers_option
def catchup(**options: Any) -> None:
    """Measure reading a log from its beginning. The latency is that of one read."""
    _measure_workload("catchup", **options)


def _measure_workload(
    workload: str,
    *,
    level: str,
    uri: str | None,
    bookies: int | None,
    records: int | None,
    size: int | None,
    inflight: int | None,
    batch: int | None,
    as_json: bool,
    peers: str | None = None,
    second_process: bool = False,
) -> None:
    systems, missing = chosen(peers)
    if second_process and level == "ledger":
        raise click.UsageError("--second-process needs --level stream; a ledger is read by its own client")
    if systems and size == 0:
        raise click.UsageError("--peers needs records with at least 1 byte; give a greater --size")
    if uri is not None and bookies is not None:
        raise click.UsageError("--uri and --cluster exclude each other; give one of them")
    if level == "ledger" and batch not in (None, 1):
        raise click.UsageError(
            f"--batch {batch} needs --level stream; the ledger level submits single entries"
        )
    if level == "ledger" and bookies is None and (uri is None or not uri.startswith("distributedlog")):
        raise click.UsageError("--level ledger needs bookies; add --cluster 3 or --uri distributedlog://...")
    if (workload, level) == ("tail", "stream") and size is not None and size < stream_level.STAMP.size:
        raise click.UsageError(
            f"--size {size} is too small; tail stores the time of submission in each record,"
            f" so give at least {stream_level.STAMP.size}"
        )
    defaults = DEFAULTS[level]
    options = BenchOptions(
        workload=workload,
        level=level,
        records=defaults[0] if records is None else records,
        size=defaults[1] if size is None else size,
        inflight=defaults[2] if inflight is None else inflight,
        batch=min(defaults[3], inflight or defaults[3]) if batch is None else batch,
    )
    if options.batch > options.inflight:
        raise click.UsageError(
            f"--batch {options.batch} is more than --inflight {options.inflight}; raise --inflight"
        )
    with open_scratch("bench") as directory:
        floor_s = _floor_s(directory, options)
        document, rows = run(
            partial(_measure, directory, options, uri, bookies, floor_s, systems, second_process)
        )
    if as_json:
        print_json(document | ({"peers": rows, "not_installed": missing} if peers else {}))
        return
    print_facts((name, _shown(value)) for name, value in document.items())
    if rows:
        print_rows(throughput.COLUMNS, rows)
    print_missing(missing)


def _floor_s(directory: Path, options: BenchOptions) -> float:
    measure = floor.read_floor_s if options.workload == "catchup" else floor.write_floor_s
    return measure(directory, records=options.records, size_bytes=max(1, options.size), group=options.group)


async def _measure(
    directory: Path,
    options: BenchOptions,
    uri: str | None,
    bookies: int | None,
    floor_s: float,
    peers: Sequence[Peer],
    second_process: bool,
) -> tuple[dict[str, object], list[dict[str, object]]]:
    async with open_target(directory, uri, bookies) as target:
        meter = Meter(target.cluster, embedded=target.uri.startswith("file:"))
        if second_process:
            outcome, usage = await _measure_second_process(options, target, meter)
        else:
            outcome, usage = await _measure_here(options, target, meter)
        document = _document(options, outcome, usage, floor_s, target)
        rate = options.records / outcome.seconds
        return document, await throughput.measure_peers(peers, directory, options, target.replicas, rate)


async def _measure_here(options: BenchOptions, target: Target, meter: Meter) -> tuple[Outcome, Usage]:
    first: list[Reading] = []

    def begin() -> None:
        first.append(meter.read())

    if options.level == "ledger":
        root = LEDGERS_ROOT if target.cluster else None
        async with open_ledgers(target.uri, root=root) as client:
            outcome = await getattr(ledger_level, options.workload)(client, options, begin)
            last = meter.read()
    else:
        async with dlog.open_namespace(target.uri, config=target.config) as namespace:
            outcome = await getattr(stream_level, options.workload)(namespace, options, begin)
            last = meter.read()
    return outcome, meter.used(first[0], last)


async def _measure_second_process(
    options: BenchOptions, target: Target, meter: Meter
) -> tuple[Outcome, Usage]:
    """Catch up in a process of its own; the CPU time of the client is that process's."""
    first = meter.read()
    address = {"uri": target.uri}
    measured = await throughput.catch_up_in_processes("dlog", address, options, target.bookies_cpu_s)
    usage = meter.used(first, meter.read())
    return measured.outcome, attrs.evolve(
        usage, client_cpu_s=measured.client_cpu_s, bookies_cpu_s=measured.servers_cpu_s
    )


def _document(
    options: BenchOptions, outcome: Outcome, usage: Usage, floor_s: float, target: Target
) -> dict[str, object]:
    rate = options.records / outcome.seconds
    payload_bytes = options.records * options.size
    floor_rate = options.records / floor_s
    amplification = None
    if usage.written_bytes is not None and payload_bytes and options.workload != "catchup":
        amplification = round(usage.written_bytes / (payload_bytes * target.replicas), 3)
    return {
        "records_per_s": round(rate, 1),
        "mb_per_s": round(rate * options.size / 1e6, 3),
        "p50_ms": round(outcome.latencies.quantile(0.50) * 1000, 3),
        "p99_ms": round(outcome.latencies.quantile(0.99) * 1000, 3),
        "cpu_client_s": round(usage.client_cpu_s, 3),
        "cpu_bookies_s": None if usage.bookies_cpu_s is None else round(usage.bookies_cpu_s, 3),
        "bookie_rss_mib": None if usage.bookie_rss_mib is None else round(usage.bookie_rss_mib, 1),
        "write_amplification": amplification,
        "floor_records_per_s": round(floor_rate, 1),
        "ratio_to_floor": round(rate / floor_rate, 4),
        "options": attrs.asdict(options)
        | {"uri": target.uri, "replicas": target.replicas, "seconds": round(outcome.seconds, 3)},
    }


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return f"{value:,}" if isinstance(value, int | float) else str(value)
