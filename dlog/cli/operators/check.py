"""`dlog check DIRECTORY`: look for damage in the files of a directory, and read all of its logs and blobs.

Inside: the command. Not inside: finding damage (``ledger.deploy.repair``), reading (``directory_report``).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from dlog.cli.operators.directory_report import Losses, find_losses, losses_document, print_losses
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.signals import run
from dlog.errors import DLogError, as_dlog_error
from ledger.deploy.repair import find_damage
from ledger.errors import DirectoryUnusableError


@click.command("check")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Check the metadata only; read no entry.")
@json_option("the damage, for each log its records and gaps, and the lost blobs")
def command(directory: Path, quick: bool, as_json: bool) -> ExitCode:
    """Look for damage in DIRECTORY: metadata, index, journal, and each entry of each log and blob.

    No process may have DIRECTORY open. No record is changed. The exit code is 7 if anything is damaged or
    lost.
    """
    try:
        damage = run(partial(find_damage, directory, metadata_only=quick))
    except DirectoryUnusableError as exc:
        raise as_dlog_error(exc, None, "checking") from exc
    for evidence in damage:
        print_note(f"{directory}: damaged: {evidence}")
    losses: Losses | None = None
    unread = None
    if not quick:
        try:
            losses = find_losses(directory, quiet=as_json)
        except DLogError as exc:
            unread = str(exc)
            print_note(f"{directory}: its logs cannot be read: {exc}")
        else:
            print_losses(losses)
    if as_json:
        print_json({"damage": list(damage), **losses_document(losses), "error": unread})
    if damage or unread is not None:
        print_note(f"{directory}: `dlog repair {directory}` makes it usable again")
        return ExitCode.DAMAGED
    if losses is not None and not losses.is_sound:
        print_note(f"{directory}: usable; readers with gaps=True continue after what is lost")
        return ExitCode.DAMAGED
    print_note(f"{directory}: sound")
    return ExitCode.OK
