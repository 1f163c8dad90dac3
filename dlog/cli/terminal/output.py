"""The output of commands: JSON for programs and tables for people on stdout, progress and notes on stderr.

Always: stdout carries the result and nothing else. Tables, notes and JSON hold no control characters of
payloads, names or metadata. A command writes to stdout from a thread while trio
runs: a pager that stops reading must not stop the loop, because the loop may serve other processes' bookie.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import trio

from dlog.cli.terminal.escapes import escaped, escaped_bytes
from dlog.cli.terminal.screen import Line, bar, fact_lines, table_lines

_NUMBER = re.compile(r"-|-?[\d,]+(\.\d+)?( ?[a-zA-Z%]{1,3})?")  # with a unit; "-" stands for none


def print_json(document: object) -> None:
    """Print one JSON document on one line of stdout, in ASCII: nothing in it can control a terminal."""
    print(json.dumps(document), flush=True)


def moment_text(epoch_ms: int) -> str:
    """A date and time for people, in the zone of this machine."""
    return datetime.datetime.fromtimestamp(epoch_ms / 1000).isoformat(" ", "seconds")


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """A number with its noun, such as ``1 segment`` or ``2,000 records``."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def print_name(name: str) -> None:
    """Print a name on a line of stdout: as it is stored, or escaped on a terminal."""
    print(escaped(name) if sys.stdout.isatty() else name)


def payload_lines(payloads: Iterable[bytes], *, raw: bool = False) -> bytes:
    """Payloads with line ends, for stdout: as they are stored, or escaped on a terminal unless ``raw``."""
    if not raw and sys.stdout.isatty():
        payloads = map(escaped_bytes, payloads)
    return b"".join(payload + b"\n" for payload in payloads)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for people, with numbers aligned to the right."""
    print_lines(make_table(columns, rows))


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table for people, with numbers aligned to the right and without control characters."""
    numeric = [
        bool(rows) and all(_NUMBER.fullmatch(row[index]) for row in rows) for index in range(len(columns))
    ]
    return table_lines(columns, [list(map(escaped, row)) for row in rows], numeric)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    print_lines(fact_lines((escaped(name), escaped(value, keep_newlines=True)) for name, value in facts))


def print_wrapped(text: str) -> None:
    """Print lines for people; a long one continues on the next line of the terminal."""
    print(escaped(text, keep_newlines=True), flush=True)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for people, without control characters of others."""
    print(*lines, sep="\n", flush=True)


def print_note(message: str) -> None:
    """Print lines for people on stderr."""
    print(escaped(message, keep_newlines=True), file=sys.stderr, flush=True)


async def write_out(data: bytes) -> None:
    """Write all of ``data`` to stdout from a thread.

    If cancelled, any part of the data may have been written.

    Raises:
        BrokenPipeError: The program that reads our output closed the pipe.
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
    """Show a progress bar on stderr if stderr is a terminal; yield the function that updates it.

    Args:
        total: The number that means complete; None if it is not known.
        quiet: Show nothing, also on a terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield _ignore
        return
    line, began_s = Line(sys.stderr), time.monotonic()
    try:
        yield lambda done: line.draw(bar(label, done, total, unit, time.monotonic() - began_s))
    finally:
        line.clear()


def _ignore(_done: int) -> None:
    """Progress without a bar."""
