"""`dlog log create|list|show|delete`: manage the logs of a namespace."""

from __future__ import annotations

import datetime
import enum
from functools import partial
from typing import Any

import attrs
import click

import dlog
from dlog.cli.terminal.options import json_option, uri_option
from dlog.cli.terminal.output import print_facts, print_json, print_note, print_table
from dlog.cli.terminal.position import dlsn_text
from dlog.cli.terminal.signals import run


@click.group("log")
def command() -> None:
    """Create, list, show and delete logs."""


@command.command("create")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@uri_option
@click.option("--exist-ok", is_flag=True, help="Succeed if the log exists already.")
def create(logs: tuple[str, ...], uri: str, exist_ok: bool) -> None:
    """Create logs."""

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            for log in logs:
                await namespace.create_log(log, exist_ok=exist_ok)
                print_note(f"created {log}")

    run(go)


@command.command("list")
@click.argument("parent", default="")
@uri_option
@json_option("the names")
def list_(parent: str, uri: str, as_json: bool) -> None:
    """List all logs, or those below PARENT: shop lists shop/orders."""

    async def go() -> list[str]:
        async with dlog.open_namespace(uri) as namespace:
            return await namespace.list_logs(parent)

    names = run(go)
    if as_json:
        print_json(names)
    else:
        for name in names:
            print(name)


@command.command("show")
@click.argument("log")
@uri_option
@json_option("the description")
def show(log: str, uri: str, as_json: bool) -> None:
    """Show the records, segments and writer of LOG."""

    async def go() -> Any:
        async with dlog.open_namespace(uri) as namespace:
            return await namespace.describe_log(log)

    document = described(run(go))
    if as_json:
        print_json(document)
        return
    segments = document.pop("segments")
    print_facts((name.replace("_", " "), _shown(value)) for name, value in document.items())
    if segments:
        columns = ["segment", "ledger", "state", "records", "first txid", "last txid", "completed"]
        print()
        print_table(columns, [_row(segment) for segment in segments])


def _row(segment: dict[str, Any]) -> list[str]:
    state = "complete" if segment["is_completed"] else "in progress"
    if segment["truncation"] != "active":
        state += ", " + segment["truncation"].replace("_", " ")
    completed = "-"
    if segment["completed_ms"] is not None:
        moment = datetime.datetime.fromtimestamp(segment["completed_ms"] / 1000)
        completed = moment.isoformat(" ", "seconds")
    return [
        str(segment["segment_seqno"]),
        str(segment["ledger_id"]),
        state,
        _shown(segment["record_count"]),
        _shown(segment["first_txid"]),
        _shown(segment["last_txid"]),
        completed,
    ]


@command.command("delete")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@uri_option
@click.option("--yes", is_flag=True, help="Delete without asking.")
def delete(logs: tuple[str, ...], uri: str, yes: bool) -> None:
    """Delete logs and all their records permanently."""
    if not yes:
        click.confirm(f"Delete {', '.join(logs)} and all records permanently?", abort=True, err=True)

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            for log in logs:
                await namespace.delete_log(log)
                print_note(f"deleted {log}")

    run(partial(go))


def described(description: Any) -> dict[str, Any]:
    """A description as JSON values: field names unchanged, DLSNs as ``7:42:0``, enums by lower-case name."""
    return attrs.asdict(description, value_serializer=_plain)


def _plain(_instance: Any, _field: Any, value: Any) -> Any:
    if isinstance(value, dlog.DLSN):
        return dlsn_text(value)
    return value.name.lower() if isinstance(value, enum.Enum) else value


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
