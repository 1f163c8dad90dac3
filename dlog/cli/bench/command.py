"""`dlog bench append|tail|catchup`: options, set-up and output.

Inside: the steps of one measurement, which the benchmarks of the checkout use too. Not inside: the workloads
(``ledger_level``, ``stream_level``), the floor (``floor``), `latency` (``lone_appends``).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

import dlog
from dlog.cli.bench import floor, ledger_level, lone_appends, stream_level
from dlog.cli.bench.meter import Meter, Reading, Usage
from dlog.cli.bench.options import BenchOptions, Callback, Outcome, check_place, place_options
from dlog.cli.bench.rows import shown
from dlog.cli.bench.target import LEDGERS_ROOT, BenchTarget, open_ledgers, open_target
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_facts, print_json
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run

DEFAULTS = {  # level -> records, size, inflight, batch
    "ledger": (100_000, 1024, 1000, 1),
    "stream": (500_000, 100, 10_000, 100),
}


_OPTIONS = (
    click.option("--level", type=click.Choice(list(DEFAULTS)), default="stream", show_default=True),
    place_options,
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


def workload_options(callback: Callback) -> Callback:
    """Add the options that the three workloads share."""
    for option in reversed(_OPTIONS):
        callback = option(callback)
    return callback


@click.group("bench", cls=CommandGroup)
def command() -> None:
    """Measure speed, and compare it with the speed of the disk.

    It measures a fresh embedded log, at the stream level only, unless --uri or --cluster is given. Every
    acknowledged record is synced to disk. The floor is a plain loop on the same disk: it writes the same
    bytes to three files in groups and calls fdatasync for each. For catchup, it reads the bytes from one
    file. latency measures one awaited append at a time.
    """


command.add_command(lone_appends.command)


@command.command()
@workload_options
def append(**given: Any) -> None:
    """Measure appending. The latency runs from submit to acknowledgement."""
    _measure_workload("append", **given)


@command.command()
@workload_options
def tail(**given: Any) -> None:
    """Measure following a log.

    One process writes as fast as it can and reads; the latency runs from submit until the reader returns
    the record.
    """
    _measure_workload("tail", **given)


@command.command()
@workload_options
def catchup(**given: Any) -> None:
    """Measure reading a log from its beginning. The latency is that of one read."""
    _measure_workload("catchup", **given)


def _measure_workload(workload: str, *, as_json: bool, **given: Any) -> None:
    options = options_of(workload, **given)
    with open_scratch("bench") as directory:
        floor_s = measure_floor_s(directory, options)
        document = run(partial(_measure, directory, options, given["uri"], given["bookies"], floor_s))
    if as_json:
        print_json(document)
    else:
        print_document(document)


def options_of(
    workload: str,
    *,
    level: str,
    uri: str | None,
    bookies: int | None,
    records: int | None,
    size: int | None,
    inflight: int | None,
    batch: int | None,
) -> BenchOptions:
    """The values of ``workload_options`` with their defaults.

    Raises:
        click.UsageError: They contradict each other.
    """
    check_place(uri, bookies)
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
    return options


def measure_floor_s(directory: Path, options: BenchOptions) -> float:
    """Seconds of the floor for the same bytes."""
    measure = floor.read_floor_s if options.workload == "catchup" else floor.write_floor_s
    return measure(directory, records=options.records, size_bytes=max(1, options.size), group=options.group)


async def _measure(
    directory: Path, options: BenchOptions, uri: str | None, bookies: int | None, floor_s: float
) -> dict[str, object]:
    async with open_target(directory, uri, bookies) as target:
        outcome, usage = await measure_here(options, target, meter_of(target))
        return document_of(options, outcome, usage, floor_s, target)


def meter_of(target: BenchTarget) -> Meter:
    """A meter of this process and of the bookies under measurement."""
    return Meter(target.cluster, embedded=target.uri.startswith("file:"))


async def measure_here(options: BenchOptions, target: BenchTarget, meter: Meter) -> tuple[Outcome, Usage]:
    """Do the work in this process."""
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


def document_of(
    options: BenchOptions, outcome: Outcome, usage: Usage, floor_s: float, target: BenchTarget
) -> dict[str, object]:
    """The figures of one measurement by name."""
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


def print_document(document: dict[str, object]) -> None:
    """Print the figures of one measurement for people."""
    print_facts((name, _shown(value)) for name, value in document.items())


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return shown(value)
