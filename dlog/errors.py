"""The errors of ``dlog``: one class for each reaction of a caller.

``dlog`` raises no other errors; those of ``namespace.errors`` are here, too. ``translated`` turns an error of
the metadata store or of a ledger into one of these.
Always: an error about a submitted record says whether the record is in the log (``RecordOutcome``).

Source: DistributedLog, DLException.java and its subclasses. ``code`` is the status code of the matching Java
error, if there is one (docs/stream-format.md 8).
"""

from __future__ import annotations

from ledger import errors as ledger_errors
from ledger.causes import cause_of
from ledger.metadata_store import errors as store_errors
from namespace.errors import AccessDeniedError as AccessDeniedError
from namespace.errors import ConfigError as ConfigError
from namespace.errors import CursorConflictError as CursorConflictError
from namespace.errors import DLogError as DLogError
from namespace.errors import EndOfStreamError as EndOfStreamError
from namespace.errors import InvalidCursorNameError as InvalidCursorNameError
from namespace.errors import InvalidLogNameError as InvalidLogNameError
from namespace.errors import InvalidUriError as InvalidUriError
from namespace.errors import LogExistsError as LogExistsError
from namespace.errors import LogFencedError as LogFencedError
from namespace.errors import LogInUseError as LogInUseError
from namespace.errors import LogMetadataError as LogMetadataError
from namespace.errors import LogMovedError as LogMovedError
from namespace.errors import LogMovingError as LogMovingError
from namespace.errors import LogNotFoundError as LogNotFoundError
from namespace.errors import LogRenamedError as LogRenamedError
from namespace.errors import LogRenameError as LogRenameError
from namespace.errors import LogTruncatedError as LogTruncatedError
from namespace.errors import LogUnavailableError as LogUnavailableError
from namespace.errors import NamespaceNotBoundError as NamespaceNotBoundError
from namespace.errors import PromotionError as PromotionError
from namespace.errors import RecordOutcome as RecordOutcome
from namespace.errors import SegmentGapError as SegmentGapError
from namespace.errors import TxidOutOfOrderError as TxidOutOfOrderError
from namespace.errors import WriteError as WriteError


class NamespaceClosedError(DLogError):
    """The namespace, writer or reader was used after it was closed."""

    code = 502


class TooFewBookiesError(LogUnavailableError):
    """The cluster has fewer writable bookies than a segment needs. Nothing was written.

    Start more bookies, or use a smaller ``ensemble_size``. A writer that has not begun yet says so after
    ``NamespaceConfig.connect_timeout_s``; one that has written waits for bookies to return, as long as
    ``WriterConfig.retry_timeout_s``.
    """

    def __init__(
        self, message: str, wanted: int, bookies: tuple[str, ...], readonly: tuple[str, ...]
    ) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.bookies = bookies  # the writable ones
        self.readonly = readonly


class ReadOnlyError(DLogError):
    """The namespace was opened with ``read_only=True``, and the call would change something. Nothing changed.

    Open the namespace without ``read_only`` to change it.
    """

    code = 403

    def __init__(self, doing: str, why: str | None = None) -> None:
        why = why or (
            "the namespace was opened with read_only=True. Nothing was changed."
            " Open it without read_only, or run the command without --read-only"
        )
        super().__init__(f"{doing}: refused, because {why}")


class NamespaceLostError(LogUnavailableError):
    """The session with the metadata store is over, and no other takes its place. Open the namespace again.

    An expired session is replaced, so only what belongs to one session ends with this error; or everything,
    if the directory of a namespace was removed or replaced while it was open.
    """


class LogLockedError(DLogError):
    """Another writer held the log's lock until the timeout. Close that writer, or wait longer.

    ``owner`` is its host and process id, or its ``client_id``. ``is_own``: it is in this process.
    ``session_timeout_s``: a lock goes this long after its owner was killed, if the owner has the same
    ``session_timeout_ms``; None in a directory, where it goes at once.
    """

    code = 302

    def __init__(
        self,
        log: str,
        owner: str | None,
        waited_s: float,
        *,
        is_own: bool = False,
        session_timeout_s: float | None = None,
    ) -> None:
        by = f"{owner or 'an unknown owner'} holds its lock"
        if is_own:
            advice = "that is this process itself: use the writer that it has open, or close it first"
        else:
            advice = (
                "a log has one writer: let one process write it (one worker, or a process of its own), close"
                " that writer, or wait longer with lock_timeout_s"
            )
            if session_timeout_s is not None:
                until = f"its session ends at the latest {session_timeout_s:g} s later"
                advice = f"{advice}. If its program was killed, {until}"
        super().__init__(f"log {log!r} has a writer already: {by}, waited {waited_s:g} s; {advice}")
        self.log, self.owner, self.is_own, self.session_timeout_s = log, owner, is_own, session_timeout_s


class EntryFormatError(DLogError):
    """Bytes are no entry of a DistributedLog segment. They gave no record."""

    code = 520


class CorruptLogError(DLogError):
    """The log holds bytes that no writer writes there. The reader stopped at ``position``, skipping nothing.

    To continue, open a reader at a later DLSN. It does not return the damaged records.
    """

    code = 1001

    def __init__(self, log: str, position: object, evidence: str) -> None:
        super().__init__(
            f"log {log!r}, {position}: {evidence}; the reader stopped there and skipped nothing. "
            "To continue after the damage, open a reader at a later DLSN"
        )
        self.log, self.position, self.evidence = log, position, evidence


class EncryptionKeyError(DLogError):
    """A key for payloads is missing or unusable; ``key_id`` names it. The error never shows a key.

    Give the key provider a key with this id, then try again. A reader's ``position`` is before the record.
    """

    def __init__(self, key_id: str, evidence: str) -> None:
        super().__init__(f"encryption key {key_id!r}: {evidence}; add the key to the provider and try again")
        self.key_id, self.evidence = key_id, evidence


class DecryptionError(DLogError):
    """A payload does not decrypt. The reader stopped before the record and skipped nothing.

    To continue after it, open a reader at a later DLSN.
    """

    def __init__(self, log: str, dlsn: object, key_id: str | None, evidence: str) -> None:
        of_key = "" if key_id is None else f", key {key_id!r}"
        super().__init__(
            f"log {log!r}, {dlsn}{of_key}: {evidence}. To read the stored bytes, open a reader without"
            " encryption; to continue after the record, open a reader at a later DLSN"
        )
        self.log, self.dlsn, self.key_id, self.evidence = log, dlsn, key_id, evidence


class LogReaderStalledError(DLogError):
    """The reader could not read for longer than its retry timeout; ``reason`` says why."""

    code = 1001

    def __init__(self, log: str, position: object, stalled_s: float, reason: str) -> None:
        super().__init__(
            f"log {log!r}: the reader at {position} made no progress for {stalled_s:.0f} s: {reason}; "
            "remove the cause, then open a reader at that position"
        )
        self.log, self.position, self.reason = log, position, reason


class LogReaderIdleError(LogReaderStalledError):
    """No entry of the log arrived for ``ReaderConfig.idle_timeout_s``. The reader stays usable."""


class RecordTooLongError(WriteError):
    """The payload is longer than a record can hold. Split it."""

    code = 413

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the payload has {size_bytes} bytes; a record holds at most {limit_bytes}: split it"
        )
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class BatchTooLongError(WriteError):
    """The records of an atomic batch do not fit in one entry. None was written; write fewer at once."""

    code = 413

    def __init__(self, log: str, records: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"log {log!r}: an atomic batch of {records} records has {size_bytes} bytes with their headers; it"
            f" is one entry, which holds at most {limit_bytes} bytes: write fewer records at once"
        )
        self.log, self.records = log, records
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class TxidReusedError(WriteError):
    """``append_once`` found a record with this transaction id and another payload, key or headers. It wrote
    nothing.

    A repeat has the payload, key and headers of the first call. Give a new record an id of its own.
    """

    def __init__(self, log: str, txid: int, dlsn: object) -> None:
        super().__init__(
            f"log {log!r}: the record with txid {txid} at {dlsn} has another payload, key or headers, so this"
            " is no repeat of it and was not written: give each new record a transaction id of its own"
        )
        self.log, self.txid, self.dlsn = log, txid, dlsn


class SequenceReusedError(WriteError):
    """A producer has a record with this sequence number and another payload, key or headers. Nothing was
    written now.

    A repeat has the payload, key and headers of the first call. Give a new record the next number.
    """

    def __init__(self, log: str, producer: str, sequence: int) -> None:
        super().__init__(
            f"log {log!r}: record {sequence} of producer {producer!r} has another payload, key or"
            " headers, so this is no repeat of it and was not written: give each new record the next number"
        )
        self.log, self.producer, self.sequence = log, producer, sequence


class PositionConflictError(WriteError):
    """The log's last record is not the one that the caller expected. Nothing was written.

    Read the records after ``expected``, decide again, and append after ``actual``.
    """

    def __init__(self, log: str, expected: object, actual: object) -> None:
        super().__init__(
            f"log {log!r}: its last record is {'none' if actual is None else actual}, not"
            f" {'none' if expected is None else expected}: another append came first; read it and"
            " decide again"
        )
        self.log, self.expected, self.actual = log, expected, actual


class WriterOverloadedError(WriteError):
    """Too many submitted bytes are not durable yet. ``await writer.wait_capacity()`` between submissions."""

    code = 517

    def __init__(self, log: str, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"log {log!r}: {waiting_bytes} submitted bytes are not durable yet, the limit is {limit_bytes}: "
            "await wait_capacity() between calls of submit()"
        )
        self.log = log


class WriterClosedError(WriteError):
    """The writer is closed. Open another one, unless the log was sealed."""

    code = 502

    def __init__(self, log: str, why: str = "the writer was closed", do: str = "open a new writer") -> None:
        super().__init__(f"log {log!r}: {why}; {do}")
        self.log = log


class LogLockLostError(LogFencedError):
    """The writer lost its lock: its session expired, or the lock's node was deleted. The writer has stopped.

    Another writer may have taken the lock; nothing shows that one has. To write again, call ``reopen`` or
    open a new writer.
    """

    def __init__(self, log: str, evidence: str, outcome: RecordOutcome = RecordOutcome.NOT_WRITTEN) -> None:
        WriteError.__init__(
            self,
            f"log {log!r}: this writer lost its lock: {evidence}; another writer may have taken the lock;"
            " reopen it or open a new writer",
            outcome,
        )
        self.log, self.evidence = log, evidence


class LogWriteError(WriteError):
    """Bookies or ZooKeeper were out of reach for longer than the retry timeout. The writer has stopped.

    A record with the outcome UNKNOWN may be in the log. Call ``reopen`` or open a new writer, then ask
    ``outcome`` or read the end of the log to find out.
    """

    code = 507

    def __init__(self, log: str, evidence: str, outcome: RecordOutcome = RecordOutcome.UNKNOWN) -> None:
        super().__init__(
            f"log {log!r}: the writer had to stop: {evidence}; reopen it or open a new writer", outcome
        )
        self.log, self.evidence = log, evidence


class EmbeddedStoreError(DLogError):
    """The directory of a ``file://`` namespace cannot be used; the message names the remedy."""


class DiskFullError(EmbeddedStoreError):
    """The disk of a ``file://`` namespace is full. Acknowledged records are kept, and can be read.

    Truncating and deleting logs still works, and frees space. Once there is space, the same namespace takes
    records again, and its writers do after ``reopen``. The cause of the error, or of its cause, is the
    ``OSError``.
    """


class WriterDiskFullError(LogWriteError, DiskFullError):
    """The writer has stopped, because the disk is full. See both classes."""


class translated:  # noqa: N801 - used as a function, on hot paths
    """Turn an error of ``ledger`` or ``namespace`` into one of this package, with the log's name.

    Args:
        log: The log, or None for the namespace.
        doing: The step that may fail, such as "listing segments".
    """

    def __init__(self, log: str | None, doing: str) -> None:
        self._log, self._doing = log, doing

    def __enter__(self) -> None: ...

    def __exit__(self, exc_type: object, exc: BaseException | None, traceback: object) -> None:
        if isinstance(exc, ledger_errors.LedgerError | store_errors.MetadataError):
            error = as_dlog_error(exc, self._log, self._doing)
            raise error from error_of_system(exc) if isinstance(error, DiskFullError) else None


def error_of_system(error: BaseException | None) -> OSError | None:
    """The first ``OSError`` among an error and its causes that is no error of these packages."""
    while error is not None and type(error) is not OSError:
        error = cause_of(error)
    return error


def as_dlog_error(exc: Exception, log: str | None, doing: str) -> DLogError:
    """The error of this package for an error of ``ledger`` or ``namespace``."""
    place = doing if log is None else f"log {log!r}, {doing}"
    match exc:
        case DLogError():
            return exc
        case ledger_errors.MetadataStoreError() if isinstance(
            cause := cause_of(exc), store_errors.MetadataError
        ):
            return as_dlog_error(cause, log, doing)
        case store_errors.InvalidStoreAddressError():
            return InvalidUriError(str(exc))
        case store_errors.StoreFormatError() | ledger_errors.MetadataFormatError():
            return LogMetadataError(f"{place}: {exc}; nothing was changed")
        case ledger_errors.SecuritySettingsError() | ledger_errors.TracingError():
            return ConfigError(str(exc))
        case ledger_errors.AuditError():
            return DLogError(str(exc))
        case ledger_errors.AccessDeniedError() | ledger_errors.LedgerReadError(is_denied=True):
            return AccessDeniedError(f"{place}: {exc}")
        case store_errors.ReadOnlyStoreError() | ledger_errors.ReadOnlyError():
            return ReadOnlyError(f"{place}")
        case store_errors.AccessDeniedError() | store_errors.StoreSecurityError():
            return AccessDeniedError(f"{place}: {exc}")
        case store_errors.SessionExpiredError():
            over = f"{place}: the session with the metadata store is over"
            return NamespaceLostError(f"{over} ({exc}); open the namespace again")
        case store_errors.StoreFullError():
            return DiskFullError(f"{place}: {exc}")
        case store_errors.ConnectionLostError() | store_errors.StoreUnreachableError():
            return LogUnavailableError(
                f"{place}: the metadata store cannot be reached ({exc}); try again later"
            )
        case store_errors.MetadataError():
            return LogMetadataError(f"{place}: unexpected state of the metadata: {exc}")
        case ledger_errors.DirectoryMovedError():
            return NamespaceLostError(str(exc))
        case ledger_errors.DirectoryFullError():
            return DiskFullError(f"{place}: {exc}")
        case ledger_errors.DirectoryUnusableError():
            return EmbeddedStoreError(str(exc))
        case ledger_errors.NotEnoughBookiesError():
            message = f"{place}: {exc}"
            return TooFewBookiesError(message, exc.wanted, exc.bookies, exc.readonly)
        case ledger_errors.CorruptEntryError():
            return CorruptLogError(log or "", doing, str(exc))
        case _:
            return LogUnavailableError(f"{place}: {exc}")
