"""What can go wrong with a ledger, one class for each thing a caller could do about it.

Codes of bookies become classes here (``BookieRefusal``); numbers stay in ``ledger.wire.codes``.

Source: BKException.java (client codes), reference section 8.
"""

from __future__ import annotations

from typing import ClassVar

from ledger.wire.codes import Code


class LedgerError(Exception):
    """Root of everything this package raises."""


class WireError(LedgerError):
    """Bytes from a peer that are no message of the protocol. The connection is of no more use."""


class UnsupportedInVersionError(LedgerError):
    """A protocol version has no way to say this. Ask over a connection of version 3."""

    def __init__(self, version: int, what: str) -> None:
        super().__init__(f"version {version} of the bookie protocol cannot say: {what}")
        self.version, self.what = version, what


class CorruptEntryError(LedgerError):
    """An entry whose digest or ids do not match what was asked for. Try another replica."""

    def __init__(self, ledger_id: int, entry_id: int | None, evidence: str) -> None:
        which = "last entry" if entry_id is None else f"entry {entry_id}"
        super().__init__(f"ledger {ledger_id}, {which}: {evidence}")
        self.ledger_id, self.entry_id, self.evidence = ledger_id, entry_id, evidence


class MetadataFormatError(LedgerError):
    """Stored ledger metadata, layout or cookie that does not parse. Nothing is written over it."""


class LedgerMetadataError(LedgerError):
    """Metadata that no ledger may have, or a change that its state forbids. Nothing was stored."""


class BookieError(LedgerError):
    """A request to one bookie that brought no usable answer."""

    def __init__(self, bookie: str, message: str) -> None:
        super().__init__(f"bookie {bookie}: {message}")
        self.bookie, self.reason = bookie, message


class BookieUnavailableError(BookieError):
    """The bookie cannot be reached, or the connection broke. A write may or may not be stored."""


class BookieSecurityError(BookieUnavailableError):
    """TLS or authentication with the bookie failed. Asking again will not help: look at keys and settings."""


class BookieTimeoutError(BookieError):
    """No answer in time. A write may or may not be stored."""


class BookieRefusal(BookieError):  # noqa: N818 - it is an answer, not a failure of asking
    """A bookie said no. One subclass for each answer a caller can act on."""

    code: ClassVar[Code]
    by_code: ClassVar[dict[Code, type[BookieRefusal]]] = {}

    def __init_subclass__(cls, *, code: Code) -> None:
        assert code not in cls.by_code, f"two exceptions for {code!r}"
        cls.code = code
        cls.by_code[code] = cls

    def __init__(self, bookie: str, ledger_id: int, entry_id: int | None = None) -> None:
        what = f"ledger {ledger_id}" if entry_id is None else f"entry {ledger_id}:{entry_id}"
        super().__init__(bookie, f"{self.code.name} for {what}")
        self.ledger_id, self.entry_id = ledger_id, entry_id


class NoLedgerRefusal(BookieRefusal, code=Code.NO_LEDGER):
    """The bookie has never heard of the ledger."""


class NoEntryRefusal(BookieRefusal, code=Code.NO_ENTRY):
    """The bookie never stored this entry."""


class BadRequestRefusal(BookieRefusal, code=Code.BAD_REQUEST):
    """The bookie could make no sense of the request."""


class IoErrorRefusal(BookieRefusal, code=Code.IO_ERROR):
    """The bookie's disk failed it; the entry may exist all the same."""


class UnauthorizedRefusal(BookieRefusal, code=Code.UNAUTHORIZED):
    """Wrong password for the ledger, or the connection is not authenticated."""


class BadVersionRefusal(BookieRefusal, code=Code.BAD_VERSION):
    """The bookie does not speak this protocol version."""


class FencedRefusal(BookieRefusal, code=Code.FENCED):
    """Somebody is recovering the ledger; the writer must stop for good."""


class ReadOnlyRefusal(BookieRefusal, code=Code.READ_ONLY):
    """The bookie takes no writes now."""


class TooManyRequestsRefusal(BookieRefusal, code=Code.TOO_MANY_REQUESTS):
    """The bookie is over capacity; ask again later or elsewhere."""


class UnknownLedgerStateRefusal(BookieRefusal, code=Code.UNKNOWN_LEDGER_STATE):
    """The bookie may have lost data of this ledger, so its "no" would mean nothing."""


class NoSuchLedgerError(LedgerError):
    """The metadata store knows no such ledger: it was never created, or was deleted."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: not in the metadata store")
        self.ledger_id = ledger_id


class LedgerExistsError(LedgerError):
    """A ledger with the id that was asked for exists already."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} exists already")
        self.ledger_id = ledger_id


class LedgerIdOverflowError(LedgerError):
    """The layout of the ledgers root has no ids left. Give an id, or use a layout with long ids."""

    def __init__(self, root: str) -> None:
        super().__init__(f"{root}: its layout holds ledger ids below 2147483647 only, and all were given out")
        self.root = root


class LedgerFencedError(LedgerError):
    """Somebody else recovered, or is recovering, this ledger. This writer is finished for good."""

    def __init__(self, ledger_id: int, evidence: str) -> None:
        super().__init__(f"ledger {ledger_id} was taken over from this writer: {evidence}")
        self.ledger_id = ledger_id


class LedgerClosedError(LedgerError):
    """The handle or the ledger is closed; nothing can be added."""

    def __init__(self, ledger_id: int, message: str = "closed") -> None:
        super().__init__(f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class LedgerWriteError(LedgerError):
    """Adding entries failed; those not confirmed may or may not be found by a later recovery."""

    def __init__(self, ledger_id: int, message: str) -> None:
        super().__init__(f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class NotEnoughBookiesError(LedgerError):
    """Fewer usable bookies than the ensemble needs. Start more, or ask for a smaller ensemble."""

    def __init__(self, wanted: int, available: int, excluded: int = 0) -> None:
        super().__init__(
            f"{wanted} bookies wanted, {available} writable"
            + (f", of which {excluded} are excluded" if excluded else "")
            + "; start more bookies or ask for a smaller ensemble"
        )
        self.wanted, self.available = wanted, available


class PlacementError(NotEnoughBookiesError):
    """The writable bookies allow no ensemble with the fault domains that are enforced. Nothing was done.

    Start bookies where they are missing, check their locations, or enforce less.
    """

    def __init__(self, wanted: int, available: int, evidence: str) -> None:
        LedgerError.__init__(self, f"{wanted} bookies wanted, {available} writable: {evidence}")
        self.wanted, self.available = wanted, available


class LocationError(LedgerError):
    """A network location, or a source of them, that cannot be used; the message names it."""


class DuplicateEntryIdError(LedgerError):
    """The ledger has an entry with this id already, or one is being written. The entry was not taken."""

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: entry {entry_id} was given before")
        self.ledger_id, self.entry_id = ledger_id, entry_id


class LedgerReadError(LedgerError):
    """No replica gave the entry; the reasons of each are in the message."""

    def __init__(self, ledger_id: int, entry_id: int, reasons: dict[str, Exception]) -> None:
        told = "; ".join(str(reason) for reason in reasons.values()) or "no bookie was asked"
        super().__init__(f"ledger {ledger_id}, entry {entry_id}: no replica answered well: {told}")
        self.ledger_id, self.entry_id, self.reasons = ledger_id, entry_id, reasons


class NoSuchEntryError(LedgerReadError):
    """Every replica says that the entry was never stored."""


class EntryBeyondLacError(LedgerError):
    """The entry is past the last one known to be confirmed; refresh the LAC or wait for it."""

    def __init__(self, ledger_id: int, entry_id: int, lac: int) -> None:
        super().__init__(f"ledger {ledger_id}: entry {entry_id} is beyond the LAC {lac}")
        self.ledger_id, self.entry_id, self.lac = ledger_id, entry_id, lac


class WrongPasswordError(LedgerError):
    """The ledger was created with another password."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: the password is not the one it was created with")
        self.ledger_id = ledger_id


class LedgerRecoveryError(LedgerError):
    """The end of the ledger could not be decided now. Nothing was decided; try again later."""

    def __init__(self, ledger_id: int, message: str) -> None:
        super().__init__(f"ledger {ledger_id}: recovery failed: {message}")
        self.ledger_id = ledger_id


class EntryTooLargeError(LedgerError):
    """The payload does not fit into one frame."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"payload of {size_bytes} bytes; at most {limit_bytes} fit into one entry")
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes
