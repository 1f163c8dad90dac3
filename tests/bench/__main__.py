"""``python -m tests.bench``: the commands of the benchmarks."""

from __future__ import annotations

import sys

import click

from dlog.cli.main import run_program
from dlog.cli.terminal.groups import CommandGroup
from tests.bench import lone_appends, many_logs, resting, sharing, tail_rate, workloads
from tests.bench.operate import command as operate
from tests.bench.spark import command as spark
from tests.bench.storage import command as storage


@click.group(cls=CommandGroup)
def program() -> None:
    """Measure DLog beside other systems and beside the speed of the disk.

    append, catchup, latency and tail do the work of `dlog bench` also with other systems, each in processes
    of its own. idle measures followers that wait; logs, the life of a log and the start of programs; many,
    open writers of many logs; shared, programs that write one log; spark, reading and writing from Spark;
    storage, one bookie without a network; operate, the repair after a bookie's death, an idle cluster and the
    page.
    """


for command in (
    workloads.append,
    workloads.catchup,
    tail_rate.command,
    lone_appends.command,
    resting.idle,
    resting.life_of_logs,
    many_logs.command,
    sharing.command,
    spark.command,
    storage.command,
    operate.command,
):
    program.add_command(command)


if __name__ == "__main__":
    sys.exit(run_program(program, "python -m tests.bench"))
