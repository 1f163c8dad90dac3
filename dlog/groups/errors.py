"""The error of consumer groups, beside those of ``dlog.errors``."""

from __future__ import annotations

from dlog.errors import DLogError


class ClaimLostError(DLogError):
    """The member no longer holds the log of this batch, so the batch was not committed.

    Another member gets the same records, or has them already. Drop the batch, and continue with the next one.
    """

    def __init__(self, group: str, log: str, why: str) -> None:
        super().__init__(
            f"group {group!r}: this member does not hold log {log!r} any more ({why}); the batch is not"
            " committed, and the log's next holder gets its records"
        )
        self.group, self.log = group, log
