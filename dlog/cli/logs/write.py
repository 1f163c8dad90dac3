"""`dlog write`: every line of a file or of stdin becomes a record.

Always: a counted line is durable. One line is one record: a longer line ends the command, and no part of it
is written. Lines are appended in order. A batch holds the lines that have arrived, so that lines of a slow
pipe are written one by one and lines of a file by the thousand.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, BinaryIO

import attrs
import click
import trio

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import (
    config_with,
    gather,
    json_option,
    keys_option,
    statistics_option,
    statistics_settings,
    uri_option,
)
from dlog.cli.terminal.output import counted, print_json, print_note, progress_bar
from dlog.cli.terminal.signals import run

CHUNK_BYTES = 1 << 20
_COUNTED_BYTES_MAX = 1 << 30  # of a line that is too long: its end is looked for up to here


class LineTooLongError(dlog.DLogError):
    """A line is longer than a record can hold. The lines before it were read, and nothing of it."""

    def __init__(self, line: int, size_bytes: int, limit_bytes: int, *, has_end: bool) -> None:
        """``has_end``: False if the size counts only what was looked at."""
        size = f"{size_bytes} bytes" if has_end else f"more than {size_bytes} bytes"
        super().__init__(
            f"line {line} has {size}; a record holds at most {limit_bytes} (writer.record_bytes_max)"
        )
        self.line, self.size_bytes, self.limit_bytes = line, size_bytes, limit_bytes


@attrs.define
class Written:
    """The records that are durable so far."""

    records: int = 0
    size_bytes: int = 0
    first: dlog.DLSN | None = None
    last: dlog.DLSN | None = None
    statistics: dlog.Statistics | None = None

    def add(self, lines: Sequence[bytes], positions: Sequence[dlog.DLSN]) -> None:
        """Count the lines that have a position, from the first on."""
        if positions:
            self.first = self.first or positions[0]
            self.last = positions[-1]
            self.records += len(positions)
            self.size_bytes += sum(map(len, lines[: len(positions)]))


@attrs.frozen
class _Wanted:
    """How the lines become records."""

    create: bool
    txid_from: int | None
    batch: int
    hash_chain: bool
    key_file: str | None
    statistics: bool
    key: str | None
    header: tuple[tuple[str, bytes], ...]
    shared: bool


def _as_header(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> Any:
    parts = [each.partition("=") for each in given]
    if any(not name or not equals for name, equals, _ in parts):
        raise click.BadParameter("give NAME=VALUE")
    if len({name for name, _, _ in parts}) < len(parts):
        raise click.BadParameter("a name is there twice")
    return tuple((name, value.encode("utf-8", "surrogateescape")) for name, _, value in parts)


@click.command("write")
@click.argument("log", shell_complete=log_names)
@click.argument("file", type=click.File("rb"), default="-")
@uri_option
@click.option("--create", is_flag=True, help="Create the log if it does not exist.")
@click.option(
    "--txid-from",
    type=click.IntRange(min=0),
    metavar="N",
    help="Give line i, counted from 0, the transaction id N + i.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=1000, show_default=True, help="Maximum lines per batch."
)
@click.option("--key", metavar="TEXT", help="The key of every record.")
@click.option(
    "--header",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_as_header,
    help="A header of every record; give it once for each.",
)
@click.option("--shared", is_flag=True, help="Write beside other programs that share the log's writer.")
@click.option("--hash-chain", is_flag=True, help="Keep a hash chain, which `dlog verify` checks.")
@json_option("number and positions of the durable records")
@keys_option
@statistics_option
@gather(wanted=_Wanted)
def command(log: str, file: BinaryIO, uri: str, wanted: _Wanted, as_json: bool) -> None:
    """Append every line of FILE (default: stdin) to LOG, without its line end.

    At the end, also after an interruption, the command prints how many lines are durable. After an
    interruption, continue with the next line.
    """
    written = Written()
    try:
        run(partial(_write, uri, log, file, written, wanted, quiet=as_json))
    finally:
        # Printed after an interruption too: the user continues with the line after the durable ones.
        _report(log, written, as_json=as_json)


async def _write(
    uri: str,
    log: str,
    file: BinaryIO,
    written: Written,
    wanted: _Wanted,
    *,
    quiet: bool,
) -> None:
    txid_from = wanted.txid_from
    async with (
        dlog.open_namespace(
            uri,
            config=config_with(wanted.key_file, hash_chain=wanted.hash_chain),
            settings=statistics_settings(wanted.statistics),
        ) as namespace,
        namespace.open_writer(log, create=wanted.create, shared=wanted.shared) as writer,
    ):
        try:
            with progress_bar(f"writing {log}", _size_of(file), unit="bytes", quiet=quiet) as show:
                reader = LineReader(file.fileno(), wanted.batch, writer.payload_bytes_max)
                read_bytes = 0
                while lines := await reader.next_batch():
                    # An interruption waits for the batch in flight, so that the count equals the number of
                    # lines in the log.
                    with trio.CancelScope(shield=True):
                        await _append(writer, lines, written, wanted)
                    read_bytes += sum(map(len, lines)) + len(lines)
                    show(read_bytes)
        except LineTooLongError as exc:
            raise click.ClickException(f"{exc}. {_way_on(log, exc.line, txid_from)}") from exc
        finally:
            # An interrupted segment is completed too. Otherwise a reader would see its last records only
            # after the next write. The writer's retry timeout bounds this.
            with trio.CancelScope(shield=True):
                await writer.aclose()
            if wanted.statistics:
                written.statistics = namespace.statistics()


async def _append(writer: dlog.LogWriter, lines: list[bytes], written: Written, wanted: _Wanted) -> None:
    txids, txid_from = None, wanted.txid_from
    if txid_from is not None:
        first = txid_from + written.records
        txids = range(first, first + len(lines))
    try:
        if wanted.key is None and not wanted.header:
            written.add(lines, await writer.append_many(lines, txids=txids))
            return
        key = None if wanted.key is None else wanted.key.encode("utf-8", "surrogateescape")
        keys, headers = [key] * len(lines), [dict(wanted.header)] * len(lines)
        written.add(lines, await writer.append_many(lines, txids=txids, keys=keys, headers=headers))
    except dlog.WriteError as exc:
        written.add(lines, exc.durable)
        raise


def _way_on(log: str, line: int, txid_from: int | None) -> str:
    """How to continue after the lines before ``line``, which are durable."""
    txids = "" if txid_from is None else f" --txid-from {txid_from + line - 1}"
    return (
        f"The {counted(line - 1, 'line')} before it are durable, and nothing of it was written. Shorten it,"
        f" then continue from line {line}, with the other options of this call: tail -n +{line} FILE |"
        f" dlog write{txids} {log}"
    )


class LineReader:
    """The lines of a file descriptor in batches as they arrive, without their line ends."""

    def __init__(self, descriptor: int, lines_max: int, line_bytes_max: int) -> None:
        self._descriptor, self._lines_max, self._line_bytes_max = descriptor, lines_max, line_bytes_max
        self._lines: list[bytes] = []  # complete lines, not returned yet
        self._rest: list[bytes] = []  # the pieces of a line that has no end yet
        self._rest_bytes = 0
        self._is_over = False
        self._returned = 0

    async def next_batch(self) -> list[bytes]:
        """Return 1 to ``lines_max`` lines; an empty list at the end. A last line without an end counts.

        If cancelled, a thread may still read and drop input.

        Raises:
            LineTooLongError: The next line has more than ``line_bytes_max`` bytes.
        """
        while not self._lines and not self._is_over:
            await self._read()
            if self._rest_bytes > self._line_bytes_max and not self._lines:
                raise await self._too_long()
        batch = self._lines[: self._lines_max]
        if batch and max(map(len, batch)) > self._line_bytes_max:
            at = next(at for at, line in enumerate(batch) if len(line) > self._line_bytes_max)
            if not at:
                raise LineTooLongError(self._returned + 1, len(batch[0]), self._line_bytes_max, has_end=True)
            batch = batch[:at]
        del self._lines[: len(batch)]
        self._returned += len(batch)
        return batch

    async def _read(self) -> None:
        chunk = await trio.to_thread.run_sync(os.read, self._descriptor, CHUNK_BYTES, abandon_on_cancel=True)
        first, *others = chunk.split(b"\n")
        self._rest.append(first)
        self._rest_bytes += len(first)
        self._is_over = not chunk
        if others:
            self._lines.append(b"".join(self._rest))
            *complete, last = others
            self._lines += complete
            self._rest, self._rest_bytes = [last], len(last)
        elif self._is_over and self._rest_bytes:
            self._lines.append(b"".join(self._rest))
            self._rest, self._rest_bytes = [], 0

    async def _too_long(self) -> LineTooLongError:
        """Look for the end of the line, to tell its size; keep nothing of it."""
        size_bytes = self._rest_bytes
        while not self._lines and not self._is_over and size_bytes < _COUNTED_BYTES_MAX:
            self._rest, self._rest_bytes = [], 0
            await self._read()
            size_bytes += len(self._lines[0]) if self._lines else self._rest_bytes
        has_end = bool(self._lines) or self._is_over
        return LineTooLongError(self._returned + 1, size_bytes, self._line_bytes_max, has_end=has_end)


def _size_of(file: BinaryIO) -> int | None:
    facts = os.fstat(file.fileno())
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None


def _report(log: str, written: Written, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "log": log,
                "records": written.records,
                "bytes": written.size_bytes,
                "first_dlsn": None if written.first is None else str(written.first),
                "last_dlsn": None if written.last is None else str(written.last),
                **({} if written.statistics is None else {"statistics": written.statistics.as_json()}),
            }
        )
    elif written.first is None or written.last is None:
        if sys.exc_info()[0] is None:
            print_note(f"{log}: nothing to write")
    else:
        where = f"{written.first} to {written.last}"
        what = f"{counted(written.records, 'record')}, {counted(written.size_bytes, 'byte')}"
        print_note(f"{log}: {what}, durable at {where}")
    if written.statistics is not None and not as_json:
        print_note(written.statistics.prometheus())
