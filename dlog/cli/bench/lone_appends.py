"""`dlog bench latency`: one awaited append at a time; options, rows and output.

Always: the next append begins when the last one is acknowledged.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
import trio

import dlog
import dlog.blocking
from dlog.cli.bench.floor import open_floor
from dlog.cli.bench.latency import Latencies
from dlog.cli.bench.meter import cpu_s
from dlog.cli.bench.options import check_place, place_options
from dlog.cli.bench.rows import print_rows, with_ratios
from dlog.cli.bench.target import LEDGERS_ROOT, BenchTarget, open_ledgers, open_target
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run

LEVELS = ("stream", "blocking", "ledger")
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
Figures = dict[str, float]
now = time.perf_counter


@attrs.frozen(kw_only=True)
class LoneAppends:
    """The appends of one measurement."""

    records: int
    size: int
    begin: Callable[[], None]  # called when the clock starts
    done: Callable[[Figures], None]  # called when it stops, before the log is closed and deleted

    @property
    def left_out(self) -> int:
        """Appends before the clock starts, so that connections exist and code is loaded."""
        return max(1, self.records // 10)

    async def to_stream(self, uri: str) -> None:
        """Append to a new log of the namespace."""
        log = _log_name()
        async with dlog.open_namespace(uri) as namespace:
            await namespace.create_log(log)
            async with namespace.open_writer(log) as writer:
                await self._awaited(writer.append)
            await namespace.delete_log(log)

    async def to_ledger(self, uri: str, root: str | None) -> None:
        """Append to a new ledger under ``root``; None takes that of the namespace."""
        async with open_ledgers(uri, root=root) as client:
            handle = await client.create()
            async with handle:
                await self._awaited(handle.append)
            await client.delete(handle.ledger_id)

    def by_blocking(self, uri: str) -> None:
        """As ``to_stream``, by ``dlog.blocking`` in a thread without a loop."""
        log = _log_name()
        with dlog.blocking.open_namespace(uri) as namespace:
            namespace.create_log(log)
            with namespace.open_writer(log) as writer:
                self.called(writer.append)
            namespace.delete_log(log)

    def called(self, append: Callable[[bytes], object]) -> None:
        """Call ``append`` in a plain thread."""
        payload = os.urandom(self.size)
        for _ in range(self.left_out):
            append(payload)
        latencies = Latencies()
        self.begin()
        cpu_before = cpu_s()
        for _ in range(self.records):
            started = now()
            append(payload)
            latencies.add(now() - started)
        self._stop(latencies, cpu_s() - cpu_before)

    async def _awaited(self, append: Callable[[bytes], Awaitable[object]]) -> None:
        payload = os.urandom(self.size)
        for _ in range(self.left_out):
            await append(payload)
        latencies = Latencies()
        self.begin()
        cpu_before = cpu_s()
        for _ in range(self.records):
            started = now()
            await append(payload)
            latencies.add(now() - started)
        self._stop(latencies, cpu_s() - cpu_before)

    def _stop(self, latencies: Latencies, used_cpu_s: float) -> None:
        self.done({**latencies.milliseconds(), "cpu_us": round(used_cpu_s / self.records * 1e6, 1)})


def _log_name() -> str:
    return f"bench-{secrets.token_hex(4)}"


def lone_options(callback: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `latency`: ``levels``, those of the place, ``records`` and ``size``."""
    for option in reversed(_OPTIONS):
        callback = option(callback)
    return callback


_OPTIONS = (
    click.option(
        "--level",
        "levels",
        type=click.Choice(LEVELS),
        multiple=True,
        help="stream: with await; blocking: dlog.blocking; ledger: without a log. Repeatable. [default: all]",
    ),
    place_options,
    click.option("--records", type=click.IntRange(1, 1_000_000), default=2000, show_default=True),
    click.option("--size", type=click.IntRange(1, 1_000_000), default=1024, show_default=True),
    json_option("measurements and options"),
)


def wanted_levels(levels: Sequence[str], uri: str | None, bookies: int | None) -> list[str]:
    """The levels to measure, in the order of ``LEVELS``; without bookies, none of a ledger.

    Raises:
        click.UsageError: The options contradict each other.
    """
    check_place(uri, bookies)
    has_bookies = bookies is not None or (uri or "").startswith("distributedlog")
    if "ledger" in levels and not has_bookies:
        raise click.UsageError("--level ledger needs bookies; add --cluster 3 or --uri distributedlog://...")
    return [one for one in LEVELS if one in (levels or LEVELS) and (one != "ledger" or has_bookies)]


@click.command("latency")
@lone_options
def command(
    levels: Sequence[str], uri: str | None, bookies: int | None, records: int, size: int, as_json: bool
) -> None:
    """Measure one awaited append at a time: the next begins when the last is acknowledged.

    Measures an embedded log unless --uri or --cluster is given. The floor writes the same bytes to a plain
    file for each replica and calls fdatasync. Ratios are those of the first row to each other row.
    """
    wanted = wanted_levels(levels, uri, bookies)
    with open_scratch("bench") as directory:
        document = run(partial(_measure, directory, uri, bookies, wanted, records, size))
    if as_json:
        print_json(document)
        return
    print_rows(COLUMNS, document["systems"])
    print_summary(records, size)


def print_summary(records: int, size: int) -> None:
    """Say what the rows are of."""
    print_note(
        f"{records} appends of {size} bytes, one at a time. CPU of each append in us: user and system time of"
        " the client's process, and of the servers."
    )


async def _measure(
    directory: Path, uri: str | None, bookies: int | None, levels: Sequence[str], records: int, size: int
) -> dict[str, Any]:
    rows: list[dict[str, object]] = []
    async with open_target(directory, uri, bookies) as target:
        for level in levels:
            work = _work(rows, {"system": "dlog", "level": level}, target, records, size)
            if level == "stream":
                await work.to_stream(target.uri)
            elif level == "ledger":
                await work.to_ledger(target.uri, LEDGERS_ROOT if target.cluster else None)
            else:
                await trio.to_thread.run_sync(work.by_blocking, target.uri)
        with open_floor(directory, target.replicas) as append:
            remote = attrs.evolve(target, cluster=None)  # the floor has no servers
            _work(rows, {"system": "file", "level": None}, remote, records, size).called(append)
        options = {"records": records, "size": size, "uri": target.uri, "replicas": target.replicas}
        return {"systems": with_ratios(rows, RATIOS), "options": options}


def _work(
    rows: list[dict[str, object]], name: Mapping[str, object], target: BenchTarget, records: int, size: int
) -> LoneAppends:
    """Appends that add a row with their figures."""
    before: list[float | None] = []

    def done(figures: Figures) -> None:
        servers_us = per_append_us(before[0], target.bookies_cpu_s(), records)
        rows.append({**name, "replicas": target.replicas, **figures, "cpu_servers_us": servers_us})

    return LoneAppends(
        records=records, size=size, begin=lambda: before.append(target.bookies_cpu_s()), done=done
    )


def per_append_us(before_s: float | None, after_s: float | None, records: int) -> float | None:
    """The CPU time of the servers for each append in microseconds; None if it is not measured."""
    return None if before_s is None or after_s is None else round((after_s - before_s) / records * 1e6, 1)
