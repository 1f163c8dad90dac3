"""`dlog write`: every line of a file or of stdin becomes a record.

Always: what is counted as written is durable; lines are appended in order, in batches of what has arrived,
so that a trickling pipe is written line by line and a file by the thousand.
"""

from __future__ import annotations

import os
import stat
import sys
from functools import partial
from typing import BinaryIO

import attrs
import click
import trio

import dlog
from dlog.cli.output import print_json, progress_bar, tell
from dlog.cli.position import dlsn_text
from dlog.cli.running import run
from dlog.cli.target import json_option, uri_option

CHUNK_BYTES = 1 << 20


@attrs.define
class Written:
    """What has become durable so far."""

    records: int = 0
    size_bytes: int = 0
    first: dlog.DLSN | None = None
    last: dlog.DLSN | None = None


@click.command("write")
@click.argument("log")
@click.argument("file", type=click.File("rb"), default="-")
@uri_option
@click.option("--create", is_flag=True, help="Create the log if it does not exist.")
@click.option(
    "--txid-from", type=click.IntRange(min=0), metavar="N", help="Give line i the transaction id N + i."
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=1000, show_default=True, help="Lines a batch, at most."
)
@json_option("what was written")
def command(
    log: str, file: BinaryIO, uri: str, create: bool, txid_from: int | None, batch: int, as_json: bool
) -> None:
    """Append every line of FILE (default: stdin) to LOG, without its line end.

    The count that is printed at the end, or when the command is interrupted, is of lines that are durable.
    """
    written = Written()
    try:
        run(
            partial(
                _write,
                uri,
                log,
                file,
                written,
                create=create,
                txid_from=txid_from,
                batch=batch,
                quiet=as_json,
            )
        )
    finally:
        # Said on the way out of an interruption too: it tells the line to go on with.
        _report(log, written, as_json=as_json)


async def _write(
    uri: str,
    log: str,
    file: BinaryIO,
    written: Written,
    *,
    create: bool,
    txid_from: int | None,
    batch: int,
    quiet: bool,
) -> None:
    async with (
        dlog.open_namespace(uri) as namespace,
        namespace.open_writer(log, create=create) as writer,
    ):
        try:
            with progress_bar(f"writing {log}", _size_of(file), unit="bytes", quiet=quiet) as show:
                reader = LineReader(file.fileno(), batch)
                read_bytes = 0
                while lines := await reader.next_batch():
                    # An interruption waits for the lines that are on their way: the count must be neither
                    # less nor more than what is in the log.
                    with trio.CancelScope(shield=True):
                        await _append(writer, lines, written, txid_from)
                    read_bytes += sum(map(len, lines)) + len(lines)
                    show(read_bytes)
        finally:
            # An interrupted segment is completed as well, else readers would not see its last records until
            # somebody writes again. The writer's own patience bounds this.
            with trio.CancelScope(shield=True):
                await writer.aclose()


async def _append(
    writer: dlog.LogWriter, lines: list[bytes], written: Written, txid_from: int | None
) -> None:
    txids = None
    if txid_from is not None:
        first = txid_from + written.records
        txids = range(first, first + len(lines))
    positions = await writer.append_many(lines, txids=txids)
    written.first = written.first or positions[0]
    written.last = positions[-1]
    written.records += len(lines)
    written.size_bytes += sum(map(len, lines))


class LineReader:
    """The lines of a file descriptor as they arrive, without their line ends."""

    def __init__(self, descriptor: int, lines_max: int) -> None:
        self._descriptor, self._lines_max = descriptor, lines_max
        self._lines: list[bytes] = []  # whole ones, not handed out yet
        self._rest = b""
        self._is_over = False

    async def next_batch(self) -> list[bytes]:
        """From one line to ``lines_max``; nothing at the end. A last line without an end is a line.

        A line longer than a record may be is handed out before it is whole, for the writer to refuse.
        """
        while not self._lines and not self._is_over:
            chunk = await trio.to_thread.run_sync(
                os.read, self._descriptor, CHUNK_BYTES, abandon_on_cancel=True
            )
            *self._lines, self._rest = (self._rest + chunk).split(b"\n")
            self._is_over = not chunk
            if self._rest and (self._is_over or len(self._rest) > dlog.PAYLOAD_BYTES_MAX):
                self._lines.append(self._rest)
                self._rest = b""
        batch, self._lines = self._lines[: self._lines_max], self._lines[self._lines_max :]
        return batch


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
                "first_dlsn": None if written.first is None else dlsn_text(written.first),
                "last_dlsn": None if written.last is None else dlsn_text(written.last),
            }
        )
    elif written.first is None or written.last is None:
        if sys.exc_info()[0] is None:
            tell(f"{log}: nothing to write")
    else:
        where = f"{dlsn_text(written.first)} to {dlsn_text(written.last)}"
        tell(f"{log}: {written.records:,} records, {written.size_bytes:,} bytes, durable at {where}")
