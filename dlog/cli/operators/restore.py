"""`dlog restore`: make a directory of a backup."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import click

import dlog
from dlog.backup import Restored, open_backups
from dlog.cli.terminal.options import json_option, parse_moment
from dlog.cli.terminal.output import counted, moment_text, print_json, print_note, progress_bar
from dlog.cli.terminal.signals import run


def _moment(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> datetime.datetime | dlog.DLSN | None:
    """A time or a position. A time alone is one of today; without an offset, of this machine."""
    if text is None:
        return None
    try:
        return dlog.DLSN.parse(text)
    except ValueError:
        pass  # a time, or neither
    try:
        return parse_moment(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a time, such as 2026-11-01T12:30 or 12:30, nor a position such as 7:42:0",
            context,
            parameter,
        ) from None


@click.command("restore")
@click.argument("destination", metavar="DEST")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--log", "logs", multiple=True, metavar="LOG", help="A log; several may be given. Default: all."
)
@click.option(
    "--at",
    metavar="TIME|POSITION",
    callback=_moment,
    help="The newest backup at that time or before; or, with one --log, up to a position such as 7:42:0.",
)
@json_option("what was restored")
def command(
    destination: str,
    directory: Path,
    logs: tuple[str, ...],
    at: datetime.datetime | dlog.DLSN | None,
    as_json: bool,
) -> None:
    """Make DIRECTORY of a backup at DEST, without --at of the newest one.

    DIRECTORY must not exist, or be empty. It appears when it is complete. What an interrupted restore leaves
    is DIRECTORY.restoring; run the command again.
    """
    if isinstance(at, dlog.DLSN) and len(set(logs)) != 1:
        raise click.UsageError("with a position give one --log, which ends there")
    with progress_bar("restoring", None, unit="bytes", quiet=as_json) as advance:
        try:
            found = run(partial(_restore, destination, directory, list(logs) or None, at, advance))
        except ValueError as exc:  # of an argument; those of a backup have classes of their own
            raise click.UsageError(str(exc)) from None
    if as_json:
        print_json({**attrs.asdict(found), "directory": str(directory)})
    print_note(
        f"{directory}: {counted(len(found.logs), 'log')} as of {moment_text(found.cut_ms)},"
        f" {counted(found.entries, 'entry', 'entries')}, {found.size_bytes:,} bytes"
    )
    if found.missing_entries:
        print_note(
            f"{counted(found.missing_entries, 'entry', 'entries')} were gone before the backup; readers see"
            " gaps"
        )


async def _restore(
    destination: str,
    directory: Path,
    logs: list[str] | None,
    at: datetime.datetime | dlog.DLSN | None,
    advance: Callable[[int], None],
) -> Restored:
    async with open_backups(destination) as backups:
        return await backups.restore(
            directory, logs=logs, at=at, on_progress=lambda progress: advance(progress.bytes_done)
        )
