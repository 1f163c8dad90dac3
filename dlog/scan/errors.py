"""The errors of scans."""

from __future__ import annotations

from dlog.errors import DLogError
from namespace.dlsn import DLSN


class PayloadFieldsError(DLogError):
    """A payload is no JSON object, or its fields have not the types of the scan.

    ``dlsn`` is the position of the record; None if many records together have no types in common.
    """

    def __init__(self, problem: str, dlsn: DLSN | None = None) -> None:
        super().__init__(problem if dlsn is None else f"record at {dlsn}: {problem}")
        self.problem, self.dlsn = problem, dlsn
