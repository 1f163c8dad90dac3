"""The errors of logs that are being moved to another namespace, or were.

Inside: their classes. Not inside: all other errors (``errors``).

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

from dlog.errors import DLogError, LogFencedError, WriteError


class LogPromotedError(LogFencedError):
    """The log was promoted: it is in the namespace at ``uri`` now. Open it there.

    ``open_writer`` and ``open_reader`` of the old namespace do so themselves.
    """

    def __init__(self, log: str, uri: str, why: str = "", *, is_purged: bool = False) -> None:
        self.is_purged = is_purged  # its segments in the old namespace are deleted
        WriteError.__init__(
            self, f"log {log!r} was promoted to {uri}{why and f': {why}'}; open the log in that namespace"
        )
        self.log, self.uri, self.evidence = log, uri, f"it was promoted to {uri}"


class PromotionError(DLogError):
    """A promotion cannot do this step now. Nothing was changed; the message names the command to use."""

    def __init__(self, log: str, evidence: str) -> None:
        super().__init__(f"log {log!r}: {evidence}")
        self.log, self.evidence = log, evidence
