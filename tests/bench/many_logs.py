"""`python -m tests.bench many`: options, rows and output. Not inside: the work of the process (``work``)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from dlog.cli.bench.options import check_place, place_options
from dlog.cli.bench.rows import print_rows
from dlog.cli.bench.target import open_target
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from tests.bench.resting import run_job
from tests.bench.work.job import Job

COLUMNS = {
    "system": "system",
    "logs": "logs",
    "appends/s": "appends_per_s",
    "CPU us": "cpu_us",
    "servers": "cpu_servers_us",
    "rate/one log": "rate_ratio",
    "open CPU s": "open_cpu_s",
    "open s": "open_wall_s",
    "KiB a writer": "rss_kib",
}


@click.command("many")
@click.option("--writers", type=click.IntRange(1, 100_000), default=1000, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=5, show_default=True)
@click.option("--size", type=click.IntRange(0, 1_000_000), default=100, show_default=True)
@place_options
@json_option("measurements and options")
def command(
    writers: int, seconds: float, size: int, uri: str | None, bookies: int | None, as_json: bool
) -> None:
    """Measure many open writers in one process, with one append in flight each.

    Beside them as many tasks append to one log. The opening is measured with the first append of each log.
    """
    check_place(uri, bookies)
    with open_scratch("bench") as directory:
        document = run(partial(_measure, directory, writers, seconds, size, uri, bookies))
    if as_json:
        print_json(document)
    else:
        print_rows(COLUMNS, document["systems"])
        print_note("CPU: of one append, in the client's process. KiB: resident, after the first appends.")


async def _measure(
    directory: Path, writers: int, seconds: float, size: int, uri: str | None, bookies: int | None
) -> dict[str, Any]:
    async with open_target(directory, uri, bookies) as target:
        address = {"uri": target.uri, "seconds": seconds, "deletes": uri is not None}
        rows = []
        for system, logs in (("dlog", writers), ("one log", 1)):
            job = Job(role="many", system=system, address=address, records=writers, size=size)
            done, servers_s = await run_job(job, target.bookies_cpu_s)
            rows.append(row(system, logs, done, servers_s))
        for each in rows:
            each["rate_ratio"] = round(each["appends_per_s"] / rows[-1]["appends_per_s"], 3)
        return {
            "systems": rows,
            "options": {
                "writers": writers,
                "seconds": seconds,
                "size": size,
                "uri": target.uri,
                "replicas": target.replicas,
            },
        }


def row(system: str, logs: int, done: dict[str, float], servers_s: float | None) -> dict[str, Any]:
    """The rate, the CPU time of one append, and what the opening of the logs took."""
    appends = max(1, done["appends"])
    return {
        "system": system,
        "logs": logs,
        "appends_per_s": round(done["appends"] / done["elapsed_s"]),
        "cpu_us": round(done["cpu_s"] / appends * 1e6, 1),
        "cpu_servers_us": None if servers_s is None else round(servers_s / appends * 1e6, 1),
        "open_cpu_s": round(done["open_cpu_s"], 2),
        "open_wall_s": round(done["open_wall_s"], 2),
        "rss_kib": round(done["rss_kib"], 1),
    }
