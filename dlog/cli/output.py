"""How commands speak: JSON for programs on stdout, tables for people, progress bars on stderr.

Always: stdout carries the answer and nothing else; what is written from inside trio is written by a thread,
since a pager that stops reading must not stop the loop, which may be serving other processes' bookie.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_IN_FILES = 160  # where there is no terminal to ask


def print_json(document: object) -> None:
    """One JSON document on one line of stdout."""
    print(json.dumps(document, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people; numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(row[index][:1].isdigit() or row[index] == "-" for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, a line each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(value))
    console().print(table)


def console() -> Console:
    """Standard output, for people. What commands print is data: ``:100:`` is no picture."""
    width = None if sys.stdout.isatty() else WIDTH_IN_FILES
    return Console(highlight=False, emoji=False, width=width)


def tell(message: str) -> None:
    """One line for people on stderr, whatever stdout carries."""
    print(message, file=sys.stderr, flush=True)


async def write_out(data: bytes) -> None:
    """Write to stdout from a thread, all of it.

    If cancelled, any part of the data may have been written.

    Raises:
        BrokenPipeError: The reader of our output has left.
    """
    await trio.to_thread.run_sync(_write_all, data, abandon_on_cancel=True)


def _write_all(data: bytes) -> None:
    view = memoryview(data)
    descriptor = sys.stdout.fileno()
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def progress_bar(
    label: str, total: int | None, *, unit: str = "", quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal; yields the function that says how much is done.

    Args:
        total: The number at which all is done, or None if that is not known.
        quiet: Show nothing, whatever stderr is.
    """
    if quiet or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
    columns += [TextColumn("{task.completed:,.0f} " + unit), TimeRemainingColumn(elapsed_when_finished=True)]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


def _ignore(_done: int) -> None:
    """Nobody watches."""
