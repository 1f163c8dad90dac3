"""`dlog read`: print the records of a log from one position to another, then stop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import click

import dlog
from dlog.cli.terminal.options import (
    config_with,
    json_option,
    keys_option,
    raw_option,
    read_only_option,
    uri_option,
)
from dlog.cli.terminal.output import payload_lines, write_out
from dlog.cli.terminal.position import Position, position_option, record_document
from dlog.cli.terminal.signals import run

BATCH_RECORDS = 4096


@click.command("read")
@click.argument("log")
@uri_option
@click.option(
    "--from",
    "start",
    callback=position_option,
    default="earliest",
    show_default=True,
    metavar="POSITION",
    help="The first record to print.",
)
@click.option(
    "--to",
    "last",
    callback=position_option,
    metavar="POSITION",
    help="The last record to print. [default: the end of the log]",
)
@click.option("--count", type=click.IntRange(min=0), help="Stop after this many records.")
@json_option("one object per record, one a line,")
@raw_option
@keys_option
@read_only_option
def command(
    log: str,
    uri: str,
    start: Position,
    last: Position | None,
    count: int | None,
    as_json: bool,
    raw: bool,
    key_file: str | None,
    read_only: bool,
) -> None:
    """Print the payload of each record of LOG on a line, up to the present end of the log.

    POSITION is earliest, latest, a DLSN (7:42:0), a transaction id (123456), or a date and time
    (2026-11-01T12:00). A date is for a log whose transaction ids are milliseconds since 1970; a writer
    without explicit ids uses those.
    """
    if isinstance(last, dlog.Start):
        raise click.UsageError(f"--to {last.value} is not possible; give a DLSN, a transaction id or a date")
    opening = dlog.open_namespace(uri, config=config_with(key_file), read_only=read_only)
    run(partial(_read, opening, log, start, last, count, as_json=as_json, raw=raw))


async def _read(
    opening: AbstractAsyncContextManager[dlog.Namespace],
    log: str,
    start: Position,
    last: dlog.DLSN | int | None,
    count: int | None,
    *,
    as_json: bool,
    raw: bool,
) -> None:
    end = last if isinstance(last, dlog.DLSN) else None
    left = count
    async with (
        opening as namespace,
        namespace.open_reader(log, start=start, end=end, follow=False) as reader,
    ):
        while left is None or left > 0:
            records = await reader.read_batch(BATCH_RECORDS if left is None else min(left, BATCH_RECORDS))
            if records is None:
                return
            if isinstance(last, int) and records[-1].txid > last:
                await write_out(
                    printed([one for one in records if one.txid <= last], as_json=as_json, raw=raw)
                )
                return
            await write_out(printed(records, as_json=as_json, raw=raw))
            if left is not None:
                left -= len(records)


def printed(records: Sequence[dlog.Record], *, as_json: bool, raw: bool) -> bytes:
    """The records in the form printed on stdout: payloads as stored, but escaped on a terminal."""
    if as_json:
        return "".join(json.dumps(record_document(record)) + "\n" for record in records).encode()
    return payload_lines([record.payload for record in records], raw=raw)
