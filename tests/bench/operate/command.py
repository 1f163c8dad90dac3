"""`dlog bench operate`: options, the order of the parts, output.

Not inside: the measurements (one module for each).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from dlog.cli.bench.rows import print_rows, with_ratios
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from dlog.cluster.layout import SESSION_TIMEOUT_MS
from tests.bench.operate import browser, recoverers
from tests.bench.operate.absence import measure_absence
from tests.bench.operate.copying import copy_floor_s
from tests.bench.operate.first_paint import measure_paint
from tests.bench.operate.repair import RepairOptions, measure_repair, options_for
from tests.bench.operate.resting_cluster import measure_rest
from tests.bench.operate.steady_writers import measure_steady_writers
from tests.bench.peers.table import print_missing

PARTS = ("repair", "idle", "page", "away", "writers")
DEFAULT_PARTS = PARTS[:3]
APACHE = "apache"
LIMIT_S = 900.0  # of one repair
REPAIR_COLUMNS = {
    "system": "system",
    "writer": "writer",
    "MB": "mb",
    "noticed s": "noticed_s",
    "healed s": "healed_s",
    "repair s": "repair_s",
    "MB/s": "mb_per_s",
    "CPU s": "cpu_s",
    "writer before": "before_per_s",
    "during": "during_per_s",
    "after": "after_per_s",
    "kept": "share_kept",
    "dlog/": "repair_ratio",
}
IDLE_COLUMNS = {"process": "process", "% of a core": "cpu_percent", "/ZooKeeper": "ratio_to_zookeeper"}
AWAY_COLUMNS = {
    "phase": "phase",
    "ledgers": "ledgers",
    "s": "elapsed_s",
    "% of a core": "cpu_percent",
    "log lines": "log_lines",
    "entries copied": "entries_copied",
}
WRITERS_COLUMNS = {
    "phase": "phase",
    "appends": "appends",
    "longest ms": "worst_append_ms",
    "new log s": "new_log_s",
    "replicated s": "replicated_s",
    "replicas read": "replicas_read",
}
PAGE_COLUMNS = {
    "page": "system",
    "loads": "loads",
    "first paint ms": "first_paint_ms",
    "first contentful paint ms": "first_contentful_paint_ms",
    "load ms": "load_ms",
    "dlog/": "paint_ratio",
}


@attrs.frozen(kw_only=True)
class Choice:
    """The parts to measure, and their options."""

    parts: Sequence[str]
    repair: RepairOptions
    jars: Path | None  # of Apache's program; None: ours alone is measured
    seconds: float  # of rest
    loads: int  # of each page
    away_ledgers: int  # while a bookie is away


@click.command("operate")
@click.option("--repair", "chosen", flag_value="repair", multiple=True, help="The repair after a death.")
@click.option("--idle", "chosen", flag_value="idle", multiple=True, help="The CPU time of an idle cluster.")
@click.option("--page", "chosen", flag_value="page", multiple=True, help="The first paint of the page.")
@click.option(
    "--away", "chosen", flag_value="away", multiple=True, help="Auto-recovery while a bookie is away."
)
@click.option(
    "--writers", "chosen", flag_value="writers", multiple=True, help="Appends while a bookie is away."
)
@click.option(
    "--away-ledgers", type=click.IntRange(1, 1_000_000), default=20_000, show_default=True, metavar="N"
)
@click.option(
    "--mib",
    type=click.IntRange(1, 100_000),
    default=200,
    show_default=True,
    help="Payload of the replicas that die with the bookie.",
)
@click.option(
    "--size", type=click.IntRange(1, 1_000_000), default=16_384, show_default=True, help="Of an entry."
)
@click.option("--ledgers", type=click.IntRange(1, 10_000), default=16, show_default=True)
@click.option("--bookies", type=click.IntRange(4, 20), default=5, show_default=True)
@click.option(
    "--session-timeout",
    "session_timeout_ms",
    type=click.IntRange(1000, 60_000),
    default=SESSION_TIMEOUT_MS,
    show_default=True,
    metavar="MS",
    help="After which ZooKeeper forgets a dead bookie.",
)
@click.option(
    "--steady",
    "steady_s",
    type=click.FloatRange(0.1, 600),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="Of the writer before the death and after the repair.",
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=30, show_default=True, help="Of the idle cluster."
)
@click.option("--loads", type=click.IntRange(1, 100), default=7, show_default=True, help="Of each page.")
@click.option(
    "--peers",
    type=click.Choice([APACHE]),
    help="Repair with Apache's auditor and worker, too, on the same bookies and the same data.",
)
@click.option(
    "--apache-jars",
    "jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The jars of Apache's bookkeeper-server with those that it needs.",
)
@json_option("measurements and options")
def command(
    chosen: tuple[str, ...],
    mib: int,
    size: int,
    ledgers: int,
    bookies: int,
    session_timeout_ms: int,
    steady_s: float,
    seconds: float,
    loads: int,
    away_ledgers: int,
    peers: str | None,
    jars: Path | None,
    as_json: bool,
) -> None:
    """Measure what an operator waits or pays for: repair, idle and page, or the chosen parts.

    repair: a bookie gets SIGKILL; the time until every replica is there again, alone and beside a writer, and
    the share of its rate that the writer keeps. The floor copies and syncs a file of as many bytes. idle: the
    CPU time of three bookies with page and auto-recovery, beside ZooKeeper. page: the first paint in a
    headless Chromium, beside that of a trivial page. away: the CPU time and log lines of auto-recovery during
    its first checks, while one of three bookies is away, until all replicas are back, and for a rolling
    restart. writers: five logs of 40 records a second meanwhile, the longest append, and the time until each
    replica is there.
    """
    if jars is not None and peers is None:
        raise click.UsageError("--apache-jars needs --peers apache")
    parts = [part for part in PARTS if part in chosen] or list(DEFAULT_PARTS)
    missing = _missing(parts, peers, jars)
    choice = Choice(
        parts=[part for part in parts if part not in missing],
        repair=options_for(
            mib,
            size=size,
            ledgers=ledgers,
            bookies=bookies,
            session_timeout_ms=session_timeout_ms,
            steady_s=steady_s,
            limit_s=LIMIT_S,
        ),
        jars=jars if peers and APACHE not in missing else None,
        seconds=seconds,
        loads=loads,
        away_ledgers=away_ledgers,
    )
    with open_scratch("bench") as directory:
        document = run(partial(measure, directory, choice))
    if missing:
        document["not_installed"] = missing
    if as_json:
        print_json(document)
    else:
        _print(document)
        print_missing(missing)


def _missing(parts: Sequence[str], peers: str | None, jars: Path | None) -> dict[str, str]:
    missing = {}
    if "repair" in parts and peers and (package := recoverers.find_missing(jars)) is not None:
        missing[APACHE] = package
    if "page" in parts and (package := browser.find_missing()) is not None:
        missing["page"] = package
    return missing


async def measure(directory: Path, choice: Choice) -> dict[str, Any]:
    """Measure the parts one after the other. If cancelled, all processes end."""
    document: dict[str, Any] = {}
    if "repair" in choice.parts:
        document["repair"] = await _measure_repairs(directory, choice)
    if "idle" in choice.parts:
        document["idle"] = await measure_rest(directory / "idle-cluster", choice.seconds)
    if "page" in choice.parts:
        rows = await measure_paint(directory, choice.loads)
        document["page"] = with_ratios(rows, {"paint_ratio": "first_paint_ms"})
    if "away" in choice.parts:
        document["away"] = await measure_absence(
            directory / "away-cluster", choice.away_ledgers, choice.seconds
        )
    if "writers" in choice.parts:
        document["writers"] = await measure_steady_writers(directory / "writers-cluster", choice.seconds)
    document["options"] = {
        **attrs.asdict(choice.repair),
        "settings": dict(recoverers.SETTINGS),
        "seconds": choice.seconds,
        "loads": choice.loads,
        "away_ledgers": choice.away_ledgers,
    }
    return document


async def _measure_repairs(directory: Path, choice: Choice) -> list[dict[str, Any]]:
    """Rows of ours and of Apache's, alone and beside a writer, each group with its ratios; then the floor."""
    systems: dict[str, recoverers.Open] = {"dlog": recoverers.open_ours}
    if choice.jars is not None:
        systems[f"{APACHE} {recoverers.release_of(choice.jars)}"] = recoverers.open_apache(choice.jars)
    lost_bytes = choice.repair.lost_bytes
    floor_s = await trio.to_thread.run_sync(copy_floor_s, directory, lost_bytes)
    floor = {
        "system": "copy of a file",
        "writer": False,
        "bytes": lost_bytes,
        "repair_s": round(floor_s, 3),
        "mb_per_s": round(lost_bytes / floor_s / 1e6, 2),
    }
    rows: list[dict[str, Any]] = []
    for with_load in (False, True):
        group = []
        for number, (system, opened) in enumerate(systems.items()):
            place = directory / f"repair-{number}-{'writer' if with_load else 'alone'}"
            group.append(await measure_repair(system, opened, place, choice.repair, with_load=with_load))
        if not with_load:
            group.append(dict.fromkeys(group[0]) | floor)
        rows += with_ratios(group, {"repair_ratio": "repair_s"})
    return rows


def _print(document: dict[str, Any]) -> None:
    if "repair" in document:
        rows = [
            row | {"writer": "yes" if row["writer"] else "no", "mb": round(row["bytes"] / 1e6, 1)}
            for row in document["repair"]
        ]
        print_rows(REPAIR_COLUMNS, rows)
        print_note(
            "noticed and healed: from the SIGKILL; repair: from noticed to healed. The writer's rates are"
            " entries of 1 KiB per second."
        )
    if "idle" in document:
        print_rows(IDLE_COLUMNS, document["idle"])
    if "away" in document:
        print_rows(AWAY_COLUMNS, document["away"])
    if "writers" in document:
        empty = dict.fromkeys(WRITERS_COLUMNS.values())
        print_rows(WRITERS_COLUMNS, [empty | row for row in document["writers"]])
    if "page" in document:
        print_rows(PAGE_COLUMNS, document["page"])
