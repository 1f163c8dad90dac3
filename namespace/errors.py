"""Errors about logs, their names and nodes; all of them are ``DLogError``.

Inside: what the namespace raises. ``dlog.errors`` has these, and the errors of records, readers and writers.
Not inside: errors of ledgers (``ledger.errors``), of the metadata store (``ledger.metadata_store.errors``).

Source: our own.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from ledger.pickling import PicklableError


class RecordOutcome(enum.Enum):
    """The known outcome of a submitted record."""

    PENDING = "pending"  # in flight, or waiting to be sent
    DURABLE = "durable"  # in the log at its DLSN
    NOT_WRITTEN = "not written"  # not in the log, now and later
    UNKNOWN = "unknown"  # may be in the log later; read the end of the log to find out


class DLogError(PicklableError):
    """The base class of all errors of this package."""

    code: ClassVar[int] = 500


class InvalidUriError(DLogError):
    """A namespace URI cannot be parsed; the message names the part."""


class InvalidLogNameError(DLogError):
    """A log name has forbidden characters or parts; the message names them."""

    code = 602


class ConfigError(DLogError, ValueError):
    """Settings contradict each other or the namespace. Nothing was opened."""


class NamespaceNotBoundError(DLogError):
    """There is no DistributedLog binding at the namespace's path or above it.

    Bind the namespace, or open it with ``create=True``.
    """


class LogUnavailableError(DLogError):
    """ZooKeeper or bookies are out of reach, or too few bookies are up. Nothing is damaged; try later."""

    code = 505


class AccessDeniedError(DLogError):
    """The identity of this program lacks the right. Nothing was changed; trying again does not help."""

    code = 403


class LogNotFoundError(DLogError):
    """The log does not exist, or was deleted. Create it with ``create_log`` or `dlog log create`."""

    code = 510

    def __init__(self, log: str, evidence: str = "") -> None:
        do = f"`dlog log create {log}` or create_log() creates it"
        super().__init__(f"log {log!r} does not exist{evidence and f' ({evidence})'}; {do}")
        self.log, self.evidence = log, evidence


class LogExistsError(DLogError):
    """The log exists already. Pass ``exist_ok=True`` to allow that."""

    code = 522

    def __init__(self, log: str, do: str = "") -> None:
        do = do or "to allow that, pass exist_ok=True in Python or --exist-ok on the command line"
        super().__init__(f"log {log!r} exists already; {do}")
        self.log = log


class LogMetadataError(DLogError):
    """Stored metadata does not parse or contradicts itself. Nothing was written over it."""

    code = 506


class SegmentGapError(LogMetadataError):
    """A segment is missing between two others. Nothing is listed: a reader would skip its records."""

    def __init__(self, log: str, evidence: str, position: object = None) -> None:
        super().__init__(f"log {log!r}: a segment is missing: {evidence}")
        self.log, self.evidence, self.position = log, evidence, position


class LogInUseError(LogMetadataError):
    """A node of the log cannot be deleted: a writer holds the lock, or segments are left."""

    def __init__(self, log: str, evidence: str) -> None:
        super().__init__(f"log {log!r}: not deleted: {evidence}")
        self.log, self.evidence = log, evidence


class InvalidCursorNameError(DLogError):
    """A cursor name is empty, too long, or has forbidden characters; the message names the reason."""

    code = 602


class CursorConflictError(DLogError):
    """Another reader has moved the cursor. Nothing was changed; open a reader with the cursor again."""

    code = 502

    def __init__(self, log: str, cursor: str, expected: object, actual: object) -> None:
        super().__init__(
            f"log {log!r}: cursor {cursor!r} is at {'no position' if actual is None else actual}, not at"
            f" {'no position' if expected is None else expected} any more: another reader has moved it. Open"
            " a reader with this cursor again to continue where it is now"
        )
        self.log, self.cursor, self.expected, self.actual = log, cursor, expected, actual


class WriteError(DLogError):
    """A record was not written, or that is unknown. ``outcome`` says whether the record may be in the log.

    Raised by ``append_many``, it is about the first record that is not known to be durable; ``durable`` has
    the positions of those before it.
    """

    code = 514

    def __init__(self, message: str, outcome: RecordOutcome = RecordOutcome.NOT_WRITTEN) -> None:
        super().__init__(f"{message} (this record: {outcome.value})")
        self.message, self.outcome = message, outcome
        self.durable: tuple[Any, ...] = ()  # DLSNs, of a module above this one

    def __str__(self) -> str:
        if not self.durable:
            return super().__str__()
        return f"{super().__str__()}; {len(self.durable)} records of the call before it are durable"

    def about(self, outcome: RecordOutcome) -> WriteError:
        """The same error for another record: a new object, so that each caller has its own traceback."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        WriteError.__init__(twin, self.message, outcome)
        twin.__context__, twin.__cause__ = self.__context__, self.__cause__
        twin.__suppress_context__ = self.__suppress_context__
        return twin


class LogFencedError(WriteError):
    """Another writer took the log over. This writer has stopped.

    To write again, call ``reopen`` or open a new writer. Both wait for the other writer's lock, up to the
    timeout.
    """

    code = 504

    def __init__(self, log: str, evidence: str, outcome: RecordOutcome = RecordOutcome.NOT_WRITTEN) -> None:
        super().__init__(
            f"log {log!r} was taken over from this writer: {evidence}; reopen it or open a new writer",
            outcome,
        )
        self.log, self.evidence = log, evidence


class LogMovedError(LogFencedError):
    """The log was promoted: it is in the namespace at ``uri`` now. Open it there.

    ``open_writer`` and ``open_reader`` of the old namespace do so themselves.
    """

    def __init__(self, log: str, uri: str, why: str = "", *, is_purged: bool = False) -> None:
        self.is_purged = is_purged  # its segments in the old namespace are deleted
        WriteError.__init__(
            self, f"log {log!r} was promoted to {uri}{why and f': {why}'}; open the log in that namespace"
        )
        self.log, self.uri, self.evidence = log, uri, f"it was promoted to {uri}"


class LogMovingError(DLogError):
    """The log is being moved to another namespace, or was, so this cannot be done. Nothing was changed."""


class PromotionError(LogMovingError):
    """A promotion cannot do this step now. Nothing was changed; the message names the command to use."""

    def __init__(self, log: str, evidence: str) -> None:
        super().__init__(f"log {log!r}: {evidence}")
        self.log, self.evidence = log, evidence


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


class LogTruncatedError(DLogError):
    """Records at this position, or after it, were truncated or purged.

    Open a reader at EARLIEST for the records left.
    """

    code = 511

    def __init__(self, log: str, position: object, first_left: object) -> None:
        super().__init__(
            f"log {log!r}: position {position} is gone (truncated or purged); the log now begins at "
            f"{first_left}. Open a reader at dlog.EARLIEST to continue there"
        )
        self.log, self.position, self.first_left = log, position, first_left


class EndOfStreamError(DLogError):
    """The log is sealed: it has no more records and takes none."""

    code = 512

    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r} is sealed (end of stream): it has no more records and takes none")
        self.log = log


class TxidOutOfOrderError(WriteError):
    """The transaction id is negative, reserved, or lower than the one before it."""

    code = 513

    def __init__(self, log: str, txid: int, last_txid: int) -> None:
        super().__init__(
            f"log {log!r}: txid {txid} after txid {last_txid}; transaction ids must not decrease, "
            "and must lie between 0 and 2**63 - 2"
        )
        self.log, self.txid, self.last_txid = log, txid, last_txid
