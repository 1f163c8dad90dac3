"""`dlog backup`: make, list, verify and prune backups of a namespace."""

from __future__ import annotations

import datetime
import re
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

import dlog
from dlog.backup import Backup, BackupProgress, BackupVerification, Pruned, open_backups
from dlog.backup.pruning import Keep
from dlog.cli.terminal.amounts import parse_age
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import (
    counted,
    moment_text,
    print_facts,
    print_json,
    print_lines,
    print_note,
    print_table,
    progress_bar,
)
from dlog.cli.terminal.signals import run

COLUMNS = ["moment", "logs", "ledgers", "bytes", "missing entries", "lost ledgers"]


class _BackupGroup(CommandGroup):
    """`dlog backup SOURCE DEST` is `dlog backup make SOURCE DEST`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of this name, else ``make``, whose arguments these are."""
        if args and self.get_command(ctx, args[0]) is None:
            args = ["make", *args]
        return super().resolve_command(ctx, args)


def source_uri(source: str) -> str:
    """The URI of a namespace that is given as a URI, or as the path of a directory."""
    return source if re.match("[a-zA-Z][a-zA-Z0-9+.-]*:", source) else Path(source).absolute().as_uri()


def parse_keep(context: click.Context, parameter: click.Parameter, text: str | None) -> Keep | None:
    """A click callback: an age such as 30d, or a number of backups."""
    if text is None:
        return None
    if len(text) < 10 and text.isdecimal() and int(text):
        return int(text)
    try:
        return parse_age(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a number of backups nor an age such as 30d", context, parameter
        ) from None


keep_option = partial(click.option, "--keep", callback=parse_keep, metavar="AGE|NUMBER")


@click.group("backup", cls=_BackupGroup, context_settings={"ignore_unknown_options": True})
def command() -> None:
    """Back up a namespace: `dlog backup SOURCE DEST`.

    SOURCE is a directory or a URI, DEST a directory or s3://BUCKET/PREFIX. Programs may write during it. Only
    what DEST lacks is sent. `dlog restore` gives the logs back, `dlog replicate` keeps DEST up to date.
    """


logs_option = partial(
    click.option,
    "--log",
    "logs",
    multiple=True,
    metavar="LOG",
    help="Only this log, without blobs; may be given several times. Default: all logs and blobs.",
)


@command.command("make")
@click.argument("source")
@click.argument("destination", metavar="DEST")
@logs_option()
@keep_option(
    help="Delete older backups afterwards: the newest NUMBER, or those of the time AGE (30d), are kept."
)
@json_option("the backup")
def make(source: str, destination: str, logs: tuple[str, ...], keep: Keep | None, as_json: bool) -> ExitCode:
    """Make a backup of SOURCE (a directory or a URI) at DEST, as it is now.

    Writers are not stopped. The exit code is 1 if entries were missing in SOURCE itself: the backup is made,
    and readers of a restored log find the same gaps.
    """
    with progress_bar("backing up", None, unit="bytes", quiet=as_json) as advance:
        made, sent = run(partial(_make, source_uri(source), destination, logs or None, keep, advance))
    if as_json:
        print_json({**_document(made), "entries_sent": sent.entries_sent, "bytes_sent": sent.bytes_sent})
    else:
        print_facts(
            [
                ("moment", moment_text(made.cut_ms)),
                ("logs", f"{made.logs:,}"),
                ("bytes in all", f"{made.size_bytes:,}"),
                ("bytes sent", f"{sent.bytes_sent:,}"),
            ]
        )
    if made.is_whole:
        return ExitCode.OK
    print_note(
        f"{source}: {counted(made.missing_entries, 'entry', 'entries')} and"
        f" {counted(made.lost_ledgers, 'ledger')} are gone in the namespace itself, so the backup lacks"
        " them; `dlog check` says more"
    )
    return ExitCode.FAILED


async def _make(
    uri: str, destination: str, logs: tuple[str, ...] | None, keep: Keep | None, advance: Any
) -> tuple[Backup, BackupProgress]:
    last = BackupProgress(ledgers_done=0, ledgers_total=0, entries_sent=0, bytes_sent=0)

    def report(progress: BackupProgress) -> None:
        nonlocal last
        last = progress
        advance(progress.bytes_sent)

    async with dlog.open_namespace(uri, read_only=True) as namespace:
        return await namespace.backup.make(destination, logs=logs, keep=keep, on_progress=report), last


@command.command("list")
@click.argument("destination", metavar="DEST")
@click.option("--logs", is_flag=True, help="Print the names of the logs in the newest backup.")
@json_option("the backups, the oldest first")
def list_backups(destination: str, logs: bool, as_json: bool) -> None:
    """List the backups at DEST."""
    if logs:
        names = run(partial(_logs, destination))
        print_json(names) if as_json else print_lines(names)
        return
    found = run(partial(_list, destination))
    if as_json:
        print_json([_document(each) for each in found])
        return
    print_table(
        COLUMNS,
        [
            [
                moment_text(each.cut_ms),
                f"{each.logs:,}",
                f"{each.ledgers:,}",
                f"{each.size_bytes:,}",
                f"{each.missing_entries:,}",
                f"{each.lost_ledgers:,}",
            ]
            for each in found
        ],
    )


async def _list(destination: str) -> list[Backup]:
    async with open_backups(destination) as backups:
        return await backups.list_all()


async def _logs(destination: str) -> list[str]:
    async with open_backups(destination) as backups:
        return await backups.logs()


@command.command("verify")
@click.argument("destination", metavar="DEST")
@json_option("what was read, and what is damaged")
def verify(destination: str, as_json: bool) -> ExitCode:
    """Read all backups at DEST, and check each checksum, entry and record.

    The exit code is 1 if anything is damaged or missing. A damaged chunk may be deleted: the next backup
    sends it again, as long as the namespace has its ledger.
    """
    found = run(partial(_verify, destination, quiet=as_json))
    if as_json:
        print_json(attrs.asdict(found))
    else:
        print_note(
            f"{destination}: {counted(found.backups, 'backup')}, {counted(found.chunks, 'chunk')},"
            f" {counted(found.entries, 'entry', 'entries')}, {found.size_bytes:,} bytes;"
            f" {counted(len(found.problems), 'problem')}"
        )
        if found.problems:
            print_table(
                ["object", "log", "what is wrong"],
                [[each.object_name, each.log or "-", each.evidence] for each in found.problems],
            )
    return ExitCode.OK if found.is_sound else ExitCode.FAILED


async def _verify(destination: str, *, quiet: bool) -> BackupVerification:
    async with open_backups(destination) as backups:
        with progress_bar("reading", None, unit="bytes", quiet=quiet) as advance:
            return await backups.verify(on_progress=lambda done, total: advance(done))


@command.command("prune")
@click.argument("destination", metavar="DEST")
@keep_option(required=True, help="The newest NUMBER are kept; or each moment of the time AGE, such as 30d.")
@json_option("the number of backups and chunks that were deleted")
def prune(destination: str, keep: Keep, as_json: bool) -> None:
    """Delete old backups at DEST, and what only they need."""
    found = run(partial(_prune, destination, keep))
    if as_json:
        print_json(attrs.asdict(found))
    print_note(
        f"{destination}: {counted(found.manifests, 'backup')} and {counted(found.chunks, 'chunk')} deleted"
    )


async def _prune(destination: str, keep: Keep) -> Pruned:
    async with open_backups(destination) as backups:
        return await backups.prune(keep)


def _document(backup: Backup) -> dict[str, object]:
    moment = datetime.datetime.fromtimestamp(backup.cut_ms / 1000, datetime.UTC)
    return {"moment": moment.isoformat(), **attrs.asdict(backup)}
