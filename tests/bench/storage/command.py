"""`dlog bench storage`: options, the order of the measurements, output.

Not inside: the measurements (one module each) and their bars (in the same modules).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import attrs
import click

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_facts, print_json, print_table, progress_bar
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from tests.bench.storage import adds, compaction, reads, restarts
from tests.bench.storage.disk_space import check_space
from tests.bench.storage.measurement import GIB, MIB, Measurement
from tests.bench.storage.soak import Soak

Measure = Callable[[Path, int, Callable[[int], None]], Awaitable[Measurement]]


@attrs.frozen
class Part:
    """One measurement."""

    measure: Measure
    mib: int  # payload, unless --mib is given
    disk_factor: float  # disk bytes at the peak per payload byte


PARTS = {
    "adds": Part(adds.measure_adds, 400, 2.2),
    "writes": Part(adds.measure_writes, 1024, 2.2),
    "reads": Part(reads.measure_reads, 1024, 2.2),
    "replay": Part(restarts.measure_replay, 1024, 2.3),
    "rebuild": Part(restarts.measure_rebuild, 4096, 1.2),
    "compaction": Part(compaction.measure_compaction, 512, 2.2),
}
DEFAULT_PARTS = ("adds", "writes")  # measured if no part is chosen


@click.command("storage")
@click.option("--add", "chosen", flag_value="adds", multiple=True, help="Adds of 1 KiB, 1,000 in flight.")
@click.option(
    "--write",
    "chosen",
    flag_value="writes",
    multiple=True,
    help="Entries of 64 KiB, to journal and entry log.",
)
@click.option("--read", "chosen", flag_value="reads", multiple=True, help="Random reads with cold caches.")
@click.option(
    "--replay", "chosen", flag_value="replay", multiple=True, help="A start that replays the journal."
)
@click.option(
    "--rebuild", "chosen", flag_value="rebuild", multiple=True, help="A start that rebuilds the index."
)
@click.option(
    "--compaction", "chosen", flag_value="compaction", multiple=True, help="Adds while compaction runs."
)
@click.option("--all", "is_all", is_flag=True, help="All parts.")
@click.option(
    "--soak",
    "soak_gib",
    type=click.FloatRange(0, 1000, min_open=True),
    metavar="GIB",
    help="Write GIB while ledgers are deleted and compacted; check every read, disk use and memory.",
)
@click.option(
    "--mib", type=click.IntRange(1, 1 << 20), help="Payload of each part. [default: see docs/cli.md]"
)
@click.option("--check", is_flag=True, help="Exit with code 1 unless every bar is reached.")
@json_option("the measurements")
def command(
    chosen: tuple[str, ...], is_all: bool, soak_gib: float | None, mib: int | None, check: bool, as_json: bool
) -> int:
    """Measure one bookie's storage without a network, and compare it with the speed of the disk.

    The default is --add and --write. Each value is printed with its floor, the result of a plain loop on the
    same disk in the same benchmark, and with the bar that it has to reach. All files are removed at the end.

    --soak excludes the measurements. It exits with code 1 if an entry was read wrongly, or if disk use or
    memory exceeded its bound; the files are kept then.
    """
    if soak_gib is not None:
        return _soak(int(soak_gib * GIB), as_json=as_json)
    names = list(PARTS) if is_all else [name for name in PARTS if name in (chosen or DEFAULT_PARTS)]
    measurements = [_measured(name, mib, quiet=as_json) for name in names]
    if as_json:
        print_json({measurement.part: measurement.document() for measurement in measurements})
    else:
        print_table(
            ("part", "measured", "floor", "ratio", "bar", "met"),
            [_row(measurement) for measurement in measurements],
        )
        print_facts((measurement.part, _details(measurement)) for measurement in measurements)
    return (
        ExitCode.FAILED
        if check and not all(measurement.is_met for measurement in measurements)
        else ExitCode.OK
    )


def _soak(total_bytes: int, *, as_json: bool) -> int:
    with open_scratch("soak") as directory, progress_bar("soak", total_bytes, unit="bytes") as progress:
        soak = Soak(directory, total_bytes, progress)
        check_space(directory, soak.disk_bytes_max)
        found = run(soak.run)
        document = soak.document()
        if as_json:
            print_json(document)
        else:
            print_facts((name, str(value)) for name, value in document.items())
        if found.errors:
            raise SoakError(f"the soak found {len(found.errors)} errors; the first: {found.errors[0]}")
    return ExitCode.OK


class SoakError(Exception):
    """The storage returned an entry that differs from the written one, or a bound was exceeded."""


def _measured(name: str, mib: int | None, *, quiet: bool) -> Measurement:
    part = PARTS[name]
    size_bytes = (mib or part.mib) * MIB
    with open_scratch("bench", keep_evidence=False) as directory:
        check_space(directory, int(size_bytes * part.disk_factor))
        with progress_bar(name, size_bytes, unit="bytes", quiet=quiet) as progress:
            return run(partial(part.measure, directory, size_bytes, progress))


def _row(measurement: Measurement) -> tuple[str, ...]:
    return (
        measurement.part,
        f"{measurement.value:,.1f} {measurement.unit}",
        "-" if measurement.floor is None else f"{measurement.floor:,.1f}",
        "-" if measurement.ratio is None else f"{measurement.ratio:.3f}",
        str(measurement.bar),
        "yes" if measurement.is_met else "NO",
    )


def _details(measurement: Measurement) -> str:
    return ", ".join(f"{name}={value:,.3f}" for name, value in measurement.details.items())
