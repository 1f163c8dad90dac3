"""`dlog tail`: print records as they are written, until interrupted or until the log is sealed."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial

import click

import dlog
from dlog.cli.logs.read import BATCH_RECORDS, printed
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import (
    config_with,
    json_option,
    keys_option,
    raw_option,
    read_only_option,
    uri_option,
)
from dlog.cli.terminal.output import print_note, write_out
from dlog.cli.terminal.position import Position, position_option
from dlog.cli.terminal.signals import run


@click.command("tail")
@click.argument("log", shell_complete=log_names)
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
@read_only_option
def command(
    log: str,
    uri: str,
    start: Position,
    count: int | None,
    as_json: bool,
    raw: bool,
    key_file: str | None,
    read_only: bool,
) -> None:
    """Print the payload of each new record of LOG on a line, until interrupted.

    POSITION is one of those in `dlog read --help`. With --read-only, a directory that no process has open is
    printed up to its end.
    """
    opening = dlog.open_namespace(uri, config=config_with(key_file), read_only=read_only)
    run(partial(_tail, opening, log, start, count, as_json=as_json, raw=raw))


async def _tail(
    opening: AbstractAsyncContextManager[dlog.Namespace],
    log: str,
    start: Position,
    count: int | None,
    *,
    as_json: bool,
    raw: bool,
) -> None:
    left = count
    async with (
        opening as namespace,
        namespace.open_reader(log, start=start, follow=not namespace.is_snapshot) as reader,
    ):
        if namespace.is_snapshot:
            print_note("no process has the directory open: records that are written later do not appear")
        while left is None or left > 0:
            records = await reader.read_batch(BATCH_RECORDS if left is None else min(left, BATCH_RECORDS))
            if records is None:
                return  # the log is sealed, or a snapshot ends
            await write_out(printed(records, as_json=as_json, raw=raw))
            if left is not None:
                left -= len(records)
