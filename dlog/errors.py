"""What can go wrong with a log, one class for each thing a caller could do about it.

Users of ``dlog`` meet nothing else: errors of the metadata store, of ledgers and of sqlite or kazoo are
translated at the border (``translated``) and kept as ``__cause__``.
Always: an error about a record that was being written says what became of it (``RecordOutcome``).

Source: DistributedLog, DLException.java and its subclasses; the status code of the matching Java error, where
there is one, is ``code`` (reference section 5.10).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import ClassVar

from ledger import errors as ledger_errors
from namespace import errors as namespace_errors


class RecordOutcome(enum.Enum):
    """What is known about a record that somebody tried to write."""

    PENDING = "pending"  # on its way
    DURABLE = "durable"  # in the log, at its DLSN, for good
    NOT_WRITTEN = "not written"  # not in the log, and never will be
    UNKNOWN = "unknown"  # may be found in the log later; read it to learn


class DLogError(Exception):
    """Root of everything this package raises."""

    code: ClassVar[int] = 500


class InvalidUriError(DLogError):
    """A namespace URI that cannot be understood; the message says which part and shows a good one."""


class InvalidLogNameError(DLogError):
    """A log name with forbidden characters or parts; the message says which."""

    code = 602


class ConfigError(DLogError, ValueError):
    """Settings that contradict each other or the namespace; nothing was opened."""


class NamespaceNotBoundError(DLogError):
    """No DistributedLog binding at the namespace's path or above. Bind it, or open it with
    ``create=True``."""


class NamespaceClosedError(DLogError):
    """The namespace, writer or reader was used after it was closed."""

    code = 502


class LogUnavailableError(DLogError):
    """ZooKeeper or the bookies cannot be reached, or too few bookies are up. Nothing is damaged; try again
    later."""

    code = 505


class NamespaceLostError(LogUnavailableError):
    """The session with the metadata store is over, and with it every lock. Open the namespace again."""


class LogNotFoundError(DLogError):
    """There is no such log. Create it with ``create_log``."""

    code = 510

    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r} does not exist; create it with create_log({log!r})")
        self.log = log


class LogExistsError(DLogError):
    """The log exists already; pass ``exist_ok=True`` if that is fine."""

    code = 522

    def __init__(self, log: str) -> None:
        super().__init__(
            f"log {log!r} exists already; if that is fine, say so: exist_ok=True in Python, --exist-ok on the"
            " command line"
        )
        self.log = log


class LogLockedError(DLogError):
    """Another writer has the log open and did not let go in time. Close it, or wait longer."""

    code = 302

    def __init__(self, log: str, owner: str | None, waited_s: float) -> None:
        super().__init__(
            f"log {log!r} has a writer already: {owner or 'unknown owner'} holds its lock, "
            f"waited {waited_s:g} s; close that writer, or wait longer with lock_timeout_s"
        )
        self.log, self.owner = log, owner


class LogMetadataError(DLogError):
    """What is stored about the log does not parse or contradicts itself. Nothing was written over it."""

    code = 506


class EntryFormatError(DLogError):
    """Bytes that are no entry of a DistributedLog segment. Nothing was delivered from them."""

    code = 520


class CorruptLogError(DLogError):
    """The log holds something no writer could have written there; the reader stops rather than guess.

    ``position`` is where; to go on behind it, open a reader at a later DLSN, knowing that records are
    missing.
    """

    code = 1001

    def __init__(self, log: str, position: object, evidence: str) -> None:
        super().__init__(
            f"log {log!r}, {position}: {evidence}; the reader stopped there, nothing was skipped. "
            "To read on behind the damage open a reader at a later DLSN"
        )
        self.log, self.position, self.evidence = log, position, evidence


class LogTruncatedError(DLogError):
    """Records at this position, or behind it, were truncated or purged. Open a reader at EARLIEST for what is
    left."""

    code = 511

    def __init__(self, log: str, position: object, first_left: object) -> None:
        super().__init__(
            f"log {log!r}: position {position} is gone (truncated or purged); what is left begins at "
            f"{first_left}. Open a reader at dlog.EARLIEST to go on there"
        )
        self.log, self.position, self.first_left = log, position, first_left


class EndOfStreamError(DLogError):
    """The log was sealed: nothing comes after this, and nothing can be written."""

    code = 512

    def __init__(self, log: str) -> None:
        super().__init__(
            f"log {log!r} is sealed (end of stream): it takes no more records and has no more to give"
        )
        self.log = log


class LogReaderStalledError(DLogError):
    """The reader cannot make progress although there is something to read; ``reason`` says why."""

    code = 1001

    def __init__(self, log: str, position: object, stalled_s: float, reason: str) -> None:
        super().__init__(
            f"log {log!r}: reader at {position} made no progress for {stalled_s:.0f} s: {reason}; "
            "the position is still good: open a reader there once the cause is gone"
        )
        self.log, self.position, self.reason = log, position, reason


class WriteError(DLogError):
    """A record could not be written. ``outcome`` says whether it may be found in the log all the same."""

    code = 514

    def __init__(self, message: str, outcome: RecordOutcome = RecordOutcome.NOT_WRITTEN) -> None:
        super().__init__(f"{message} (this record: {outcome.value})")
        self.message, self.outcome = message, outcome

    def about(self, outcome: RecordOutcome) -> WriteError:
        """The same error for another record; each caller gets an object of its own, with its own
        traceback."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        WriteError.__init__(twin, self.message, outcome)
        twin.__cause__ = self.__cause__
        return twin


class RecordTooLongError(WriteError):
    """The payload is longer than a record may be. Split it."""

    code = 413

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"payload of {size_bytes} bytes; a record takes at most {limit_bytes}: split it")
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class TxidOutOfOrderError(WriteError):
    """The transaction id is negative, reserved, or lower than the one before it."""

    code = 513

    def __init__(self, log: str, txid: int, last_txid: int) -> None:
        super().__init__(
            f"log {log!r}: txid {txid} after txid {last_txid}: transaction ids never decrease, "
            "and lie between 0 and 2**63 - 2"
        )
        self.log, self.txid, self.last_txid = log, txid, last_txid


class WriterOverloadedError(WriteError):
    """More bytes were submitted than may wait. ``await writer.wait_room()`` between submissions."""

    code = 517

    def __init__(self, log: str, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"log {log!r}: {waiting_bytes} bytes wait to become durable, at most {limit_bytes} may: "
            "await wait_room() now and then when using submit()"
        )
        self.log = log


class WriterClosedError(WriteError):
    """The writer is closed. Open another one."""

    code = 502

    def __init__(self, log: str, why: str = "the writer was closed") -> None:
        super().__init__(f"log {log!r}: {why}; open a new writer")
        self.log = log


class LogFencedError(WriteError):
    """Another writer took the log over, or this one lost its lock. This writer is finished for good.

    Open a new writer to write again; it will wait for, or be refused by, the other one.
    """

    code = 504

    def __init__(self, log: str, evidence: str, outcome: RecordOutcome = RecordOutcome.NOT_WRITTEN) -> None:
        super().__init__(
            f"log {log!r} was taken over from this writer: {evidence}; open a new writer", outcome
        )
        self.log, self.evidence = log, evidence


class LogWriteError(WriteError):
    """The writer could not go on (bookies or ZooKeeper out of reach for too long). It is finished for good.

    Records with outcome UNKNOWN may be found in the log once a new writer has been opened: read its end to
    decide.
    """

    code = 507

    def __init__(self, log: str, evidence: str, outcome: RecordOutcome = RecordOutcome.UNKNOWN) -> None:
        super().__init__(f"log {log!r}: the writer had to stop: {evidence}; open a new writer", outcome)
        self.log, self.evidence = log, evidence


class EmbeddedStoreError(DLogError):
    """The directory of a ``file://`` namespace cannot be used; the message says what to do about it."""


@contextlib.contextmanager
def translated(log: str | None, doing: str) -> Iterator[None]:
    """Turn errors of the packages below into this package's, with the log's name, chained.

    Args:
        log: The log concerned, or None for the namespace as a whole.
        doing: What was being done, as in "listing segments".
    """
    try:
        yield
    except (ledger_errors.LedgerError, namespace_errors.NamespaceError) as exc:
        raise as_dlog_error(exc, log, doing) from exc


def as_dlog_error(exc: Exception, log: str | None, doing: str) -> DLogError:
    """The error of this package that says what ``exc`` means to somebody who knows only logs."""
    subject = "the namespace" if log is None else f"log {log!r}"
    match exc:
        case DLogError():
            return exc
        case namespace_errors.InvalidUriError():
            return InvalidUriError(str(exc))
        case namespace_errors.InvalidLogNameError():
            return InvalidLogNameError(str(exc))
        case namespace_errors.FormatError() | ledger_errors.MetadataFormatError():
            return LogMetadataError(f"{subject}, {doing}: {exc}; nothing was changed")
        case namespace_errors.SessionExpiredError():
            return NamespaceLostError(
                f"{subject}, {doing}: the session with the metadata store is over ({exc}); "
                "open the namespace again"
            )
        case namespace_errors.ConnectionLostError() | namespace_errors.StoreUnreachableError():
            return LogUnavailableError(
                f"{subject}, {doing}: the metadata store cannot be reached ({exc}); try again later"
            )
        case namespace_errors.LogNotFoundError():
            return LogNotFoundError(exc.log_name)
        case namespace_errors.LogExistsError():
            return LogExistsError(exc.log_name)
        case namespace_errors.NoBindingError():
            return NamespaceNotBoundError(
                f"{exc}; or open it with NamespaceConfig(create=True) to bind it to the cluster's own ledgers"
            )
        case namespace_errors.NamespaceError():
            return LogMetadataError(f"{subject}, {doing}: unexpected state of the metadata: {exc}")
        case ledger_errors.CorruptEntryError():
            return CorruptLogError(log or "", doing, str(exc))
        case _:
            return LogUnavailableError(f"{subject}, {doing}: {exc}")
