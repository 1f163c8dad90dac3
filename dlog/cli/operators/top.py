"""`dlog top`: bookies and logs with their rates, refreshed until interrupted; the page on a terminal.

Inside: options and output. Not inside: what is looked at (``dlog.page``).
Always: nothing is changed. Names are escaped on a terminal.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import trio

import dlog
from dlog.cli.terminal.escapes import escaped
from dlog.cli.terminal.options import json_option, uri_option
from dlog.cli.terminal.output import make_table, print_json, print_lines
from dlog.cli.terminal.screen import BOLD, RED, cut, styled, whole_screen, width
from dlog.cli.terminal.signals import run
from dlog.page import look

FIRST_PAUSE_S = 1.0  # until the second look, which knows the rates


@click.command("top")
@uri_option
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="Look twice, one second apart, print the result and stop.")
@json_option("each look on a line")
def command(uri: str, interval_s: float, once: bool, as_json: bool) -> None:
    """Show bookies, ledgers that miss replicas, and logs with their rates, until interrupted.

    A rate is the change between two looks, so the first look has none. Logs with the highest rate come first.
    """

    async def go() -> None:
        async with dlog.open_namespace(uri, read_only=True) as namespace:
            next_look = look(namespace)
            found = await next_look()
            if once:
                await trio.sleep(FIRST_PAUSE_S)
                _printed(await next_look(), as_json=as_json)
                return
            with _screen(as_json=as_json) as show:
                show(found)
                await trio.sleep(FIRST_PAUSE_S)
                while True:
                    show(await next_look())
                    await trio.sleep(interval_s)

    run(go)


@contextlib.contextmanager
def _screen(*, as_json: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """The function that shows a look: in place of the one before on a terminal, else below it."""
    if as_json or not sys.stdout.isatty():
        yield lambda found: _printed(found, as_json=as_json)
        return
    with whole_screen(sys.stdout) as show:
        yield lambda found: show(_tables(found))


def _printed(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_lines(_tables(found))


def _tables(found: dict[str, Any]) -> list[str]:
    overview, streams = found["overview"], found["streams"]
    recovery = overview["auto_recovery"]
    head = f"{overview['namespace']}: {overview['under_replicated']} under-replicated ledgers"
    if recovery["exists"]:
        is_on = recovery["enabled"] and recovery["auditor"]
        head += (
            f", auto-recovery {'on' if is_on else 'off' if not recovery['enabled'] else 'without auditor'}"
        )
    if (balance := overview["balance"]) is not None:
        head += f", a balance runs: {balance['moves_done']} of {balance['moves']} moves"
    bookies = [
        [
            each["bookie"],
            each["state"],
            _gigabytes(each["free_bytes"]),
            _gigabytes(each["total_bytes"]),
            _rate(each["entries_per_s"]),
            str(each["missing_ledgers"]),
        ]
        for each in overview["bookies"]
    ]
    logs = [
        [
            each["name"],
            str(each.get("records", "-")),
            _rate(each["records_per_s"]),
            str(each.get("segments", "-")),
            str(each.get("cursors", "-")),
            each.get("error") or each["writer"] or "none",
        ]
        for each in sorted(streams["streams"], key=lambda each: -(each["records_per_s"] or 0))
    ]
    lines = [
        styled(cut(escaped(head), width()), RED if overview["under_replicated"] else BOLD),
        "",
        *make_table(["bookie", "state", "free GB", "total GB", "entries/s", "lost replicas"], bookies),
        "",
        *make_table(["log", "records", "records/s", "segments", "cursors", "writer"], logs),
    ]
    if streams["left_out"]:
        lines.append(f"{streams['left_out']} more logs are not shown")
    return lines


def _gigabytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e9:.1f}"


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:.1f}"
