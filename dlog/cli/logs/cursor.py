"""`dlog cursor list|show|set|delete`: the positions that readers of a log have committed."""

from __future__ import annotations

import click

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option, read_only_option, uri_option
from dlog.cli.terminal.output import print_facts, print_json, print_note, print_table
from dlog.cli.terminal.position import Position, position_option
from dlog.cli.terminal.signals import run


@click.group("cursor", cls=CommandGroup)
def command() -> None:
    """List, show, move and delete the cursors of a log.

    A cursor is a name with a position: the first record that its readers have not consumed. Readers commit it
    (open_reader with cursor=NAME).
    """


@command.command("list")
@click.argument("log", shell_complete=log_names)
@uri_option
@json_option("the cursors")
@read_only_option
def list_(log: str, uri: str, as_json: bool, read_only: bool) -> None:
    """List the cursors of LOG, and how many records each is behind."""

    async def go() -> list[dict[str, object]]:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            cursors = namespace.cursors(log)
            return [_document(each, await cursors.lag(each)) for each in await cursors.list()]

    documents = run(go)
    if as_json:
        print_json(documents)
    elif documents:
        print_table(list(documents[0]), [[str(value) for value in each.values()] for each in documents])


@command.command("show")
@click.argument("log", shell_complete=log_names)
@click.argument("name")
@uri_option
@json_option("the cursor")
@read_only_option
def show(log: str, name: str, uri: str, as_json: bool, read_only: bool) -> int:
    """Show one cursor of LOG."""

    async def go() -> dict[str, object] | None:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            cursors = namespace.cursors(log)
            found = await cursors.get(name)
            return None if found is None else _document(found, await cursors.lag(found))

    document = run(go)
    if document is None:
        print_note(f"dlog: log {log!r} has no cursor {name!r}; `dlog cursor list {log}` lists them")
        return ExitCode.NOT_FOUND
    if as_json:
        print_json(document)
    else:
        print_facts((key, str(value)) for key, value in document.items())
    return ExitCode.OK


@command.command("set")
@click.argument("log", shell_complete=log_names)
@click.argument("name")
@uri_option
@click.option(
    "--at",
    required=True,
    metavar="DLSN",
    callback=position_option,
    help="The first record for the readers: a DLSN such as 7:42:0, earliest or latest.",
)
def set_(log: str, name: str, uri: str, at: Position) -> None:
    """Create a cursor of LOG, or move it.

    An open reader with this cursor gets an error at its next commit.
    """
    if isinstance(at, int):
        raise click.BadParameter("give a DLSN such as 7:42:0, earliest or latest", param_hint="--at")

    async def go() -> dlog.Cursor:
        async with dlog.open_namespace(uri) as namespace:
            if isinstance(at, dlog.DLSN):
                position = at
            elif at is dlog.LATEST:
                last = await namespace.last_dlsn(log)
                position = dlog.DLSN(1, 0, 0) if last is None else last.next_slot()
            else:
                position = (await namespace.describe_log(log)).first_dlsn or dlog.DLSN(1, 0, 0)
            return await namespace.cursors(log).set(name, position)

    cursor = run(go)
    print_note(f"cursor {cursor.name} of {log} is at {cursor.position}")


@command.command("delete")
@click.argument("log", shell_complete=log_names)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@uri_option
def delete(log: str, names: tuple[str, ...], uri: str) -> None:
    """Delete cursors of LOG. Their readers begin again."""

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            for name in names:
                is_deleted = await namespace.cursors(log).delete(name)
                print_note(f"deleted cursor {name}" if is_deleted else f"there is no cursor {name}")

    run(go)


def _document(cursor: dlog.Cursor, lag: int) -> dict[str, object]:
    return {"cursor": cursor.name, "position": str(cursor.position), "lag": lag}
