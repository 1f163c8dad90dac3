"""What can go wrong in a bookie, one class for each thing its caller or its operator could do about it.

Not inside: what a bookie answers to clients (``ledger.wire.codes``); the service translates.

Source: BookieException.java, ExitCode.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


class BookieServerError(Exception):
    """Root of everything this package raises."""


# Reading


class NoLedgerError(BookieServerError):
    """This bookie has never heard of the ledger, or has deleted it."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: not on this bookie")
        self.ledger_id = ledger_id


class NoEntryError(BookieServerError):
    """The entry was never stored here."""

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"entry {ledger_id}:{entry_id}: not on this bookie")
        self.ledger_id, self.entry_id = ledger_id, entry_id


class LimboError(BookieServerError):
    """This bookie may have lost entries of the ledger, so it cannot tell. Another replica can."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: entries may be missing on this bookie; nothing is denied")
        self.ledger_id = ledger_id


class EntryUnreadableError(BookieServerError):
    """The entry was stored here and cannot be read. Another replica has it; this disk needs a look."""

    def __init__(self, ledger_id: int, entry_id: int, evidence: str) -> None:
        super().__init__(f"entry {ledger_id}:{entry_id} was stored here but cannot be read: {evidence}")
        self.ledger_id, self.entry_id, self.evidence = ledger_id, entry_id, evidence


# Storing


class StorageFailedError(BookieServerError):
    """A write or a sync failed: nothing more may be acknowledged, and the bookie must stop."""


class IndexFailedError(BookieServerError, OSError):
    """The index's database cannot be read or written: its disk fails, or its files are damaged."""


class CompactionError(BookieServerError):
    """A compaction could not go on. Nothing is lost; the next round begins it again, or goes on with it."""


class SourceUnreadableError(CompactionError):
    """A log to be compacted cannot be followed to its end, or not be read. It is kept as it is."""

    def __init__(self, log_id: int, evidence: str) -> None:
        super().__init__(f"entry log {log_id:x}.log is kept and not compacted: {evidence}")
        self.log_id, self.evidence = log_id, evidence


class IndexUnreadableError(CompactionError):
    """The index cannot be asked about these logs. They are kept as they are; the next round asks again."""

    def __init__(self, log_ids: Iterable[int], evidence: str) -> None:
        self.log_ids = frozenset(log_ids)
        names = ", ".join(f"{log_id:x}.log" for log_id in sorted(self.log_ids))
        super().__init__(f"kept as it is: {names}, since the index cannot be read: {evidence}")


class FormatError(BookieServerError):
    """Bytes of a file that are not what the format allows. Whoever reads the file says which and where."""


# Starting, and staying up


class StartError(BookieServerError):
    """The stored data cannot be served as they are. Nothing was changed; the message says what to do."""


class JournalMissingError(StartError):
    """A journal file that must still be replayed is not there."""


class JournalCorruptError(StartError):
    """A journal file is damaged before its torn tail: acknowledged entries may be affected."""


class IndexMissingError(StartError):
    """Entry logs exist, but the index that tells where each entry lies does not."""


class IndexKindError(StartError):
    """The index was made by the other implementation; it holds nothing for this one."""


class LedgerListingError(BookieServerError):
    """Which ledgers name this bookie could not be found out; it must not serve without. Try again."""


class LogDamagedError(StartError):
    """Entry logs from which an index should be derived are damaged: not all entries are found."""

    def __init__(self, directory: Path, damage: Sequence[str]) -> None:
        super().__init__(
            f"{directory}: the index cannot be derived in full, since entry logs are damaged: "
            + "; ".join(damage)
            + ". Bring the logs back from a copy, or run `dlog bookie rebuild-index --accept-damage`, which"
            " puts every ledger in limbo: what is not found is not denied until other replicas have given it"
        )
        self.damage = tuple(damage)


class ConfigError(BookieServerError):
    """The configuration file cannot be obeyed; the message names key, value, line and expectation."""


class DirectoryError(BookieServerError):
    """A directory cannot be made, written or locked, or holds what it should not."""


class StateError(BookieServerError):
    """The bookie may not be made what was asked for; the message names the configuration that forbids it."""


class DirectoryInUseError(DirectoryError):
    """Another process has this directory open. Nothing was touched."""


class CookieError(BookieServerError):
    """The disks, the configuration and the metadata store do not agree on whose disks these are.

    Nothing was changed. The message shows the cookies side by side and names the remedy.
    """


class ListenError(BookieServerError):
    """The address to listen at is taken or is not an address of this machine."""


class RegistrationError(BookieServerError):
    """The bookie could not announce itself in the metadata store, or lost its announcement for good."""
