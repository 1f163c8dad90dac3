"""`dlog bench idle` and `dlog bench logs`: options, rows and output.

Not inside: the work of the processes (``work``), the start-up of programs (``startup``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from dlog.cli.bench.options import check_place, place_options
from dlog.cli.bench.rows import print_rows, with_ratios
from dlog.cli.bench.target import open_target
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from tests.bench.startup import measure_startup
from tests.bench.work.job import Job
from tests.bench.work.link import BenchError, open_worker

LIMIT_S = 240  # of one process, before it is given up
CpuOfServers = Callable[[], float | None]
IDLE_COLUMNS = {
    "system": "system",
    "followers": "followers",
    "% of a core": "cpu_percent",
    "servers": "cpu_servers_percent",
    "us/s of one": "cpu_us_per_s",
}
LOGS_COLUMNS = {
    "system": "system",
    "copies": "replicas",
    "CPU ms": "cpu_ms",
    "wall ms": "wall_ms",
    "create": "create_cpu_ms",
    "open": "open_cpu_ms",
    "append": "append_cpu_ms",
    "close": "close_cpu_ms",
    "servers": "cpu_servers_ms",
    "dlog/CPU": "cpu_ratio",
    "dlog/wall": "wall_ratio",
}
STARTUP_COLUMNS = {
    "program": "command",
    "CPU ms": "cpu_ms",
    "wall ms": "wall_ms",
    "CPU/floor": "cpu_ratio_to_floor",
}


@click.command("idle")
@click.option("--followers", type=click.IntRange(1, 10_000), default=1000, show_default=True)
@click.option(
    "--logs", type=click.IntRange(1, 1000), default=1, show_default=True, help="Logs that are followed."
)
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=10, show_default=True)
@place_options
@json_option("measurements and options")
def idle(
    followers: int, logs: int, seconds: float, uri: str | None, bookies: int | None, as_json: bool
) -> None:
    """Measure the CPU time of followers that wait at the end of a log.

    The readers are in one process, embedded with the bookie. Each log has one record and an open writer. The
    floor is a process with as many waiting tasks.
    """
    check_place(uri, bookies)
    with open_scratch("bench") as directory:
        document = run(partial(_measure_idle, directory, followers, logs, seconds, uri, bookies))
    if as_json:
        print_json(document)
    else:
        print_rows(IDLE_COLUMNS, document["systems"])
        print_note(
            f"CPU time in {seconds:g} s: user and system time of the readers' process, and of servers."
        )


@click.command("logs")
@click.option(
    "--logs",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Logs, one after the other.",
)
@click.option("--size", type=click.IntRange(0, 1_000_000), default=100, show_default=True)
@place_options
@json_option("measurements and options")
def life_of_logs(logs: int, size: int, uri: str | None, bookies: int | None, as_json: bool) -> None:
    """Measure the life of a log: create, open, append one record, close; and the start-up of programs.

    The floor makes a directory and a file, and syncs both. The floor of the start-up is the interpreter.
    """
    check_place(uri, bookies)
    with open_scratch("bench") as directory:
        document = run(partial(_measure_logs, directory, logs, size, uri, bookies))
    if as_json:
        print_json(document)
        return
    print_rows(LOGS_COLUMNS, document["systems"])
    print_rows(STARTUP_COLUMNS, document["startup"])
    print_note(
        f"Means of {logs} logs; CPU: user and system time of the client's process.\n"
        "Start-up: medians; the modules are compiled before."
    )


async def _measure_idle(
    directory: Path, followers: int, logs: int, seconds: float, uri: str | None, bookies: int | None
) -> dict[str, Any]:
    async with open_target(directory, uri, bookies) as target:
        address = {"uri": target.uri, "logs": logs, "seconds": seconds}
        rows = []
        for system, servers_cpu_s in (("dlog", target.bookies_cpu_s), ("tasks", _none)):
            job = Job(role="idle", system=system, address=address, records=followers, size=0)
            done, servers_s = await run_job(job, servers_cpu_s)
            rows.append(idle_row(system, followers, done, servers_s))
        return {
            "systems": rows,
            "options": {
                "followers": followers,
                "logs": logs,
                "seconds": seconds,
                "uri": target.uri,
                "replicas": target.replicas,
            },
        }


def idle_row(
    system: str, followers: int, done: dict[str, float], servers_s: float | None
) -> dict[str, object]:
    """The CPU time of all followers in per cent of a core, and of one follower in microseconds per second."""
    elapsed_s = done["elapsed_s"]
    return {
        "system": system,
        "followers": followers,
        "cpu_percent": round(done["cpu_s"] / elapsed_s * 100, 2),
        "cpu_servers_percent": None if servers_s is None else round(servers_s / elapsed_s * 100, 2),
        "cpu_us_per_s": round((done["cpu_s"] + (servers_s or 0)) / elapsed_s / followers * 1e6, 1),
    }


async def _measure_logs(
    directory: Path, logs: int, size: int, uri: str | None, bookies: int | None
) -> dict[str, Any]:
    async with open_target(directory, uri, bookies) as target:
        files = directory / "peer-file"
        files.mkdir()
        rows = []
        for system, replicas, address, servers_cpu_s in (
            ("dlog", target.replicas, {"uri": target.uri}, target.bookies_cpu_s),
            ("file", 1, {"directory": str(files)}, _none),
        ):
            job = Job(
                role="logs",
                system=system,
                address=address,
                records=logs,
                size=size,
                left_out=max(1, logs // 10),
            )
            done, servers_s = await run_job(job, servers_cpu_s)
            del done["event"]
            servers_ms = None if servers_s is None else round(servers_s / logs * 1000, 3)
            rows.append({"system": system, "replicas": replicas, **done, "cpu_servers_ms": servers_ms})
        return {
            "systems": with_ratios(rows, {"cpu_ratio": "cpu_ms", "wall_ratio": "wall_ms"}),
            "startup": await trio.to_thread.run_sync(measure_startup, directory / "compiled"),
            "options": {"logs": logs, "size": size, "uri": target.uri, "replicas": target.replicas},
        }


async def run_job(job: Job, servers_cpu_s: CpuOfServers) -> tuple[dict[str, Any], float | None]:
    """Run one process; return its last message and the CPU time of the servers meanwhile.

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
        return done, None if before is None or after is None else after - before
    raise BenchError(f"{job.role} of {job.system} took longer than {LIMIT_S} s; give smaller numbers")


def _none() -> float | None:
    return None
