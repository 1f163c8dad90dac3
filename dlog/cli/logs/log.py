"""`dlog log`: create, list, show, rename, truncate, seal, mend and delete the logs of a namespace."""

from __future__ import annotations

import datetime
from functools import partial
from typing import Any

import click

import dlog
from dlog.cli.logs.orphans import orphans
from dlog.cli.logs.repair import check, heal, recover, repair
from dlog.cli.logs.retention import retain, retention
from dlog.cli.logs.segments import position, watch
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import at_option, json_option, read_only_option, uri_at, uri_option
from dlog.cli.terminal.output import (
    counted,
    moment_text,
    print_facts,
    print_json,
    print_name,
    print_note,
    print_table,
)
from dlog.cli.terminal.position import Position, described, dlsn_option, position_option
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from dlog.shards.creation import create_sharded_log, delete_sharded_log
from dlog.shards.layout import SHARDS_MAX


@click.command("properties")
@click.argument("log", shell_complete=log_names)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@uri_option
@click.option("--delete", "deleted", multiple=True, metavar="KEY", help="Remove this property.")
@json_option("the properties")
def properties(
    log: str, settings: tuple[str, ...], uri: str, deleted: tuple[str, ...], as_json: bool
) -> None:
    """Show the properties of LOG, after setting those given; the others stay."""
    changes: dict[str, str | None] = dict.fromkeys(deleted)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is no KEY=VALUE", param_hint="KEY=VALUE")
        if key in changes:
            raise click.BadParameter(f"{key!r} is given twice", param_hint="KEY=VALUE")
        changes[key] = value

    async def go() -> dlog.LogProperties:
        async with dlog.open_namespace(uri, read_only=not changes) as namespace:
            if changes:
                return await namespace.properties.change(log, changes)
            return await namespace.properties.get(log)

    found = run(go)
    if as_json:
        print_json(dict(found.values))
    elif found.values:
        print_facts(found.values.items())
    else:
        print_note(f"{log} has no properties")


@click.group("log", cls=CommandGroup)
def command() -> None:
    """Create, list, show, rename, truncate, seal and delete logs."""


@command.command("create")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@uri_option
@click.option("--exist-ok", is_flag=True, help="Succeed if the log exists already.")
@click.option(
    "--shards",
    type=click.IntRange(1, SHARDS_MAX),
    metavar="N",
    help="Create sharded logs with N shards each: LOG/shard-00000 and so on. N never changes.",
)
def create(logs: tuple[str, ...], uri: str, exist_ok: bool, shards: int | None) -> None:
    """Create logs."""

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            for log in logs:
                if shards is None:
                    await namespace.create_log(log, exist_ok=exist_ok)
                    print_note(f"created {log}")
                else:
                    await create_sharded_log(namespace, log, shards, exist_ok=exist_ok)
                    print_note(f"created {log} with {counted(shards, 'shard')}")

    run(go)


@command.command("list")
@click.argument("parent", default="", metavar="[PARENT|PATTERN]")
@uri_option
@at_option
@json_option("the names")
@read_only_option
def list_(parent: str, uri: str, at: datetime.datetime | None, as_json: bool, read_only: bool) -> None:
    """List all logs, those below PARENT (shop lists shop/orders), or those that match a pattern ('orders-*').

    In a pattern, * stands for any characters, / too, ? for one, [ab] for one of these. Quote it, so that the
    shell does not take it for names of files.
    """
    is_pattern = any(character in parent for character in "*?[")

    async def go() -> list[str]:
        async with dlog.open_namespace(uri_at(uri, at), read_only=read_only) as namespace:
            if is_pattern:
                return await namespace.list_logs(pattern=parent)
            return await namespace.list_logs(parent)

    names = run(go)
    if as_json:
        print_json(names)
    else:
        for name in names:
            print_name(name)


@command.command("locate")
@click.argument("log")
@uri_option
@json_option("the path")
@read_only_option
def locate(log: str, uri: str, as_json: bool, read_only: bool) -> None:
    """Print the path of the namespace that holds LOG: in a federated one, that of a sub-namespace."""

    async def go() -> str:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            return await namespace.log_location(log)

    path = run(go)
    if as_json:
        print_json({"log": log, "namespace": path})
    else:
        print_name(path)


@command.command("show")
@click.argument("log", shell_complete=log_names)
@uri_option
@json_option("the description")
@read_only_option
def show(log: str, uri: str, as_json: bool, read_only: bool) -> None:
    """Show the records, segments and writer of LOG."""

    async def go() -> Any:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
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
        completed = moment_text(segment["completed_ms"])
    return [
        str(segment["segment_seqno"]),
        str(segment["ledger_id"]),
        state,
        _shown(segment["record_count"]),
        _shown(segment["first_txid"]),
        _shown(segment["last_txid"]),
        completed,
    ]


@command.command("count")
@click.argument("log", shell_complete=log_names)
@uri_option
@click.option("--from", "start", metavar="DLSN", callback=dlsn_option, help="The first record to count.")
@click.option("--before", "end", metavar="DLSN", callback=dlsn_option, help="The first record not to count.")
@json_option("the count")
def count(log: str, uri: str, start: dlog.DLSN | None, end: dlog.DLSN | None, as_json: bool) -> None:
    """Count the records of LOG that are visible now, or those between two positions.

    Truncated records count until they are purged.
    """

    async def go() -> int:
        async with dlog.open_namespace(uri) as namespace:
            return await namespace.count_records(log, start=start, end=end)

    records = run(go)
    if as_json:
        print_json({"log": log, "records": records})
    else:
        print(records)


@command.command("truncate")
@click.argument("log", shell_complete=log_names)
@uri_option
@click.option(
    "--before",
    required=True,
    metavar="DLSN",
    callback=position_option,
    help="The first record to keep, as a DLSN such as 7:42:0, or latest for the end of the log.",
)
@json_option("the first position left")
def truncate(log: str, uri: str, before: Position, as_json: bool) -> None:
    """Truncate LOG: readers begin at the record given, or earlier.

    Only completed segments can be truncated, so the records of the segment in use stay. A writer of the log
    is not disturbed. A truncated record never comes back.
    """
    if before is dlog.EARLIEST or isinstance(before, int):
        raise click.BadParameter("give a DLSN such as 7:42:0, or latest", param_hint="--before")

    async def go() -> dlog.DLSN | None:
        async with dlog.open_namespace(uri) as namespace:
            if isinstance(before, dlog.DLSN):
                return await namespace.truncate_log(log, before)
            last = await namespace.last_dlsn(log)
            return None if last is None else await namespace.truncate_log(log, last.next_slot())

    first_left = run(go)
    if as_json:
        print_json({"log": log, "first_left": None if first_left is None else str(first_left)})
    else:
        where = "it has no records" if first_left is None else f"it begins at {first_left}"
        print_note(f"truncated {log}: {where}")


@command.command("rename")
@click.argument("old", shell_complete=log_names)
@click.argument("new")
@uri_option
@json_option("both names")
def rename(old: str, new: str, uri: str, as_json: bool) -> None:
    """Give the log OLD the name NEW. Its records, positions, cursors and settings stay as they are.

    A log whose writer is open is not renamed: close the writer first. Open readers end with an error that
    tells the new name.
    """

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            await namespace.rename_log(old, new)

    run(go)
    if as_json:
        print_json({"old": old, "new": new})
    else:
        print_note(f"renamed {old} to {new}")


@command.command("seal")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", shell_complete=log_names)
@uri_option
@click.option("--yes", is_flag=True, help="Seal without asking.")
def seal(logs: tuple[str, ...], uri: str, yes: bool) -> None:
    """End logs for good: they take no more records, and their readers end.

    The records stay. A log whose writer is open is not sealed: close the writer first.
    """
    if not yes:
        confirm(f"Seal {', '.join(logs)} permanently?")

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            for log in logs:
                await namespace.seal_log(log)
                print_note(f"sealed {log}")

    run(go)


@command.command("purge")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", shell_complete=log_names)
@uri_option
@click.option("--dry-run", is_flag=True, help="Show the segments to delete, and delete nothing.")
@read_only_option
@json_option("the deleted segments")
def purge(logs: tuple[str, ...], uri: str, dry_run: bool, as_json: bool, read_only: bool) -> None:
    """Delete the truncated segments of logs, with their ledgers.

    Writers do so by themselves. The newest completed segment of a log stays. Bookies give the disk space
    back with their next garbage collection.
    """
    if read_only and not dry_run:
        raise click.UsageError("--read-only needs --dry-run: deleting segments changes the log")

    async def go() -> dict[str, list[dlog.SegmentDescription]]:
        found = {}
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            for log in logs:
                found[log] = await namespace.purge_log(log, dry_run=dry_run)
                verb = "would delete" if dry_run else "deleted"
                print_note(f"{log}: {verb} {counted(len(found[log]), 'truncated segment')}")
        return found

    purged = run(go)
    if as_json:
        print_json({log: [described(segment) for segment in segments] for log, segments in purged.items()})


@command.command("delete")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", shell_complete=log_names)
@uri_option
@click.option("--yes", is_flag=True, help="Delete without asking.")
@click.option("--sharded", is_flag=True, help="LOG is a sharded log: delete all of its shards.")
def delete(logs: tuple[str, ...], uri: str, yes: bool, sharded: bool) -> None:
    """Delete logs and all their records permanently."""
    if not yes:
        confirm(f"Delete {', '.join(logs)} and all records permanently?")

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            for log in logs:
                if sharded:
                    await delete_sharded_log(namespace, log)
                else:
                    await namespace.delete_log(log)
                print_note(f"deleted {log}")

    run(partial(go))


for each in (check, repair, recover, heal, orphans, position, watch):
    command.add_command(each)
command.add_command(properties)
command.add_command(retention)
command.add_command(retain)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
