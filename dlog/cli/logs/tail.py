"""`dlog tail`: print records as they are written, until interrupted or until the log is sealed."""

from __future__ import annotations

from functools import partial

import click

import dlog
from dlog.cli.logs.read import BATCH_RECORDS, printed
from dlog.cli.terminal.options import config_with, json_option, keys_option, raw_option, uri_option
from dlog.cli.terminal.output import write_out
from dlog.cli.terminal.position import Position, position_option
from dlog.cli.terminal.signals import run


@click.command("tail")
@click.argument("log")
@uri_option
@click.option(
    "--from",
    "start",
    callback=position_option,
    default="latest",
    show_default=True,
    metavar="POSITION",
    help="The first record to print.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many records.")
@json_option("one object per record, one a line,")
@raw_option
@keys_option
def command(
    log: str, uri: str, start: Position, count: int | None, as_json: bool, raw: bool, key_file: str | None
) -> None:
    """Print the payload of each new record of LOG on a line, until interrupted.

    POSITION is one of those in `dlog read --help`.
    """
    run(partial(_tail, uri, log, start, count, as_json=as_json, raw=raw, key_file=key_file))


async def _tail(
    uri: str, log: str, start: Position, count: int | None, *, as_json: bool, raw: bool, key_file: str | None
) -> None:
    left = count
    async with (
        dlog.open_namespace(uri, config=config_with(key_file)) as namespace,
        namespace.open_reader(log, start=start) as reader,
    ):
        while left is None or left > 0:
            records = await reader.read_batch(BATCH_RECORDS if left is None else min(left, BATCH_RECORDS))
            if records is None:
                return  # the log is sealed
            await write_out(printed(records, as_json=as_json, raw=raw))
            if left is not None:
                left -= len(records)
