"""How commands speak: JSON for programs on stdout, tables for people, progress bars on stderr.

Always: stdout carries the answer and nothing else; what is written from inside trio is written by a thread,
since a pager that stops reading must not stop the loop, which may be serving other processes' bookie.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import trio
from rich.console import Console
from rich.table import Table


def print_json(document: object) -> None:
    """One JSON document on one line of stdout."""
    print(json.dumps(document, ensure_ascii=False), flush=True)


def print_table(title: str | None, columns: list[str], rows: list[list[str]]) -> None:
    """A table for people; numbers to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(row[index][:1].isdigit() for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def console() -> Console:
    """Standard output, for people."""
    return Console(highlight=False, soft_wrap=True)


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
