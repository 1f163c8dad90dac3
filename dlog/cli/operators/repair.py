"""`dlog repair DIRECTORY`: make the lost metadata of a directory again from their second copy.

Inside: the question and the output. Not inside: the work (``ledger.deploy.repair``).
"""

from __future__ import annotations

from pathlib import Path

import click

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.output import print_note
from dlog.cli.terminal.questions import confirm
from dlog.errors import as_dlog_error
from ledger.deploy.repair import repair_directory
from ledger.errors import DirectoryUnusableError


@click.command("repair")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Repair without asking.")
def command(directory: Path, yes: bool) -> ExitCode:
    """Make the metadata of DIRECTORY again if they are damaged, older than their second copy, or gone.

    No process may have DIRECTORY open. The files that were there get the ending .lost. Sound metadata
    stay as they are.
    """

    def ask(lost: str) -> None:
        print_note(f"{directory}: {lost}")
        if not yes:
            confirm("Make the metadata again from metadata.copy?")

    try:
        number = repair_directory(directory, ask)
    except DirectoryUnusableError as exc:
        raise as_dlog_error(exc, None, "repairing") from exc
    if number is None:
        print_note(f"{directory}: nothing to repair")
    else:
        print_note(f"{directory}: the metadata are those after change {number}")
    return ExitCode.OK
