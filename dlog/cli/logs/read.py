"""`dlog read`: print the records of a log from one position to another, then stop."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import attrs
import click

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import (
    at_option,
    config_with,
    gather,
    json_option,
    keys_option,
    raw_option,
    read_only_option,
    uri_at,
    uri_option,
)
from dlog.cli.terminal.output import payload_lines, print_note, write_out
from dlog.cli.terminal.position import Position, position_option, record_document
from dlog.cli.terminal.signals import run
from dlog.encryption import sealed_with

BATCH_RECORDS = 4096


@attrs.frozen
class _Wanted:
    """Which records are printed."""

    start: Position
    last: Position | None
    count: int | None
    gaps: bool
    at: datetime.datetime | None


@click.command("read")
@click.argument("log", shell_complete=log_names)
@uri_option
@at_option
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
@click.option(
    "--gaps", is_flag=True, help="Continue behind data that are missing for good, and print what is missing."
)
@json_option("one object per record, one a line,")
@raw_option
@keys_option
@read_only_option
@gather(wanted=_Wanted)
def command(
    log: str,
    uri: str,
    wanted: _Wanted,
    as_json: bool,
    raw: bool,
    key_file: str | None,
    read_only: bool,
) -> ExitCode:
    """Print the payload of each record of LOG on a line, up to the present end of the log.

    POSITION is earliest, latest, a DLSN (7:42:0), a transaction id (123456), or a date and time
    (2026-11-01T12:00). A date is for a log whose transaction ids are milliseconds since 1970; a writer
    without explicit ids uses those. The record at --to is printed too; --to latest is the last record that
    is visible when the command begins.

    With --gaps, a gap is a line on stderr, and with --json an object with the key `gap` among the records.
    The exit code is 7 if data are missing that were not truncated.
    """
    if wanted.last is dlog.EARLIEST:
        raise click.UsageError("--to earliest is not possible; give another position")
    opening = dlog.open_namespace(uri_at(uri, wanted.at), config=config_with(key_file), read_only=read_only)
    lost = run(partial(_read, opening, log, wanted, as_json=as_json, raw=raw))
    return ExitCode.DAMAGED if lost else ExitCode.OK


async def _read(
    opening: AbstractAsyncContextManager[dlog.Namespace],
    log: str,
    wanted: _Wanted,
    *,
    as_json: bool,
    raw: bool,
) -> bool:
    """Print the records; return True if a gap is no truncation."""
    left, is_lost, gaps = wanted.count, False, wanted.gaps
    async with (
        opening as namespace,
        namespace.open_reader(log, start=wanted.start, end=wanted.last, follow=False, gaps=gaps) as reader,
    ):
        read = reader.read_batch_or_gap if gaps else reader.read_batch
        while left is None or left > 0:
            records = await read(BATCH_RECORDS if left is None else min(left, BATCH_RECORDS))
            if records is None:
                break
            if isinstance(records, dlog.Gap):
                is_lost = is_lost or records.cause is not dlog.GapCause.TRUNCATED
                await _print_gap(records, as_json=as_json)
                continue
            await write_records(records, as_json=as_json, raw=raw)
            if left is not None:
                left -= len(records)
    return is_lost


async def _print_gap(gap: dlog.Gap, *, as_json: bool) -> None:
    document = {
        "first": str(gap.first),
        "last": str(gap.last),
        "cause": gap.cause.value,
        "evidence": gap.evidence,
        "resume": str(gap.resume),
    }
    if as_json:
        await write_out((json.dumps({"gap": document}) + "\n").encode())
    else:
        print_note(
            f"gap from {document['first']} to before {document['resume']}: {gap.cause.value}: {gap.evidence}"
        )


async def write_records(records: Sequence[dlog.Record], *, as_json: bool, raw: bool) -> None:
    """Write the records to stdout: payloads as stored, but escaped on a terminal.

    Raises:
        EncryptionKeyError: A payload is encrypted still, so no key was given, and ``raw`` does not ask for
            the stored bytes. The records before it are written.
    """
    sealed = next((at for at, one in enumerate(records) if not raw and sealed_with(one.payload)), None)
    await write_out(_printed(records[:sealed], as_json=as_json, raw=raw))
    if sealed is not None:
        record = records[sealed]
        raise dlog.EncryptionKeyError(
            sealed_with(record.payload) or "",
            f"the record at {record.dlsn} is encrypted with it, and no key file was given: give"
            " --key-file FILE, or --raw to print the stored bytes",
        )


def _printed(records: Sequence[dlog.Record], *, as_json: bool, raw: bool) -> bytes:
    if as_json:
        return "".join(json.dumps(record_document(record)) + "\n" for record in records).encode()
    return payload_lines([record.payload for record in records], raw=raw)
