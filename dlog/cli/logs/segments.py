"""`dlog log position|watch`: where in a log a moment is, and how its segments change.

Inside: options and output. Not inside: the search (``read_only_log``), the watch (``segment_watch``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option, read_only_option, uri_option
from dlog.cli.terminal.output import moment_text, print_json, print_note
from dlog.cli.terminal.position import Position, described, position_option
from dlog.cli.terminal.signals import run


@click.command("position")
@click.argument("log", shell_complete=log_names)
@click.argument("place", metavar="TXID|TIME", callback=position_option)
@uri_option
@json_option("the position")
@read_only_option
def position(log: str, place: Position, uri: str, as_json: bool, read_only: bool) -> int:
    """Print the position (DLSN) of the first record of LOG at a transaction id or a time, or after it.

    A time such as 2026-11-01T12:00 is for a log whose transaction ids are milliseconds since 1970; a writer
    without explicit ids uses those. The writer is not disturbed. Exit code 3: there is no such record.
    """
    if not isinstance(place, int):
        raise click.UsageError("give a transaction id or a time; `dlog log show LOG` has the ends of a log")

    async def go() -> dlog.DLSN | None:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            return await namespace.position_of(log, txid=place)

    found = run(go)
    if as_json:
        print_json({"log": log, "dlsn": None if found is None else str(found)})
    elif found is not None:
        print(found)
    if found is None:
        print_note(f"{log} has no visible record at transaction id {place} or after it")
        return ExitCode.NOT_FOUND
    return ExitCode.OK


@click.command("watch")
@click.argument("log", shell_complete=log_names)
@uri_option
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many changes.")
@json_option("one object per change, one a line,")
@read_only_option
def watch(log: str, uri: str, count: int | None, as_json: bool, read_only: bool) -> None:
    """Print the changes of LOG's segments as they happen, until interrupted.

    A segment appears, is completed, is truncated and is deleted. Those that are there at the beginning are in
    `dlog log show LOG`.
    """
    opening = dlog.open_namespace(uri, read_only=read_only)
    run(partial(_watch, opening, log, count, as_json=as_json))


async def _watch(opening: Any, log: str, count: int | None, *, as_json: bool) -> None:
    async with opening as namespace, namespace.watch_segments(log) as changes:
        print_note(f"{log} has {len(changes.segments)} segments; waiting for changes")
        async for change in changes:
            segment = change.segment
            if as_json:
                print_json(described(change))
            else:
                detail = ""
                if change.kind is dlog.SegmentChangeKind.COMPLETED and segment.completed_ms is not None:
                    detail = f", {segment.record_count:,} records, {moment_text(segment.completed_ms)}"
                elif change.kind is dlog.SegmentChangeKind.TRUNCATED:
                    state = segment.truncation.name.lower().replace("_", " ")
                    detail = f", {state}, it begins at {change.first_dlsn}"
                print(f"segment {segment.segment_seqno} {change.kind.value}{detail}", flush=True)
            count = None if count is None else count - 1
            if count == 0:
                return
