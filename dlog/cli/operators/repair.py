"""`dlog repair DIRECTORY`: make a damaged directory usable again.

Inside: the question and the output. Not inside: the work (``ledger.deploy.repair``), reading what is left
(``directory_report``).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from dlog.cli.operators.directory_report import find_losses, losses_document, print_losses
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from dlog.errors import DLogError, as_dlog_error
from ledger.deploy.repair import find_damage, mend_directory
from ledger.errors import DirectoryUnusableError


@click.command("repair")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Repair without asking.")
@json_option("what was mended, for each log its records and gaps, and the lost blobs")
def command(directory: Path, yes: bool, as_json: bool) -> ExitCode:
    """Make DIRECTORY usable again: its metadata, its index, and what is sound in its journal.

    It prints the damage and the records that are lost, and asks. No process may have DIRECTORY open. The
    metadata come from their second copy, the index from the entry logs. Of the journal, all is kept whose
    checksums hold; readers see a gap where records are lost. Damaged files are kept: metadata with the ending
    .lost, journal files below damaged/. The exit code is 7 if records are lost.
    """
    try:
        damage = run(partial(find_damage, directory))
        if not damage:
            print_note(f"{directory}: nothing to repair; `dlog check {directory}` reads all logs")
            if as_json:
                print_json({"mended": [], "lost": [], **losses_document(None)})
            return ExitCode.OK
        for evidence in damage:
            print_note(f"{directory}: damaged: {evidence}")
        if not yes:
            _print_expected(directory)
            confirm(f"Repair {directory}?")
        done = run(partial(mend_directory, directory))
    except DirectoryUnusableError as exc:
        raise as_dlog_error(exc, None, "repairing") from exc
    if done.metadata_change is not None:
        print_note(f"{directory}: the metadata are those after change {done.metadata_change}")
    for evidence in done.lost:
        print_note(f"{directory}: left out: {evidence}")
    losses = find_losses(directory, quiet=as_json)
    print_losses(losses)
    if as_json:
        print_json({"mended": list(damage), "lost": list(done.lost), **losses_document(losses)})
    is_whole = not done.lost and losses.is_sound
    return ExitCode.OK if is_whole else ExitCode.DAMAGED


def _print_expected(directory: Path) -> None:
    """Say which records are lost, if the directory can be read as it is."""
    try:
        print_losses(find_losses(directory))
    except DLogError as exc:
        print_note(f"{directory}: which records are lost shows after the repair ({exc})")
