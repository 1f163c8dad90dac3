"""The errors of renaming logs.

Inside: their classes. Not inside: all other errors (``errors``).

Source: our own; docs/metadata.md 16.17.
"""

from __future__ import annotations

from dlog.errors import DLogError, LogNotFoundError


class LogRenamedError(LogNotFoundError):
    """There is no log of this name any more: it was renamed to ``renamed_to``. Open it there."""

    def __init__(self, log: str, renamed_to: str) -> None:
        super().__init__(log)
        self.log, self.renamed_to = log, renamed_to
        self.evidence = f"it was renamed to {renamed_to!r}"
        self.args = (f"log {log!r} does not exist: {self.evidence}; open it by that name",)


class LogRenameError(DLogError):
    """A log cannot be renamed as it is now, or not to this name. Nothing was changed.

    The message names the reason, and what to do before trying again.
    """

    def __init__(self, log: str, new_name: str, evidence: str) -> None:
        super().__init__(f"log {log!r} was not renamed to {new_name!r}: {evidence}")
        self.log, self.new_name, self.evidence = log, new_name, evidence
