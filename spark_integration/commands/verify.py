"""`dlog pipeline verify`: options and output.

Not inside: the verification (``spark_integration.pipelines.verifying``).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import click

from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option, uri_option
from dlog.cli.terminal.output import print_facts, print_json
from spark_integration.commands.session import (
    SparkOptions,
    client_options,
    progress_lines,
    spark_options,
    spark_session,
)


@click.command("verify")
@click.argument("logs", nargs=-1, metavar="[LOG...]", shell_complete=log_names)
@uri_option
@click.option("--pattern", metavar="PATTERN", help="Further logs, such as 'orders-*'.")
@click.option(
    "--report",
    "path",
    required=True,
    type=click.Path(dir_okay=False),
    help="The file for the findings. With the file of a verification that died, that one is continued.",
)
@client_options
@spark_options
@json_option("the summary, and progress on stderr,")
def verify(
    logs: Sequence[str],
    uri: str,
    pattern: str | None,
    path: str,
    options: dict[str, str],
    on: SparkOptions,
    as_json: bool,
) -> ExitCode:
    """Check every replica of every entry of logs. Without LOG and --pattern: of all logs.

    It checks digests, that the replicas of an entry are equal, positions, transaction ids and metadata. The
    report has a JSON document a line, and names log, segment, ledger, entry, bookie and fault. The exit code
    is 7 if something is wrong, and 6 if only bookies were out of reach.
    """
    with (
        spark_session("dlog pipeline verify", on) as spark,
        progress_lines(as_json=as_json) as report,
    ):
        from spark_integration.pipelines import verify_logs

        found = verify_logs(spark, uri, path, logs=logs, pattern=pattern, options=options, report=report)
    if as_json:
        print_json({**attrs.asdict(found), "is_sound": found.is_sound})
    else:
        print_facts(
            [
                ("logs", str(found.logs)),
                ("segments", str(found.segments)),
                ("of these, found sound before", str(found.segments_skipped)),
                ("entries", str(found.entries)),
                ("records", str(found.records)),
                ("replicas", str(found.replicas)),
                ("faults", ", ".join(f"{count} {kind}" for kind, count in found.faults.items()) or "none"),
            ]
        )
    if found.is_sound:
        return ExitCode.OK
    return ExitCode.DAMAGED if found.is_damaged else ExitCode.UNAVAILABLE
