"""`append` and `catchup`: the workloads of `dlog bench`, and the same by other systems in the same run."""

from __future__ import annotations

from typing import Any

import attrs
import click

from dlog.cli.bench.command import (
    document_of,
    measure_floor_s,
    measure_here,
    meter_of,
    options_of,
    print_document,
    workload_options,
)
from dlog.cli.bench.meter import Usage
from dlog.cli.bench.options import BenchOptions, Outcome
from dlog.cli.bench.rows import print_rows
from dlog.cli.bench.target import BenchTarget, open_target
from dlog.cli.terminal.output import print_json
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from tests.bench import throughput
from tests.bench.peers.table import chosen, peers_option, print_missing


@click.command()
@workload_options
@peers_option
def append(peers: str | None, **given: Any) -> None:
    """Measure appending. The latency runs from submit to acknowledgement."""
    _measure_workload("append", peers, second_process=False, **given)


@click.command()
@workload_options
@click.option(
    "--second-process", is_flag=True, help="Read in a process of its own, as the peers' readers do."
)
@peers_option
def catchup(peers: str | None, second_process: bool, **given: Any) -> None:
    """Measure reading a log from its beginning. The latency is that of one read."""
    _measure_workload("catchup", peers, second_process=second_process, **given)


def _measure_workload(
    workload: str, peers: str | None, *, second_process: bool, as_json: bool, **given: Any
) -> None:
    systems, missing = chosen(peers)
    options = options_of(workload, **given)
    if second_process and options.level == "ledger":
        raise click.UsageError("--second-process needs --level stream; a ledger is read by its own client")
    if systems and options.size == 0:
        raise click.UsageError("--peers needs records with at least 1 byte; give a greater --size")
    with open_scratch("bench") as directory:
        floor_s = measure_floor_s(directory, options)

        async def measure() -> tuple[dict[str, object], list[dict[str, object]]]:
            async with open_target(directory, given["uri"], given["bookies"]) as target:
                if second_process:
                    outcome, usage = await _measure_second_process(options, target)
                else:
                    outcome, usage = await measure_here(options, target, meter_of(target))
                document = document_of(options, outcome, usage, floor_s, target)
                rate = options.records / outcome.seconds
                rows = await throughput.measure_peers(systems, directory, options, target.replicas, rate)
                return document, rows

        document, rows = run(measure)
    if as_json:
        print_json(document | ({"peers": rows, "not_installed": missing} if peers else {}))
        return
    print_document(document)
    if rows:
        print_rows(throughput.COLUMNS, rows)
    print_missing(missing)


async def _measure_second_process(options: BenchOptions, target: BenchTarget) -> tuple[Outcome, Usage]:
    """Catch up in a process of its own; the CPU time of the client is that process's."""
    meter = meter_of(target)
    first = meter.read()
    address = {"uri": target.uri}
    measured = await throughput.catch_up_in_processes("dlog", address, options, target.bookies_cpu_s)
    usage = meter.used(first, meter.read())
    return measured.outcome, attrs.evolve(
        usage, client_cpu_s=measured.client_cpu_s, bookies_cpu_s=measured.servers_cpu_s
    )
