"""`dlog pipeline`: the group of the commands that run Spark over whole logs.

Inside: the table of commands. Not inside: the commands (one module each), what they do
(``spark_integration.pipelines``), which is imported when a command runs.
"""

from __future__ import annotations

import click

from dlog.cli.terminal.groups import CommandGroup
from spark_integration.commands.archive import archive, restore, table
from spark_integration.commands.compact import compact
from spark_integration.commands.copy import copy
from spark_integration.commands.verify import verify


@click.group("pipeline", cls=CommandGroup)
def command() -> None:
    """Work on whole logs with Spark.

    Each pipeline may be interrupted at any time and started again: it continues, and does everything once.
    Needs PySpark and Java: pip install '.[spark]'.
    """


for each in (archive, table, restore, copy, verify, compact):
    command.add_command(each)
