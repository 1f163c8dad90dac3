"""`dlog demo`: write lines, kill the writer, continue, read back, compare, report.

Not inside: the writer (``writer``), the comparison (``comparison``), the input (``lines``).
Always: every line that the writer process reported before its death counts as acknowledged. The log must
hold all of them at the end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import attrs
import click
import trio

import dlog
from dlog.cli.demo.comparison import LineComparison
from dlog.cli.demo.lines import Lines, survey, write_default_lines
from dlog.cli.demo.report import DemoReport, print_report
from dlog.cli.demo.spark_count import check_spark_is_installed, count_by_spark
from dlog.cli.demo.writer import OnDurable, write_lines
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, progress_bar
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from dlog.cluster import LocalCluster, open_local_cluster
from ledger.transport.bookie_security import ENVIRONMENT_VARIABLE

LOG = "demo"
READ_RECORDS = 8192
BOOKIE_LIVES_S = 0.7  # between the start of the first writer and the death of a bookie


class DemoError(Exception):
    """The demo could not finish. This is no verdict on the log."""


@click.command("demo")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--cluster",
    "bookies",
    type=click.IntRange(3, 20),
    help="Use ZooKeeper and N bookies, and kill a bookie too.",
    metavar="N",
)
@click.option("--spark", is_flag=True, help="Also count the lines with a Structured Streaming query.")
@click.option("--keep", is_flag=True, help="Keep the files and print their directory.")
@json_option("the report")
def command(file: Path | None, bookies: int | None, spark: bool, keep: bool, as_json: bool) -> int:
    """Write lines, kill the writer half way, write the rest, compare all lines.

    Every line of FILE becomes a record. The writer process gets a SIGKILL when half of the lines are
    acknowledged. The default for FILE is more than 100,000 lines of the source of Python's library. Exit
    code 1 if a line was lost, repeated, reordered or changed.
    """
    if spark:
        check_spark_is_installed()
    # The demo kills a bookie on purpose, so the client's warnings about it are no news.
    logging.getLogger("ledger").setLevel(logging.ERROR)
    with open_scratch("demo", keep=keep) as directory:
        report = run(partial(_demo, directory, file, bookies, spark=spark, quiet=as_json))
    if as_json:
        print_json(report.document())
    else:
        print_report(report)
    return 0 if report.is_good else 1


async def _demo(
    directory: Path, file: Path | None, bookies: int | None, *, spark: bool, quiet: bool
) -> DemoReport:
    if file is None:
        file = directory / "lines.txt"
        write_default_lines(file)
    lines = survey(file)
    async with _deployment(directory, bookies) as deployment:
        return await _job(directory, lines, deployment, spark=spark, quiet=quiet)


@attrs.frozen
class DemoDeployment:
    """The namespace of the demo."""

    uri: str
    config: dlog.NamespaceConfig
    cluster: LocalCluster | None  # None: embedded


@contextlib.asynccontextmanager
async def _deployment(directory: Path, bookies: int | None) -> AsyncIterator[DemoDeployment]:
    if bookies is None:
        yield DemoDeployment((directory / "log").as_uri(), dlog.NamespaceConfig(), None)
        return
    os.environ.pop(ENVIRONMENT_VARIABLE, None)  # that file is for the bookies of another cluster
    async with open_local_cluster(directory / "cluster", bookie_count=bookies) as cluster:
        yield DemoDeployment(cluster.uri, dlog.NamespaceConfig(), cluster)


async def _job(
    directory: Path, lines: Lines, deployment: DemoDeployment, *, spark: bool, quiet: bool
) -> DemoReport:
    timings: list[float] = []
    half = (len(lines) + 1) // 2
    async with dlog.open_namespace(deployment.uri, config=deployment.config) as namespace:
        await namespace.create_log(LOG)
    with progress_bar("writing", len(lines), unit="lines", quiet=quiet) as show:

        def on_durable(acknowledged: int, append_s: float) -> None:
            timings.append(append_s)
            show(acknowledged)

        started = time.perf_counter()
        async with _bookie_killed_meanwhile(deployment.cluster) as killed_bookie:
            acknowledged = await _write_until_killed(deployment.uri, lines.file, half, on_durable)
            first_s = time.perf_counter() - started
        async with dlog.open_namespace(deployment.uri, config=deployment.config) as namespace:
            started = time.perf_counter()
            await write_lines(namespace, LOG, lines.file, on_durable)
            seconds = first_s + time.perf_counter() - started
            comparison = await _read_back(namespace, lines)
            segments = len((await namespace.describe_log(LOG)).segments)
    counted = None
    if spark:
        counted = await trio.to_thread.run_sync(
            count_by_spark, deployment.uri, LOG, directory / "spark", abandon_on_cancel=True
        )
    return DemoReport(
        source=str(lines.file),
        deployment=_described(deployment, killed_bookie),
        lines=len(lines),
        records=comparison.records,
        size_bytes=comparison.size_bytes,
        seconds=seconds,
        append_s=sorted(timings),
        segments=segments,
        acknowledged_before_kill=acknowledged,
        acknowledged_lost=comparison.lost_up_to(acknowledged),
        lost=comparison.lost,
        repeated=comparison.repeated,
        reordered=comparison.reordered,
        changed=comparison.changed,
        spark_records=counted,
    )


async def _write_until_killed(uri: str, file: Path, half: int, on_durable: OnDurable) -> int:
    """Run the writer as a process, SIGKILL it half way; return how many lines it reported as durable."""
    acknowledged, rest, killed = 0, b"", False
    command = [sys.executable, "-m", "dlog.cli.demo.writer", uri, LOG, str(file)]
    child = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert child.stdout is not None  # a pipe was asked for above
    try:
        # Read to the end of the pipe: reports that the writer sent before its death count.
        while chunk := await child.stdout.receive_some():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                document = json.loads(line)
                acknowledged = document["acknowledged"]
                on_durable(acknowledged, document["append_s"])
            if acknowledged >= half and not killed:
                child.send_signal(signal.SIGKILL)
                killed = True
        await child.wait()
    finally:
        with trio.CancelScope(shield=True):
            if child.returncode is None:
                child.kill()
            await child.wait()
            await child.stdout.aclose()
    if child.returncode not in (0, -signal.SIGKILL):
        raise DemoError(
            f"the writer process for log {LOG} in {uri} failed with status {child.returncode} after"
            f" {acknowledged} lines; its error is printed above"
        )
    return acknowledged


@contextlib.asynccontextmanager
async def _bookie_killed_meanwhile(cluster: LocalCluster | None) -> AsyncIterator[str | None]:
    """SIGKILL a bookie while the block writes, and restart it; return when the bookie runs again."""
    if cluster is None:
        yield None
        return
    index = len(cluster.state.bookies) - 1
    async with trio.open_nursery() as nursery:

        async def kill_and_restart() -> None:
            await trio.sleep(BOOKIE_LIVES_S)
            cluster.kill(index)
            await cluster.restart(index)

        nursery.start_soon(kill_and_restart)
        yield cluster.state.bookies[index].name


async def _read_back(namespace: dlog.Namespace, lines: Lines) -> LineComparison:
    comparison = LineComparison(lines.prints)
    async with namespace.open_reader(LOG, follow=False) as reader:
        while records := await reader.read_batch(READ_RECORDS):
            for record in records:
                comparison.take(record.txid, record.payload)
    return comparison


def _described(deployment: DemoDeployment, killed_bookie: str | None) -> str:
    if deployment.cluster is None:
        return "embedded: storage and metadata in the process itself"
    return f"ZooKeeper and {len(deployment.cluster.state.bookies)} bookies; {killed_bookie} was killed too"
