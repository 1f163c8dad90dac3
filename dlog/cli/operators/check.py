"""`dlog check DIRECTORY`: look for damage in the files of a directory, and read all of its logs.

Inside: the command. Not inside: finding damage (``ledger.deploy.repair``), reading (``directory_report``).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from dlog.cli.operators.directory_report import loss_document, lost_records, print_losses
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
@json_option("the damage, and for each log its records and gaps")
def command(directory: Path, quick: bool, as_json: bool) -> ExitCode:
    """Look for damage in DIRECTORY: metadata, index, journal, and each entry of each log.

    No process may have DIRECTORY open. No record is changed. The exit code is 7 if anything is damaged or
    lost.
    """
    try:
        damage = run(partial(find_damage, directory, metadata_only=quick))
    except DirectoryUnusableError as exc:
        raise as_dlog_error(exc, None, "checking") from exc
    for evidence in damage:
        print_note(f"{directory}: damaged: {evidence}")
    losses, unread = [], None
    if not quick:
        try:
            losses = lost_records(directory, quiet=as_json)
        except DLogError as exc:
            unread = str(exc)
            print_note(f"{directory}: its logs cannot be read: {exc}")
        else:
            print_losses(losses)
    if as_json:
        print_json(
            {"damage": list(damage), "logs": [loss_document(each) for each in losses], "error": unread}
        )
    if damage or unread is not None:
        print_note(f"{directory}: `dlog repair {directory}` makes it usable again")
        return ExitCode.DAMAGED
    if not all(each.is_sound for each in losses):
        print_note(f"{directory}: usable; readers with gaps=True continue after what is lost")
        return ExitCode.DAMAGED
    print_note(f"{directory}: sound")
    return ExitCode.OK
