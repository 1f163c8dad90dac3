"""`dlog config show|check`: the settings that hold, with the place of each, and a check of a file.

Not inside: the settings and their places (``dlog.settings``).
Always: no secret is printed, because no setting holds one; nothing is opened but the files that settings
name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dlog.cli.terminal.options import json_option, uri_option
from dlog.cli.terminal.output import print_json, print_note, print_table
from dlog.metadata.namespace_uri import NamespaceUri, parse_namespace_uri
from dlog.settings import NONE, SETTINGS, Applies, ClientSettings, Source, load_settings, read_file, shown

UNNAMED = "distributedlog://localhost/unnamed"  # parsed only


@click.group("config")
def command() -> None:
    """Show the settings of this client, or check a file with settings.

    Settings come from the file that `dlog --config` or DLOG_CONFIG names, from variables DLOG_..., and from
    the query of the namespace's URI. A later one is stronger. docs/settings.md lists them.
    """


@command.command("show")
@uri_option
@click.option("--given", is_flag=True, help="Only settings that some place gives.")
@json_option("each setting with its value and its source")
@click.pass_context
def show(context: click.Context, uri: str, given: bool, as_json: bool) -> None:
    """Print each setting that holds, and where it comes from.

    A setting without effect on this kind of namespace is marked as unused. Files with secrets are named and
    not opened.
    """
    settings = load_settings(uri)
    where = parse_namespace_uri(settings.uri)
    is_argument = context.get_parameter_source("uri") is ParameterSource.COMMANDLINE
    rows = _rows(settings, where, uri_is_argument=is_argument)
    rows = [row for row in rows if not given or row["source"] != Source.DEFAULT.value]
    if as_json:
        print_json({"uri": str(where), "settings": rows})
        return
    print_table(
        ["setting", "value", "from"],
        [[row["name"], _text(row), _origin(row)] for row in rows],
    )


@command.command("check")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option("the settings of the file")
def check(file: Path, as_json: bool) -> None:
    """Check a file with settings: names, values, and the files that it names.

    Exit code 2 if it cannot be used. Variables count too, as they do when the file is used. If the file has a
    uri, its settings are checked for that namespace; else for a cluster and for a directory.
    """
    named = read_file(file).get("uri")
    uri = UNNAMED if named is None else str(named.value)
    settings = load_settings(uri, config_file=file)
    where = parse_namespace_uri(settings.uri)
    for scheme in ("distributedlog", "file") if named is None else (where.scheme,):
        config = settings.config(scheme)
        if named is not None:
            config = config.for_scheme(scheme)
        if config.bookie_security is not None:
            config.bookie_security.open()
        if config.zookeeper_security is not None:
            config.zookeeper_security.check_usable()
    given = [name for name, one in settings.given.items() if one.source is Source.FILE]
    if as_json:
        print_json({"file": str(file), "settings": given})
    else:
        print_note(f"{file}: {len(given)} settings, all of them usable")


def _rows(settings: ClientSettings, where: NamespaceUri, *, uri_is_argument: bool) -> list[dict[str, Any]]:
    unused = Applies.CLUSTER if where.scheme == "file" else Applies.DIRECTORY
    rows = []
    for setting in SETTINGS.values():
        found = settings.given.get(setting.name)
        value: Any = settings.value(setting.name)
        source, place = (Source.DEFAULT, None) if found is None else (found.source, found.place)
        if setting.name == "uri":
            value = str(where)
            source, place = (Source.KEYWORD, "--uri") if uri_is_argument else (source, place)
        rows.append(
            {
                "name": setting.name,
                "value": shown(value),
                "unit": setting.kind.unit or None,
                "source": source.value,
                "place": place,
                "used": setting.applies is not unused,
            }
        )
    return rows


def _text(row: dict[str, Any]) -> str:
    match row["value"]:
        case None:
            return NONE if SETTINGS[row["name"]].kind.is_optional else "-"
        case bool() as truth:
            return "true" if truth else "false"
        case list() as names:
            return ", ".join(names) or "-"
        case dict() as table:
            return ", ".join(f"{key}={value}" for key, value in table.items())
        case other:
            return str(other)


def _origin(row: dict[str, Any]) -> str:
    origin = row["place"] or row["source"]
    return origin if row["used"] else f"{origin} (unused here)"
