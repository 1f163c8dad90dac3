"""`dlog tail`: print records as they are written, until interrupted or until the log is sealed."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial

import attrs
import click

import dlog
from dlog.cli.logs.read import BATCH_RECORDS, write_records
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import (
    config_with,
    gather,
    json_option,
    keys_option,
    raw_option,
    read_only_option,
    statistics_option,
    statistics_settings,
    uri_option,
)
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.position import Position, position_option
from dlog.cli.terminal.signals import run


@attrs.frozen
class _Opening:
    """How the namespace is opened."""

    key_file: str | None
    read_only: bool
    statistics: bool


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
@statistics_option
@gather(opening=_Opening)
def command(
    log: str,
    uri: str,
    start: Position,
    count: int | None,
    as_json: bool,
    raw: bool,
    opening: _Opening,
) -> None:
    """Print the payload of each new record of LOG on a line, until interrupted.

    POSITION is one of those in `dlog read --help`. With --read-only, a directory that no process has open is
    printed up to its end.
    """
    opened = dlog.open_namespace(
        uri,
        config=config_with(opening.key_file),
        settings=statistics_settings(opening.statistics),
        read_only=opening.read_only,
    )
    seen: list[dlog.Statistics] = []
    try:
        kept = seen if opening.statistics else None
        run(partial(_tail, opened, log, start, count, kept, as_json=as_json, raw=raw))
    finally:
        for one in seen:  # also after an interruption
            if as_json:
                print_json({"statistics": one.as_json()})
            else:
                print_note(one.prometheus())


async def _tail(
    opening: AbstractAsyncContextManager[dlog.Namespace],
    log: str,
    start: Position,
    count: int | None,
    seen: list[dlog.Statistics] | None,
    *,
    as_json: bool,
    raw: bool,
) -> None:
    """``seen``: gets the statistics at the end."""
    async with opening as namespace:
        try:
            await _print_records(namespace, log, start, count, as_json=as_json, raw=raw)
        finally:
            if seen is not None:
                seen.append(namespace.statistics())


async def _print_records(
    namespace: dlog.Namespace, log: str, start: Position, count: int | None, *, as_json: bool, raw: bool
) -> None:
    left = count
    async with namespace.open_reader(log, start=start, follow=not namespace.is_snapshot) as reader:
        if namespace.is_snapshot:
            print_note("no process has the directory open: records that are written later do not appear")
        while left is None or left > 0:
            records = await reader.read_batch(BATCH_RECORDS if left is None else min(left, BATCH_RECORDS))
            if records is None:
                return  # the log is sealed, or a snapshot ends
            await write_records(records, as_json=as_json, raw=raw)
            if left is not None:
                left -= len(records)
