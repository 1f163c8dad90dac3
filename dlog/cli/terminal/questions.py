"""The question before a command that cannot be undone. Its option ``--yes`` answers it beforehand.

Always: only the answer yes lets the command continue. Without an answer nothing is done, and the error says
how to give one.
"""

from __future__ import annotations

import click

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.output import print_note


class DeclinedError(click.ClickException):
    """The answer was no."""

    exit_code = ExitCode.FAILED

    def __init__(self) -> None:
        super().__init__("nothing was done")

    def show(self, file: object = None) -> None:
        """Say on stderr that nothing was done."""
        print_note(self.message)


def confirm(question: str) -> None:
    """Ask on stderr; return if the answer is yes.

    Raises:
        DeclinedError: The answer is no.
        click.UsageError: stdin ended before an answer.
        click.Abort: Ctrl-C.
    """
    try:
        answer = click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            print_note("")  # ends the line of the question
            raise click.UsageError("stdin ended before an answer; nothing was done. Give --yes") from None
        raise
    if not answer:
        raise DeclinedError
