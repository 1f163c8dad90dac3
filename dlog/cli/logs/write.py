"""`dlog write`: every line of a file or of stdin becomes a record.

Always: a counted line is durable. Lines are appended in order. A batch holds the lines that have arrived, so
that lines of a slow pipe are written one by one and lines of a file by the thousand.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from functools import partial
from typing import BinaryIO

import attrs
import click
import trio

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import (
    config_with,
    json_option,
    keys_option,
    statistics_option,
    statistics_settings,
    uri_option,
)
from dlog.cli.terminal.output import counted, print_json, print_note, progress_bar
from dlog.cli.terminal.position import dlsn_text
from dlog.cli.terminal.signals import run

CHUNK_BYTES = 1 << 20


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
@click.option("--hash-chain", is_flag=True, help="Keep a hash chain, which `dlog verify` checks.")
@json_option("number and positions of the durable records")
@keys_option
@statistics_option
def command(
    log: str,
    file: BinaryIO,
    uri: str,
    create: bool,
    txid_from: int | None,
    batch: int,
    hash_chain: bool,
    as_json: bool,
    key_file: str | None,
    statistics: bool,
) -> None:
    """Append every line of FILE (default: stdin) to LOG, without its line end.

    At the end, also after an interruption, the command prints how many lines are durable. After an
    interruption, continue with the next line.
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
                key_file=key_file,
                hash_chain=hash_chain,
                statistics=statistics,
            )
        )
    finally:
        # Printed after an interruption too: the user continues with the line after the durable ones.
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
    key_file: str | None,
    hash_chain: bool,
    statistics: bool,
) -> None:
    async with (
        dlog.open_namespace(
            uri,
            config=config_with(key_file, hash_chain=hash_chain),
            settings=statistics_settings(statistics),
        ) as namespace,
        namespace.open_writer(log, create=create) as writer,
    ):
        try:
            with progress_bar(f"writing {log}", _size_of(file), unit="bytes", quiet=quiet) as show:
                reader = LineReader(file.fileno(), batch)
                read_bytes = 0
                while lines := await reader.next_batch():
                    # An interruption waits for the batch in flight, so that the count equals the number of
                    # lines in the log.
                    with trio.CancelScope(shield=True):
                        await _append(writer, lines, written, txid_from)
                    read_bytes += sum(map(len, lines)) + len(lines)
                    show(read_bytes)
        finally:
            # An interrupted segment is completed too. Otherwise a reader would see its last records only
            # after the next write. The writer's retry timeout bounds this.
            with trio.CancelScope(shield=True):
                await writer.aclose()
            if statistics:
                written.statistics = namespace.statistics()


async def _append(
    writer: dlog.LogWriter, lines: list[bytes], written: Written, txid_from: int | None
) -> None:
    txids = None
    if txid_from is not None:
        first = txid_from + written.records
        txids = range(first, first + len(lines))
    try:
        written.add(lines, await writer.append_many(lines, txids=txids))
    except dlog.WriteError as exc:
        written.add(lines, exc.durable)
        raise


class LineReader:
    """The lines of a file descriptor in batches as they arrive, without their line ends."""

    def __init__(self, descriptor: int, lines_max: int) -> None:
        self._descriptor, self._lines_max = descriptor, lines_max
        self._lines: list[bytes] = []  # complete lines, not returned yet
        self._rest = b""
        self._is_over = False

    async def next_batch(self) -> list[bytes]:
        """Return 1 to ``lines_max`` lines; an empty list at the end. A last line without an end counts.

        A line longer than the maximum payload is returned before it is complete. The writer rejects it.
        If cancelled, a thread may still read and drop input.
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
                **({} if written.statistics is None else {"statistics": written.statistics.as_json()}),
            }
        )
    elif written.first is None or written.last is None:
        if sys.exc_info()[0] is None:
            print_note(f"{log}: nothing to write")
    else:
        where = f"{dlsn_text(written.first)} to {dlsn_text(written.last)}"
        what = f"{counted(written.records, 'record')}, {counted(written.size_bytes, 'byte')}"
        print_note(f"{log}: {what}, durable at {where}")
    if written.statistics is not None and not as_json:
        print_note(written.statistics.prometheus())
