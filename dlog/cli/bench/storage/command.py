"""`dlog bench storage`: options, what is measured one after the other, what is printed.

Not inside: the measurements (a module each), the bars (beside them).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import attrs
import click

from dlog.cli.bench.storage import adds, compaction, reads, restarts
from dlog.cli.bench.storage.figures import GIB, MIB, Figure
from dlog.cli.bench.storage.room import check_room
from dlog.cli.bench.storage.soak import Soak
from dlog.cli.exit_codes import ExitCode
from dlog.cli.output import print_facts, print_json, print_table, progress_bar
from dlog.cli.running import run
from dlog.cli.scratch import open_scratch
from dlog.cli.target import json_option

Measure = Callable[[Path, int, Callable[[int], None]], Awaitable[Figure]]


@attrs.frozen
class Part:
    """One measurement."""

    measure: Measure
    mib: int  # payload bytes unless asked otherwise
    disk_factor: float  # at its greatest it takes so much of the disk for each payload byte


PARTS = {
    "adds": Part(adds.measure_adds, 400, 2.2),
    "writes": Part(adds.measure_writes, 1024, 2.2),
    "reads": Part(reads.measure_reads, 1024, 2.2),
    "replay": Part(restarts.measure_replay, 1024, 2.3),
    "rebuild": Part(restarts.measure_rebuild, 4096, 1.2),
    "compaction": Part(compaction.measure_compaction, 512, 2.2),
}
ALWAYS = ("adds", "writes")  # measured unless others are asked for


@click.command("storage")
@click.option("--add", "chosen", flag_value="adds", multiple=True, help="Adds of 1 KiB, 1,000 in flight.")
@click.option(
    "--write", "chosen", flag_value="writes", multiple=True, help="Entries of 64 KiB, to both places."
)
@click.option("--read", "chosen", flag_value="reads", multiple=True, help="Random reads, all caches cold.")
@click.option("--replay", "chosen", flag_value="replay", multiple=True, help="A start on a full journal.")
@click.option("--rebuild", "chosen", flag_value="rebuild", multiple=True, help="A start without the index.")
@click.option(
    "--compaction", "chosen", flag_value="compaction", multiple=True, help="Writers beside compaction."
)
@click.option("--all", "is_all", is_flag=True, help="Everything.")
@click.option(
    "--soak",
    "soak_gib",
    type=click.FloatRange(0, 1000, min_open=True),
    metavar="GIB",
    help="Write so much with deletions and compaction running, check every read, watch disk and memory.",
)
@click.option("--mib", type=click.IntRange(1, 1 << 20), help="Payload of each part, in place of its own.")
@click.option("--check", is_flag=True, help="End with code 1 unless every bar is reached.")
@json_option("the figures")
def command(
    chosen: tuple[str, ...], is_all: bool, soak_gib: float | None, mib: int | None, check: bool, as_json: bool
) -> int:
    """Measure one bookie's storage without a network, beside what the disk itself could do.

    Without options: --add and --write. Each figure stands beside its floor, measured in the same run by a
    plain loop, and beside the bar it has to reach. Nothing is left on the disk.

    --soak measures nothing else. It ends with code 1 if anything that was read was wrong, or disk or memory
    grew beyond their bounds; the files are kept then.
    """
    if soak_gib is not None:
        return _soak(int(soak_gib * GIB), as_json=as_json)
    names = list(PARTS) if is_all else [name for name in PARTS if name in (chosen or ALWAYS)]
    figures = [_measured(name, mib, quiet=as_json) for name in names]
    if as_json:
        print_json({figure.part: figure.document() for figure in figures})
    else:
        print_table(
            ("part", "measured", "floor", "ratio", "bar", "met"), [_row(figure) for figure in figures]
        )
        print_facts((figure.part, _details(figure)) for figure in figures)
    return ExitCode.FAILED if check and not all(figure.is_met for figure in figures) else ExitCode.OK


def _soak(total_bytes: int, *, as_json: bool) -> int:
    with open_scratch("soak") as directory, progress_bar("soak", total_bytes, unit="bytes") as progress:
        soak = Soak(directory, total_bytes, progress)
        check_room(directory, soak.disk_bytes_max)
        found = run(soak.run)
        document = soak.document()
        if as_json:
            print_json(document)
        else:
            print_facts((name, str(value)) for name, value in document.items())
        if found.wrongs:
            raise SoakError(f"{len(found.wrongs)} things were wrong; the first: {found.wrongs[0]}")
    return ExitCode.OK


class SoakError(Exception):
    """What was read was not what was written, or a bound did not hold."""


def _measured(name: str, mib: int | None, *, quiet: bool) -> Figure:
    part = PARTS[name]
    size_bytes = (mib or part.mib) * MIB
    with open_scratch("bench", keep_evidence=False) as directory:
        check_room(directory, int(size_bytes * part.disk_factor))
        with progress_bar(name, size_bytes, unit="bytes", quiet=quiet) as progress:
            return run(partial(part.measure, directory, size_bytes, progress))


def _row(figure: Figure) -> tuple[str, ...]:
    return (
        figure.part,
        f"{figure.value:,.1f} {figure.unit}",
        "-" if figure.floor is None else f"{figure.floor:,.1f}",
        "-" if figure.ratio is None else f"{figure.ratio:.3f}",
        str(figure.bar),
        "yes" if figure.is_met else "NO",
    )


def _details(figure: Figure) -> str:
    return ", ".join(f"{name}={value:,.3f}" for name, value in figure.details.items())
