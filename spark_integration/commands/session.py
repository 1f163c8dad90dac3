"""What the commands of `dlog pipeline` share: the options of Spark and of the client, Spark's session, the
lines of progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from dlog.cli.terminal.options import gather
from dlog.cli.terminal.output import print_note, progress_bar

if TYPE_CHECKING:
    from spark_integration.pipelines import Progress

Command = TypeVar("Command", bound=Callable[..., Any])


def key_values(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """The texts KEY=VALUE of an option that may be repeated, as a dictionary."""
    found = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{each!r} is no KEY=VALUE", context, parameter)
        found[name] = value
    return found


@attrs.frozen
class SparkOptions:
    """How the Spark of a command is started."""

    master: str | None
    conf: dict[str, str]


def spark_options(command: Command) -> Command:
    """Add the options `--master` and `--conf`; the command gets ``SparkOptions`` as ``on``."""
    command = gather(on=SparkOptions)(command)
    command = click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        callback=key_values,
        help="A setting of Spark; may be repeated.",
    )(command)
    return click.option(
        "--master",
        metavar="URL",
        help="Of Spark. Default: all cores of this machine, or the one of spark-submit.",
    )(command)


def client_options(command: Command) -> Command:
    """Add the option `--option`; the command gets ``options``, a dictionary for the pipeline."""
    return click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=key_values,
        help="Of the client on the driver and each executor, as for the data source: client.write_quorum=2,"
        " configFile=/etc/dlog.toml, bookieSecurity=FILE; may be repeated.",
    )(command)


@contextmanager
def spark_session(name: str, on: SparkOptions) -> Iterator[Any]:
    """The ``SparkSession`` of a command, stopped at the end of the block.

    Raises:
        click.ClickException: PySpark or PyArrow is not installed.
        SparkStartError: Spark did not start.
    """
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise click.ClickException(
            "this needs PySpark; install it with: pip install '.[spark]' in a checkout of DLog"
        )
    from spark_integration.pipelines import open_session

    with open_session(name, master=on.master, settings=on.conf) as spark:
        yield spark


@contextmanager
def progress_lines(*, as_json: bool) -> Iterator[Callable[[Progress], None]]:
    """The function that shows progress on stderr: with ``as_json`` a JSON document a line, else for people.

    For people it prints a line for each step, and a bar of records if stderr is a terminal.
    """
    if as_json:

        def print_document(progress: Progress) -> None:
            print(json.dumps(progress.as_document()), file=sys.stderr, flush=True)

        yield print_document
        return
    with progress_bar("records", None, unit="records") as advance:
        last = ""

        def show(progress: Progress) -> None:
            nonlocal last
            if progress.step != last:
                last = progress.step
                whole = "" if progress.records_total is None else f" of {progress.records_total:,}"
                print_note(f"{progress.log}: {progress.step} ({progress.records:,}{whole} records done)")
            advance(progress.records)

        yield show
