"""`dlog pipeline copy`: options and output.

Not inside: the copy (``spark_integration.pipelines.copying``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import click

from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode, exit_code_of
from dlog.cli.terminal.options import gather, json_option, uri_option
from dlog.cli.terminal.output import print_json, print_note, print_table
from spark_integration.commands.session import (
    SparkOptions,
    client_options,
    key_values,
    progress_lines,
    spark_options,
    spark_session,
)

if TYPE_CHECKING:
    from spark_integration.pipelines import CopiedLog


@attrs.frozen
class _Wanted:
    """Which logs are copied, under which names, and what goes with them."""

    pattern: str | None
    prefix: str
    source_name: str | None
    cursors: bool


@attrs.frozen
class _Target:
    """The namespace that gets the copies."""

    target: str
    to_options: dict[str, str]


@click.command("copy")
@click.argument("logs", nargs=-1, metavar="[LOG...]", shell_complete=log_names)
@uri_option
@click.option("--to", "target", required=True, metavar="URI", help="The namespace that gets the copies.")
@click.option("--pattern", metavar="PATTERN", help="Further logs, such as 'orders-*'.")
@click.option("--prefix", default="", metavar="TEXT", help="Of the names of the copies.")
@click.option(
    "--source-name",
    metavar="NAME",
    help="The name of --uri in the copies. Default: the URI. Keep it if the URI changes.",
)
@click.option("--cursors", is_flag=True, help="Also copy cursors, to the same records; none goes back.")
@client_options
@click.option(
    "--to-option",
    "to_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=key_values,
    help="As --option, for the namespace of --to.",
)
@spark_options
@json_option("the result, and progress on stderr,")
@gather(wanted=_Wanted, to=_Target)
def copy(
    logs: Sequence[str],
    uri: str,
    to: _Target,
    wanted: _Wanted,
    options: dict[str, str],
    on: SparkOptions,
    as_json: bool,
) -> ExitCode:
    """Copy logs to another namespace, up to the ends that they have now.

    The copies have the same records with the same transaction ids, in the same order. Run it again to
    copy what was written since, or to continue a copy that died: no record is left out or copied twice.
    Properties are copied, too, and the seal of a sealed log.
    """
    with (
        spark_session("dlog pipeline copy", on) as spark,
        progress_lines(as_json=as_json) as report,
    ):
        from spark_integration.pipelines import copy_logs

        found = copy_logs(
            spark,
            uri,
            to.target,
            logs=logs,
            pattern=wanted.pattern,
            prefix=wanted.prefix,
            source_name=wanted.source_name,
            cursors=wanted.cursors,
            source_options=options,
            target_options=to.to_options,
            report=report,
        )
    if as_json:
        print_json([_document(each) for each in found])
    else:
        print_table(
            ["log", "copy", "copied", "before"],
            [[each.log, each.into, str(each.records), str(each.records_before)] for each in found],
        )
        for each in found:
            if each.error is not None:
                print_note(f"{each.log}: {each.error}")
    errors = [each.error for each in found if each.error is not None]
    return exit_code_of(errors[0]) if errors else ExitCode.OK


def _document(copied: CopiedLog) -> dict[str, object]:
    at = copied.position
    return {
        "log": copied.log,
        "copy": copied.into,
        "records": copied.records,
        "records_before": copied.records_before,
        "position": None if at is None else [at.segment, at.entry, at.slot],
        "is_sealed": copied.is_sealed,
        "error": None if copied.error is None else str(copied.error),
    }
