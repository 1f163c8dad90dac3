"""`dlog access show|set|delete|enable`: the access control entries of Apache DistributedLog."""

from __future__ import annotations

import click

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option, read_only_option, uri_option
from dlog.cli.terminal.output import print_json, print_note, print_table
from dlog.cli.terminal.signals import run


@click.group("access", cls=CommandGroup)
def command() -> None:
    """Show and change what is denied on logs, to everyone.

    An entry of a log replaces the default. Apache's write proxy and this library obey them. `dlog policy`
    gives rights to principals instead; a call needs both.
    """


@command.command("show")
@uri_option
@json_option("the entries")
@read_only_option
def show(uri: str, as_json: bool, read_only: bool) -> None:
    """Print the default and the entries of logs."""

    async def go() -> dlog.AccessControlEntries:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            return await namespace.access.entries()

    found = run(go)
    if as_json:
        print_json(
            {
                "default": None if found.default is None else _names(found.default),
                "logs": {log: _names(entry) for log, entry in found.logs.items()},
                "corrupt": list(found.corrupt),
            }
        )
        return
    rows = [["(default)", "-" if found.default is None else " ".join(_names(found.default)) or "-"]]
    rows += [[log, " ".join(_names(entry)) or "-"] for log, entry in found.logs.items()]
    print_table(["log", "denied"], rows)
    for path in found.corrupt:
        print_note(f"{path} does not parse: it counts as missing")


@command.command("set")
@click.argument("log", required=False, shell_complete=log_names)
@click.option("--default", "is_default", is_flag=True, help="The entry of all logs without one.")
@click.option(
    "--deny",
    "denied",
    multiple=True,
    type=click.Choice([each.name.lower() for each in dlog.Denial]),
    help="Deny this; may be repeated. Without it nothing is denied.",
)
@uri_option
def set_(log: str | None, is_default: bool, denied: tuple[str, ...], uri: str) -> None:
    """Replace the entry of LOG, or the default."""
    _check(log, is_default)
    wanted = frozenset(dlog.Denial[each.upper()] for each in denied)

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            await namespace.access.set(log, wanted)

    run(go)
    print_note(f"{log or 'default'}: denied: {' '.join(denied) or 'nothing'}")


@command.command("delete")
@click.argument("log", required=False, shell_complete=log_names)
@click.option("--default", "is_default", is_flag=True, help="The entry of all logs without one.")
@uri_option
def delete(log: str | None, is_default: bool, uri: str) -> None:
    """Delete the entry of LOG, or empty the default."""
    _check(log, is_default)

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            await namespace.access.set(log, None)

    run(go)
    print_note(f"{log or 'default'}: no entry")


@command.command("enable")
@uri_option
def enable(uri: str) -> None:
    """Give the namespace a place for entries, if its binding names none."""

    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            await namespace.access.enable()

    run(go)
    print_note("enabled; programs that have the namespace open must open it again")


def _check(log: str | None, is_default: bool) -> None:
    if (log is None) is not is_default:
        raise click.UsageError("give the name of a log, or --default")


def _names(entry: dlog.AccessControlEntry) -> list[str]:
    return [each.name.lower() for each in dlog.Denial if each in entry.denied]
