"""`dlog log properties`: the map of texts that the users of a log keep beside its records."""

from __future__ import annotations

import click

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import json_option, uri_option
from dlog.cli.terminal.output import print_facts, print_json, print_note
from dlog.cli.terminal.signals import run


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
                return await namespace.change_properties(log, changes)
            return await namespace.properties(log)

    found = run(go)
    if as_json:
        print_json(dict(found.values))
    elif found.values:
        print_facts(found.values.items())
    else:
        print_note(f"{log} has no properties")
