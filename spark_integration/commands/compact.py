"""`dlog pipeline compact`: options and output.

Not inside: the compaction (``spark_integration.pipelines.compacting``).
"""

from __future__ import annotations

from typing import Any

import attrs
import click

from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import gather, json_option, uri_option
from dlog.cli.terminal.output import print_facts, print_json
from spark_integration.commands.session import (
    SparkOptions,
    client_options,
    progress_lines,
    spark_options,
    spark_session,
)


@attrs.frozen
class _Snapshot:
    """Where the snapshot goes."""

    into: str | None
    parquet: str | None


@attrs.frozen
class _Wanted:
    """Which records the snapshot has."""

    key: str
    base: str | None
    drop_tombstones: bool
    drop_null_keys: bool
    allow_truncated: bool


@click.command("compact")
@click.argument("log", shell_complete=log_names)
@uri_option
@click.option(
    "--key",
    default="key",
    show_default=True,
    metavar="SQL",
    help="The key: that of the record, or such as \"get_json_object(text, '$.id')\".",
)
@click.option("--into", metavar="LOG", help="The snapshot log; it is created.")
@click.option("--parquet", metavar="DIRECTORY", help="In place of --into: the directory of the snapshot.")
@click.option("--base", metavar="LOG", help="An earlier snapshot log, to which later records are added.")
@click.option("--drop-tombstones", is_flag=True, help="Leave out keys whose last payload is empty.")
@click.option("--drop-null-keys", is_flag=True, help="Leave out records whose key is null.")
@click.option("--allow-truncated", is_flag=True, help="Although LOG does not begin at its first record.")
@client_options
@spark_options
@json_option("the manifest, and progress on stderr,")
@gather(snapshot=_Snapshot, wanted=_Wanted)
def compact(
    log: str,
    uri: str,
    snapshot: _Snapshot,
    wanted: _Wanted,
    options: dict[str, str],
    on: SparkOptions,
    as_json: bool,
) -> None:
    """Write the last record of each key of LOG to a snapshot.

    The key is an expression of Spark SQL over payload, text (the payload as a string), key, headers, txid,
    segment, entry and slot. A reader reads the snapshot, and then LOG after the printed position. If the
    snapshot is there, nothing is written, so the command may be repeated after any failure.
    """
    into, parquet = snapshot.into, snapshot.parquet
    if (into is None) == (parquet is None):
        raise click.UsageError("give --into LOG or --parquet DIRECTORY")
    chosen: dict[str, Any] = {"options": options, **attrs.asdict(wanted)}
    with (
        spark_session("dlog pipeline compact", on) as spark,
        progress_lines(as_json=as_json) as report,
    ):
        from spark_integration import pipelines

        if parquet is None:
            assert into is not None  # one of the two was given
            made = pipelines.compact(spark, uri, log, into=into, report=report, **chosen)
            manifest, is_repeated, place = made.manifest, made.is_repeated, into
        else:
            files = pipelines.compact_to_files(spark, uri, log, directory=parquet, report=report, **chosen)
            manifest, is_repeated, place = files.manifest, files.is_repeated, str(files.rows)
    at = manifest.mark.position
    if as_json:
        print_json(
            {
                "log": log,
                "snapshot": place,
                "position": [at.segment, at.entry, at.slot],
                "rows": manifest.rows,
                "base": manifest.base,
                "is_repeated": is_repeated,
            }
        )
    else:
        print_facts(
            [
                ("snapshot", place + (" (was there)" if is_repeated else "")),
                ("rows", str(manifest.rows)),
                ("covers the log through", f"{at.segment} {at.entry} {at.slot}"),
            ]
        )
