"""The exceptions of this package: one class for each problem that a caller can act on.

Result codes of bookies become classes here (``BookieRefusal``); the numbers stay in ``ledger.codes``.

Source: BKException.java (client codes); docs/protocol.md 8.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from ledger.causes import cause_of
from ledger.codes import Code
from ledger.pickling import PicklableError

SECURITY_HINT = (
    "If the bookie requires TLS or authentication, name a file with the settings:"
    " `dlog --bookie-security FILE`, the variable DLOG_BOOKIE_SECURITY, or the option bookieSecurity of Spark"
)
"""The end of the error about a refusal: a bookie does not say why it refuses."""


class LedgerError(PicklableError):
    """Base class of all exceptions of this package."""


class WireError(LedgerError):
    """A peer sent bytes that are no message of the protocol. The connection must be closed."""


class UnsupportedInVersionError(LedgerError):
    """The protocol version has no such message. Use a connection of version 3."""

    def __init__(self, version: int, what: str) -> None:
        super().__init__(f"version {version} of the bookie protocol has no message for {what}")
        self.version, self.what = version, what


class SecuritySettingsError(LedgerError, ValueError):
    """Settings of TLS or authentication with bookies cannot be used. Nothing was sent."""


class TracingError(LedgerError, ValueError):
    """Tracing is turned on, and the library for it is not installed."""


class CorruptEntryError(LedgerError):
    """The bytes of an entry have a wrong digest or other ids than requested. Try another replica."""

    def __init__(self, ledger_id: int, entry_id: int | None, evidence: str) -> None:
        which = "last entry" if entry_id is None else f"entry {entry_id}"
        super().__init__(f"ledger {ledger_id}, {which}: {evidence}")
        self.ledger_id, self.entry_id, self.evidence = ledger_id, entry_id, evidence


class MetadataFormatError(LedgerError):
    """Stored ledger metadata, a layout or a cookie cannot be parsed. They are left as they are."""


class LedgerMetadataError(LedgerError):
    """Metadata are invalid, or the state of the ledger forbids the change. Nothing was stored."""


class PolicyError(LedgerError, ValueError):
    """A policy does not parse, or could never be changed. It grants nothing."""


class BookieError(LedgerError):
    """A request to one bookie brought no usable reply."""

    def __init__(self, bookie: str, message: str) -> None:
        super().__init__(f"bookie {bookie}: {message}")
        self.bookie, self.reason = bookie, message


class BookieUnavailableError(BookieError):
    """The bookie cannot be reached, or the connection broke. A write may or may not be stored."""


class BookieSecurityError(BookieUnavailableError):
    """TLS or authentication with the bookie failed. A retry does not help: check keys and settings."""


class BookieTimeoutError(BookieError):
    """The bookie did not reply in time. A write may or may not be stored."""


class EntryGoneError(BookieError):
    """The replica has proof that it can never return the entry. A retry does not help."""


class BookieRefusal(BookieError):  # noqa: N818 - it is a reply, not a failure of the request
    """The bookie refused a request. Each code that a caller can act on has a subclass."""

    code: ClassVar[Code]
    by_code: ClassVar[dict[Code, type[BookieRefusal]]] = {}

    def __init_subclass__(cls, *, code: Code) -> None:
        # each class below has a code of its own
        assert code not in cls.by_code, f"two exceptions for {code!r}"
        cls.code = code
        cls.by_code[code] = cls

    def __init__(self, bookie: str, ledger_id: int, entry_id: int | None = None) -> None:
        what = f"ledger {ledger_id}" if entry_id is None else f"entry {ledger_id}:{entry_id}"
        super().__init__(bookie, f"{self.code.name} for {what}")
        self.ledger_id, self.entry_id = ledger_id, entry_id


class NoLedgerRefusal(BookieRefusal, code=Code.NO_LEDGER):
    """The bookie has no entry of the ledger, and never had one."""


class NoEntryRefusal(BookieRefusal, code=Code.NO_ENTRY):
    """The bookie never stored this entry."""


class BadRequestRefusal(BookieRefusal, code=Code.BAD_REQUEST):
    """The bookie could not process the request."""


class IoErrorRefusal(BookieRefusal, code=Code.IO_ERROR):
    """The disk of the bookie failed. The entry may exist."""


class UnauthorizedRefusal(BookieRefusal, code=Code.UNAUTHORIZED):
    """The identity lacks the right, the password is wrong, or the connection is not authenticated."""

    def __init__(self, bookie: str, ledger_id: int, entry_id: int | None = None) -> None:
        super().__init__(bookie, ledger_id, entry_id)
        self.args = (
            f"{self}: the identity with which this client authenticates lacks the right to this ledger's log."
            f" {SECURITY_HINT}",
        )


class BadVersionRefusal(BookieRefusal, code=Code.BAD_VERSION):
    """The bookie does not support this protocol version."""


class FencedRefusal(BookieRefusal, code=Code.FENCED):
    """Another client is recovering the ledger. The writer must stop and cannot continue."""


class ReadOnlyRefusal(BookieRefusal, code=Code.READ_ONLY):
    """The bookie accepts no writes now."""


class TooManyRequestsRefusal(BookieRefusal, code=Code.TOO_MANY_REQUESTS):
    """The bookie is over capacity. Try again later, or on another bookie."""


class UnknownLedgerStateRefusal(BookieRefusal, code=Code.UNKNOWN_LEDGER_STATE):
    """The bookie may have lost entries of this ledger, so it cannot deny that they exist."""


def is_refusal(reason: Exception) -> bool:
    """True if a retry does not help: client and bookie do not accept each other, or a right is missing."""
    return isinstance(reason, UnauthorizedRefusal | BookieSecurityError)


class NoSuchLedgerError(LedgerError):
    """The metadata store has no such ledger: it was never created, or was deleted."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: not in the metadata store")
        self.ledger_id = ledger_id


class LedgerExistsError(LedgerError):
    """A ledger with the requested id exists already."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} exists already")
        self.ledger_id = ledger_id


class LedgerIdOverflowError(LedgerError):
    """The layout of the ledgers root has no ids left. Choose an id, or use a layout with long ids."""

    def __init__(self, root: str) -> None:
        super().__init__(f"{root}: its layout holds ledger ids below 2147483647 only, and all were given out")
        self.root = root


class LedgerFencedError(LedgerError):
    """Another client recovered, or is recovering, this ledger. This writer cannot continue."""

    def __init__(self, ledger_id: int, evidence: str) -> None:
        super().__init__(f"ledger {ledger_id} was taken over from this writer: {evidence}")
        self.ledger_id = ledger_id


class LedgerClosedError(LedgerError):
    """The handle or the ledger is closed. No entry can be added."""

    def __init__(self, ledger_id: int, message: str = "closed") -> None:
        super().__init__(f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class LedgerWriteError(LedgerError):
    """Adding entries failed. A later recovery may or may not keep entries that are not confirmed."""

    def __init__(self, ledger_id: int, message: str) -> None:
        super().__init__(f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


_NAMES_MAX = 16  # in one message


def _named(bookies: Collection[str]) -> str:
    if not bookies:
        return ""
    more = len(bookies) - _NAMES_MAX
    return f" ({', '.join(sorted(bookies)[:_NAMES_MAX])}{f' and {more} more' if more > 0 else ''})"


class NotEnoughBookiesError(LedgerError):
    """There are fewer usable bookies than the ensemble needs. Start more, or use a smaller ensemble."""

    def __init__(
        self, wanted: int, available: int, bookies: Collection[str] = (), readonly: Collection[str] = ()
    ) -> None:
        super().__init__(
            f"{wanted} bookies wanted, {available} writable{_named(bookies)}"
            + (f", {len(readonly)} read-only{_named(readonly)}" if readonly else "")
            + "; start more bookies (`dlog bookies list` shows them), or use a smaller ensemble and quorums"
        )
        self.wanted, self.available = wanted, available
        self.bookies, self.readonly = tuple(sorted(bookies)), tuple(sorted(readonly))


class PlacementError(NotEnoughBookiesError):
    """The writable bookies allow no ensemble with the enforced fault domains. Nothing was changed.

    Start bookies in the missing places, check the locations of bookies, or enforce fewer fault domains.
    """

    def __init__(self, wanted: int, available: int, evidence: str) -> None:
        LedgerError.__init__(self, f"{wanted} bookies wanted, {available} writable: {evidence}")
        self.wanted, self.available = wanted, available
        self.bookies = self.readonly = ()


class LocationError(LedgerError):
    """A network location, or a source of locations, cannot be used. The message names it."""


class BookieInUseError(LedgerError):
    """The bookie is registered, or ledgers name it, so it cannot leave the cluster. Its cookie stays."""

    def __init__(self, bookie: str, evidence: str) -> None:
        super().__init__(f"bookie {bookie}: {evidence}")
        self.bookie = bookie


class BookieNotReadOnlyError(LedgerError):
    """The bookie takes new entries or is not registered, so it cannot be drained. Nothing was changed."""

    def __init__(self, bookie: str, evidence: str) -> None:
        super().__init__(f"bookie {bookie}: {evidence}")
        self.bookie = bookie


class NoAutoRecoveryError(LedgerError):
    """No worker of auto-recovery would do the work. Nothing was lost; the marks stay."""


class BalanceRunningError(LedgerError):
    """Another program balances the bookies of this cluster. Nothing was changed."""


class ClusterNotWholeError(LedgerError):
    """A bookie is away, or ledgers lack replicas, so no replica is moved. Earlier moves stay."""


class DuplicateEntryIdError(LedgerError):
    """The ledger has an entry with this id, or one is being written. The new entry was not accepted."""

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: entry {entry_id} was submitted before")
        self.ledger_id, self.entry_id = ledger_id, entry_id


class LedgerReadError(LedgerError):
    """An entry, or the LAC (``entry_id`` None), could not be read; the message has the reason of each
    bookie."""

    def __init__(self, ledger_id: int, entry_id: int | None, reasons: dict[str, Exception]) -> None:
        evidence = "; ".join(str(reason) for reason in reasons.values()) or "no bookie to read from"
        what = (
            f"ledger {ledger_id}: its last add confirmed could not be read"
            if entry_id is None
            else f"ledger {ledger_id}, entry {entry_id}: no replica returned it"
        )
        super().__init__(f"{what}: {evidence}")
        self.ledger_id, self.entry_id, self.reasons = ledger_id, entry_id, reasons

    @property
    def is_denied(self) -> bool:
        """True if each bookie refused this client, or is refused by it: a retry does not help."""
        reasons = self.reasons.values()
        return bool(reasons) and all(map(is_refusal, reasons))


class NoSuchEntryError(LedgerReadError):
    """Every replica replied that it never stored the entry."""


class EntryBeyondLacError(LedgerError):
    """The entry is after the last one known to be confirmed. Read the LAC again, or wait for the entry."""

    def __init__(self, ledger_id: int, entry_id: int, lac: int) -> None:
        super().__init__(f"ledger {ledger_id}: entry {entry_id} is beyond the LAC {lac}")
        self.ledger_id, self.entry_id, self.lac = ledger_id, entry_id, lac


class AuditError(LedgerError):
    """The audit log cannot be written; the message says whether the act was done."""


class AccessDeniedError(LedgerError):
    """A bookie refused a request to a ledger. Nothing was changed; trying again does not help."""

    def __init__(self, ledger_id: int, bookie: str, right: str) -> None:
        super().__init__(
            f"ledger {ledger_id}: bookie {bookie} refuses to {right}: the identity with which this client"
            f" authenticates lacks the right to {right} this ledger's log, or the ledger's password is not"
            f" the one that the bookie knows. `dlog policy show` prints the rights. {SECURITY_HINT}"
        )
        self.ledger_id, self.bookie, self.right = ledger_id, bookie, right


class ClientRefusedError(AccessDeniedError):
    """Too many bookies refuse this client, or are refused by it: TLS, a certificate, a password, a token.

    ``reasons`` has what each of them said. Trying again does not help.
    """

    def __init__(self, ledger_id: int, reasons: Sequence[Exception]) -> None:
        evidence = "; ".join(map(str, reasons))
        LedgerError.__init__(
            self, f"ledger {ledger_id}: bookies and this client refuse each other: {evidence}"
        )
        self.ledger_id, self.reasons = ledger_id, tuple(reasons)


class WrongPasswordError(AccessDeniedError):
    """The ledger was created with another password."""

    def __init__(self, ledger_id: int) -> None:
        LedgerError.__init__(self, f"ledger {ledger_id}: the password is not the one it was created with")
        self.ledger_id = ledger_id


class LedgerRecoveryError(LedgerError):
    """The end of the ledger could not be decided. The ledger is not closed; try again later."""

    def __init__(self, ledger_id: int, message: str) -> None:
        super().__init__(f"ledger {ledger_id}: recovery failed: {message}")
        self.ledger_id = ledger_id


class EntryTooLargeError(LedgerError):
    """The payload does not fit into one frame."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"payload of {size_bytes} bytes; at most {limit_bytes} fit into one entry")
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class DirectoryUnusableError(LedgerError):
    """The directory of a ``file:`` URI cannot be used; the message has the reason and the next step."""


class DirectoryMovedError(DirectoryUnusableError):
    """The directory of a ``file:`` URI was moved, removed or replaced while it was open.

    Nothing was written to what is in its place. Open it again, by the path that it has now.
    """


class DirectoryFullError(DirectoryUnusableError):
    """The disk of a ``file:`` directory is full. Acknowledged entries are kept, and can be read.

    Free some space on the disk, or delete ledgers. The same client continues then. ``__cause__`` is the
    ``OSError``.
    """


def is_directory_full(error: BaseException | None) -> bool:
    """True if an error comes from a directory whose bookie finds no space to be opened."""
    while error is not None and not isinstance(error, DirectoryFullError):
        error = cause_of(error)
    return error is not None


class ReadOnlyError(LedgerError):
    """The client was opened with ``read_only=True``, and the call would change something. Nothing changed."""

    def __init__(self, doing: str) -> None:
        super().__init__(f"{doing}: refused, because the client was opened with read_only=True")


class ClusterNotFoundError(LedgerError):
    """There are no ledgers at the URI: the ledgers root has no LAYOUT node."""


class BackupFileError(LedgerError):
    """A file holds no complete backup of metadata, or a cluster cannot have one. Nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__(f"the backup cannot be used: {message}")


class RestoreRefusedError(LedgerError):
    """The place of a restore is not empty, or holds a restore in another state."""


class ClientClosedError(LedgerError):
    """The client was closed; open another one."""


class MetadataStoreError(LedgerError):
    """The metadata store refused a request or failed. A change may or may not have been made.

    The message and ``__cause__`` have the reason.
    """


class MetadataUnavailableError(MetadataStoreError):
    """The metadata store is out of reach. A change may or may not have been made; try again later."""
