"""`dlog pipeline archive`, `table` and `restore`: a log into Parquet files with a manifest, and back."""

from __future__ import annotations

import attrs
import click

from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import gather, json_option, uri_option
from dlog.cli.terminal.output import counted, print_json, print_note
from spark_integration.commands.session import (
    SparkOptions,
    client_options,
    progress_lines,
    spark_options,
    spark_session,
)


@attrs.frozen
class _Truncation:
    """The choices for records that are in the archive."""

    truncate: bool
    keep_segments: int
    truncate_unread: bool


@click.command("archive")
@click.argument("log", shell_complete=log_names)
@click.option("--into", required=True, metavar="DIRECTORY", help="The directory of the archive.")
@click.option("--truncate", is_flag=True, help="Truncate the log behind what was archived and read back.")
@click.option(
    "--keep-segments",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="So many of the newest archived segments stay in the log.",
)
@click.option("--truncate-unread", is_flag=True, help="Truncate also what a cursor has not consumed.")
@uri_option
@client_options
@spark_options
@json_option("the result, and progress on stderr,")
@gather(after=_Truncation)
def archive(
    log: str,
    into: str,
    after: _Truncation,
    uri: str,
    options: dict[str, str],
    on: SparkOptions,
    as_json: bool,
) -> None:
    """Archive the completed segments of LOG that are not in the archive yet.

    Each segment becomes a Parquet file; a manifest names the files. The directory must be the same for the
    driver and all executors. Start the command again after any failure, or every night: it adds what is
    missing.
    """
    if not after.truncate and (after.keep_segments or after.truncate_unread):
        raise click.UsageError("--keep-segments and --truncate-unread belong to --truncate")
    with spark_session("dlog pipeline archive", on) as spark:
        from spark_integration.pipelines.archives import archive as run

        with progress_lines(as_json=as_json) as report:
            result = run(
                spark,
                uri,
                log,
                into=into,
                truncate=after.truncate,
                keep_segments=after.keep_segments,
                truncate_unread=after.truncate_unread,
                options=options,
                report=report,
            )
    before = None if result.truncated_before is None else str(result.truncated_before)
    if as_json:
        print_json({**attrs.asdict(result), "truncated_before": before})
        return
    new = f"{counted(result.records, 'record')} in {counted(result.segments, 'segment')}"
    total = f"{counted(result.records_total, 'record')} in {counted(result.segments_total, 'segment')}"
    print_note(f"{log}: archived {new}, {counted(result.size_bytes, 'byte')}; {result.archive} has {total}")
    if after.truncate:
        print_note(f"{log}: " + ("nothing to truncate" if before is None else f"truncated before {before}"))


@attrs.frozen
class _Table:
    """Where the records come from, which they are, and where they go."""

    directory: str
    parquet: str
    where: str | None


@click.command("table")
@click.argument("log", shell_complete=log_names)
@click.option(
    "--archive", "directory", required=True, metavar="DIRECTORY", help="The directory of the archive."
)
@click.option("--parquet", required=True, metavar="DIRECTORY", help="The directory for the records.")
@click.option("--where", metavar="SQL", help='Only these records, such as "txid >= 1793520000000".')
@uri_option
@client_options
@spark_options
@json_option("the result, and progress on stderr,")
@gather(wanted=_Table)
def table(
    log: str,
    wanted: _Table,
    uri: str,
    options: dict[str, str],
    on: SparkOptions,
    as_json: bool,
) -> None:
    """Write the records of LOG, from its archive and from the log itself, to Parquet files.

    Each record comes once, up to the present end of LOG, although archiving and truncation continue. The
    columns are stream, segment, entry, slot, txid, payload and sequence. Start the command again after any
    failure. If the files are there, nothing is written.
    """
    with spark_session("dlog pipeline table", on) as spark:
        from spark_integration.pipelines.archives import export_table

        with progress_lines(as_json=as_json) as report:
            found = export_table(
                spark,
                uri,
                log,
                archive=wanted.directory,
                directory=wanted.parquet,
                where=wanted.where,
                options=options,
                report=report,
            )
    if as_json:
        print_json({"log": log, **attrs.asdict(found), "rows": str(found.rows)})
        return
    print_note(
        f"{log}: {counted(found.records, 'record')} in {found.rows}" + " (was there)" * found.is_repeated
    )


@click.command("restore")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("log")
@uri_option
@client_options
@spark_options
@json_option("the result, and progress on stderr,")
def restore(
    directory: str,
    log: str,
    uri: str,
    options: dict[str, str],
    on: SparkOptions,
    as_json: bool,
) -> None:
    """Restore the archive in DIRECTORY into LOG, which is new or empty.

    Records keep their payloads, transaction ids and order; they get new positions. Start the command again
    after any failure: it restores what is missing.
    """
    with spark_session("dlog pipeline restore", on) as spark:
        from spark_integration.pipelines.archives import restore as run

        with progress_lines(as_json=as_json) as report:
            result = run(spark, directory, uri, log, options=options, report=report)
    if as_json:
        print_json(attrs.asdict(result))
        return
    before = f"; {result.records_before:,} were there" if result.records_before else ""
    what = f"{counted(result.records, 'record')} in {counted(result.segments, 'segment')}"
    print_note(f"{log}: restored {what}{before}")
