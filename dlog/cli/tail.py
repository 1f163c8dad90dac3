"""`dlog tail`: print records as they are written, until interrupted."""

from __future__ import annotations

from functools import partial

import click

import dlog
from dlog.cli.output import write_out
from dlog.cli.position import Position, position_option
from dlog.cli.read import BATCH_RECORDS, printed
from dlog.cli.running import run
from dlog.cli.target import json_option, uri_option


@click.command("tail")
@click.argument("log")
@uri_option
@click.option(
    "--from", "start", callback=position_option, default="latest", show_default=True, help="Where to begin."
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many records.")
@json_option("one object for each record, a line each,")
def command(log: str, uri: str, start: Position, count: int | None, as_json: bool) -> None:
    """Print the payload of each record written to LOG from now on, until interrupted.

    Positions for --from are those of `dlog read`.
    """
    run(partial(_tail, uri, log, start, count, as_json=as_json))


async def _tail(uri: str, log: str, start: Position, count: int | None, *, as_json: bool) -> None:
    left = count
    async with dlog.open_namespace(uri) as namespace, namespace.open_reader(log, start=start) as reader:
        while left is None or left > 0:
            records = await reader.read_batch(BATCH_RECORDS if left is None else min(left, BATCH_RECORDS))
            if not records:
                return  # the log was sealed
            await write_out(printed(records, as_json=as_json))
            if left is not None:
                left -= len(records)
