"""`dlog config show|check`: the settings that hold, with the place of each, and a check of a file.

Not inside: the settings and their places (``dlog.settings``), the keys of a bookie (``bookie.config``).
Always: no secret is printed, because no setting holds one; nothing is opened but the files that settings
name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option, uri_option
from dlog.cli.terminal.output import counted, print_json, print_note, print_table
from dlog.settings import NONE, SETTINGS, Applies, ClientSettings, Source, load_settings, read_file, shown
from namespace.namespace_uri import NamespaceUri, parse_namespace_uri

UNNAMED = "distributedlog://localhost/unnamed"  # parsed only


@click.group("config", cls=CommandGroup)
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
    is_argument = (
        context.get_parameter_source("uri") is ParameterSource.COMMANDLINE
        or context.find_root().params.get("uri") is not None  # `dlog --uri` reaches us as a variable
    )
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
@click.option(
    "--kind",
    type=click.Choice(["client", "bookie"]),
    help="What the file is; default: a bookie's if its name ends in .conf or .properties.",
)
@click.option("--strict", is_flag=True, help="An unknown key of a bookie's file is an error.")
@json_option("the settings of the file")
def check(file: Path, kind: str | None, strict: bool, as_json: bool) -> int:
    """Check a file with settings of a client, or a bookie's bk_server.conf.

    Of a client's file the names, the values and the files that it names are checked. Variables count too, as
    they do when the file is used. If the file has a uri, its settings are checked for that namespace; else
    for a cluster and for a directory.

    Of a bookie's file each key is listed with its fate: obeyed, without effect, not offered, refused, or
    unknown with the nearest known key. Then come all invalid values. Directories, certificates and ports are
    not opened.

    Exit code 2 if a client, or a bookie, cannot use the file.
    """
    if kind == "bookie" or (kind is None and file.suffix in (".conf", ".properties")):
        return _check_bookie(file, strict=strict, as_json=as_json)
    if strict:
        raise click.UsageError("--strict is for a bookie's file; in a client's an unknown name is an error")
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
        print_note(f"{file}: {counted(len(given), 'setting')}, all of them usable")
    return ExitCode.OK


def _check_bookie(file: Path, *, strict: bool, as_json: bool) -> int:
    from bookie.config.bookie_config import read_text
    from bookie.config.report import check_text

    report = check_text(read_text(file), str(file), os.environ, strict=strict)
    if as_json:
        print_json(
            {
                "file": str(file),
                "usable": not report.problems,
                "keys": [
                    {
                        "key": one.key,
                        "line": one.line,
                        "fate": one.fate.value,
                        "note": one.note or None,
                        "nearest": one.nearest,
                    }
                    for one in report.keys
                ],
                "problems": list(report.problems),
                "warnings": list(report.warnings),
            }
        )
    else:
        print_table(
            ["line", "key", "fate", "note"],
            [
                [
                    str(one.line),
                    one.key,
                    one.fate.value,
                    f"did you mean {one.nearest}?" if one.nearest else one.note,
                ]
                for one in report.keys
            ],
        )
        for warning in report.warnings:
            print_note(f"warning: {warning}")
        for problem in report.problems:
            print_note(f"error: {problem}")
        if not report.problems:
            print_note(f"{file}: {counted(len(report.keys), 'key')}; a bookie can start with them")
    return ExitCode.USAGE if report.problems else ExitCode.OK


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
