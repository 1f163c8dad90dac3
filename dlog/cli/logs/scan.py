"""`dlog scan`: the records of a log as a table: in a file, or as the result of a query."""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
import trio

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import (
    at_option,
    config_with,
    gather,
    json_option,
    keys_option,
    read_only_option,
    uri_at,
    uri_option,
)
from dlog.cli.terminal.output import counted, make_table, print_json, print_lines, print_note, progress_bar
from dlog.cli.terminal.position import Position, payload_document, position_option
from dlog.cli.terminal.signals import run
from ledger.runtime.new_file import new_file

_FILE = click.Path(dir_okay=False, path_type=Path)
CSV_COLUMNS = ("segment", "entry", "slot", "txid", "sequence_id", "payload", "key")


@attrs.frozen
class _Wanted:
    """Which records, and which columns of them."""

    start: Position
    last: Position | None
    columns: tuple[str, ...] | None
    fields: dict[str, str] | bool
    typed: bool
    at: datetime.datetime | None


@attrs.frozen
class _Target:
    """Where the table goes: one of the three."""

    parquet: Path | None
    csv: Path | None
    sql: str | None
    force: bool

    @property
    def file(self) -> Path | None:
        """The file that is written."""
        return self.parquet or self.csv


def _names(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def _fields(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, str] | bool:
    if text is None or text == "auto":
        return text is not None
    pairs = [each.partition(":") for each in text.split(",")]
    if not all(name.strip() and kind.strip() for name, _, kind in pairs):
        raise click.BadParameter(
            "give auto, or NAME:TYPE,... such as id:int64,name:string", context, parameter
        )
    return {name.strip(): kind.strip() for name, _, kind in pairs}


@click.command("scan")
@click.argument("log", shell_complete=log_names)
@uri_option
@at_option
@click.option("--parquet", type=_FILE, metavar="FILE", help="Write a file of Parquet.")
@click.option("--csv", type=_FILE, metavar="FILE", help="Write a file of CSV, with a line of names.")
@click.option("--sql", metavar="QUERY", help="Print the result of a query of DuckDB on the table log.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--columns", callback=_names, metavar="NAME,...", help="These columns, in this order.")
@click.option(
    "--fields",
    callback=_fields,
    metavar="auto|NAME:TYPE,...",
    help="Fields of payloads of JSON as further columns; auto: those of the first 1,000 records.",
)
@click.option("--typed", is_flag=True, help="Payloads are typed records: the fields are those of their data.")
@click.option(
    "--from",
    "--start",
    "start",
    callback=position_option,
    default="earliest",
    show_default=True,
    metavar="POSITION",
    help="The first record.",
)
@click.option(
    "--to",
    "--end",
    "last",
    callback=position_option,
    metavar="POSITION",
    help="The last record. [default: the end of the log]",
)
@json_option("one object per row of the query, one a line, or what was written to the file,")
@keys_option
@read_only_option
@gather(wanted=_Wanted, target=_Target)
def command(
    log: str,
    uri: str,
    wanted: _Wanted,
    target: _Target,
    as_json: bool,
    key_file: str | None,
    read_only: bool,
) -> ExitCode:
    """Read LOG as a table, up to its present end: into a file, or for a query.

    Columns are segment, entry, slot, txid, sequence_id, payload, key and headers; dlsn, the position as text,
    if --columns names it. With --fields or --typed, the fields take the place of payload. CSV holds bytes as
    text, and headers only if --columns names them. FILE appears when it is complete. POSITION is that of
    `dlog read`.

    dlog scan orders --sql "SELECT key, count(*) FROM log GROUP BY key"
    """
    if sum(each is not None for each in (target.parquet, target.csv, target.sql)) != 1:
        raise click.UsageError("give one of --parquet FILE, --csv FILE and --sql QUERY")
    if target.file is not None and target.file.exists() and not target.force:
        raise click.UsageError(f"{target.file} exists; give --force to replace it")
    if wanted.last is dlog.EARLIEST:
        raise click.UsageError("--to earliest is not possible; give another position")
    opening = dlog.open_namespace(uri_at(uri, wanted.at), config=config_with(key_file), read_only=read_only)
    run(partial(_scan, opening, log, wanted, target, as_json=as_json))
    return ExitCode.OK


async def _scan(
    opening: AbstractAsyncContextManager[dlog.Namespace],
    log: str,
    wanted: _Wanted,
    target: _Target,
    *,
    as_json: bool,
) -> None:
    columns = wanted.columns
    if columns is None and target.csv is not None:
        has_fields = wanted.typed or wanted.fields is not False
        columns = tuple(each for each in CSV_COLUMNS if not has_fields or each != "payload")
    async with opening as namespace:
        try:
            scanning = namespace.scan(
                log, wanted.start, wanted.last, columns=columns, json=wanted.fields, typed=wanted.typed
            )
        except ValueError as exc:
            raise click.UsageError(str(exc)) from None
        async with scanning as scan:
            with progress_bar(f"scanning {log}", None, unit="records", quiet=as_json) as show:
                done = _Count(show)
                if target.sql is not None:
                    result = await _query(scan, target.sql, done.add, as_json=as_json)
                else:
                    await _write(scan, target, done.add)
    if target.sql is not None:
        if not as_json:
            print_lines(result)
        return
    assert target.file is not None  # one of the three was given
    size = target.file.stat().st_size
    if as_json:
        print_json({"log": log, "file": str(target.file), "rows": done.number, "size_bytes": size})
    else:
        print_note(f"{target.file}: {counted(done.number, 'row')}, {counted(size, 'byte')}")


class _Count:
    """The rows so far, shown."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self.number, self._show = 0, show

    def add(self, rows: int) -> None:
        """Count some more."""
        self.number += rows
        self._show(self.number)


async def _write(scan: dlog.Scan, target: _Target, advance: Callable[[int], None]) -> None:
    from dlog.scan import files  # it needs pyarrow, which the scan has found

    assert target.file is not None  # the caller has looked
    try:
        with new_file(target.file, replaces=target.force) as path:
            file = (files.CsvFile if target.csv is not None else files.parquet_file)(path, scan.schema)
            try:
                async for batch in scan:
                    await trio.to_thread.run_sync(file.write_batch, batch)
                    advance(len(batch))
            finally:
                await _closed(file)
    except ValueError as exc:
        raise click.ClickException(
            f"{exc}; leave the column out with --columns, or write --parquet"
        ) from None


async def _closed(file: Any) -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(file.close)


async def _query(scan: dlog.Scan, sql: str, advance: Callable[[int], None], *, as_json: bool) -> list[str]:
    """Print the rows as JSON while they come, or return the lines of a table."""
    from dlog.scan.query import QueryError, query

    names: list[str] = []
    table: list[list[str]] = []

    def take(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        names[:] = columns
        if as_json:
            for row in rows:
                print(json.dumps(_document(columns, row)))
        else:
            table.extend([_shown(value) for value in row] for row in rows)

    try:
        await query(scan, sql, take, advance)
    except QueryError as exc:
        if exc.is_wrong:
            raise click.UsageError(str(exc)) from None
        raise click.ClickException(str(exc)) from None
    return make_table(names, table)


def _document(names: list[str], row: tuple[Any, ...]) -> dict[str, object]:
    document: dict[str, object] = {}
    for name, value in zip(names, row, strict=True):
        document |= payload_document(value, name) if isinstance(value, bytes) else {name: _plain(value)}
    return document


def _plain(value: object) -> object:
    """A value for JSON: what JSON does not have is text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return next(iter(payload_document(value).values()))
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
    return str(value)


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        case list() | tuple() | dict():
            return json.dumps(_plain(value))
    return str(value)
