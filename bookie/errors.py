"""The errors of a bookie: one class for each way in which a caller or an operator can react.

Not inside: the codes of replies to clients (``ledger.codes``); the service translates.

Source: BookieException.java, ExitCode.java.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from ledger.pickling import PicklableError

# What an operator does about a file that cannot be used at a start; without a row: ``_REMEDY``.
_REMEDY = (
    "Another kind of file may be in its place. Move that away and put the file back from a copy; a file LOCK"
    " may be deleted while no bookie runs. Without a copy, treat its disk as lost"
)
_REMEDIES = {
    errno.ENOSPC: "The disk is full: free space and start again",
    errno.EDQUOT: "The quota is used up: free space and start again",
    errno.EROFS: "The file system is mounted read-only: check the disk, and mount it for writing",
    errno.EACCES: "Give the user of the bookie the right to use it, or start the bookie as its user",
    errno.EPERM: "Give the user of the bookie the right to use it, or start the bookie as its user",
    errno.EIO: "The disk fails: replace it, and start with an empty one in its place",
    errno.EMFILE: "Raise the limit of open files (ulimit -n) and start again",
    errno.ENFILE: "The machine has no file descriptor left: end other programs and start again",
}


class BookieServerError(PicklableError):
    """The base of all errors of this package."""


def raise_error(error: Exception) -> None:
    """Raise the error: what a callback for errors does if its owner sets no other."""
    raise error


# Reading


class NoLedgerError(BookieServerError):
    """This bookie never had the ledger, or has deleted it."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id}: not on this bookie")
        self.ledger_id = ledger_id


class NoEntryError(BookieServerError):
    """This bookie never stored the entry."""

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        super().__init__(f"entry {ledger_id}:{entry_id}: not on this bookie")
        self.ledger_id, self.entry_id = ledger_id, entry_id


class LimboError(BookieServerError):
    """The ledger is in limbo: the entry may have been lost here. Another replica has the reply."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(
            f"ledger {ledger_id} is in limbo: entries may be missing on this bookie, so it cannot deny any"
        )
        self.ledger_id = ledger_id


class EntryUnreadableError(BookieServerError):
    """The entry was stored here and cannot be read. Read another replica, and check this disk.

    ``is_lost``: its bytes are gone, so a copy may take their place. False: a later read may succeed.
    """

    def __init__(self, ledger_id: int, entry_id: int, evidence: str, *, is_lost: bool = False) -> None:
        super().__init__(f"entry {ledger_id}:{entry_id} was stored here but cannot be read: {evidence}")
        self.ledger_id, self.entry_id, self.evidence = ledger_id, entry_id, evidence
        self.is_lost = is_lost


# Storing


class StorageFailedError(BookieServerError):
    """A write or a sync failed. The bookie acknowledges nothing more and must stop."""


class StorageClosedError(StorageFailedError):
    """The storage was closed before this job of one of its threads began; nothing of it was done."""

    def __init__(self, place: object) -> None:
        super().__init__(f"{place}: the storage is closed; nothing was done")
        self.place = str(place)


class SpaceAgainError(BookieServerError):
    """A storage that was opened on a full disk can be opened again, and take adds: there is space."""


class AccountingError(BookieServerError):
    """Counts that all connections share contradict each other: the bookie's own state is wrong."""


class IndexFailedError(BookieServerError, OSError):
    """The database of the index cannot be read or written: the disk fails, or the files are damaged."""


class CompactionError(BookieServerError):
    """A compaction failed. No entry is lost; the next round continues it or starts it again."""


class SourceUnreadableError(CompactionError):
    """A log to be compacted cannot be read to its end. It is kept unchanged."""

    def __init__(self, log_id: int, evidence: str) -> None:
        super().__init__(f"entry log {log_id:x}.log is kept and not compacted: {evidence}")
        self.log_id, self.evidence = log_id, evidence


class IndexUnreadableError(CompactionError):
    """The index cannot be read for these logs. They are kept unchanged; the next round tries again."""

    def __init__(self, log_ids: Iterable[int], evidence: str) -> None:
        self.log_ids = frozenset(log_ids)
        names = ", ".join(f"{log_id:x}.log" for log_id in sorted(self.log_ids))
        super().__init__(f"kept unchanged: {names}, because the index cannot be read: {evidence}")


class FormatError(BookieServerError):
    """Bytes that the format of a file does not allow. The reader of the file adds its name and the place."""


# Starting, and staying up


class StartError(BookieServerError):
    """The bookie cannot start on its stored data. Nothing was changed; the message names the remedy.

    ``evidence`` is the message without the remedy for a bookie of a cluster.
    """

    def __init__(self, evidence: str, remedy: str = "") -> None:
        super().__init__(f"{evidence}. {remedy}" if remedy else evidence)
        self.evidence, self.remedy = evidence, remedy


class StorageFileError(StartError, OSError):
    """A file or directory of the storage cannot be used. The message has its name, reason and remedy."""

    def __init__(self, cause: OSError) -> None:
        reason = cause.strerror or str(cause) or type(cause).__name__
        OSError.__init__(self, cause.errno, reason, cause.filename)
        remedy = _REMEDIES.get(cause.errno or 0, _REMEDY)
        self._text = f"{cause.filename or 'a file of the bookie'} cannot be used: {reason}. {remedy}"
        self.evidence, self.remedy = self._text, ""

    def __str__(self) -> str:
        return self._text


class JournalMissingError(StartError):
    """A journal file that must still be replayed is missing."""


class JournalCorruptError(StartError):
    """A journal file is damaged before its torn tail: acknowledged entries may be affected."""


class IndexMissingError(StartError):
    """Entry logs exist, but the index with the location of each entry does not."""


class IndexKindError(StartError):
    """The index was written by the other implementation, and this one cannot read it."""


class MetadataLostError(StartError):
    """The metadata do not know ledgers that the bookie holds, or were at a later state before."""


class LedgerListingError(BookieServerError):
    """The ledgers that name this bookie could not be listed, and it must not serve without the list."""


class LogDamagedError(StartError):
    """Entry logs from which an index is rebuilt are damaged, so some entries are not found."""

    def __init__(self, directory: Path, damage: Sequence[str]) -> None:
        super().__init__(
            f"{directory}: the index cannot be rebuilt completely, because entry logs are damaged: "
            + "; ".join(damage)
            + ". Restore the logs from a copy, or run `dlog bookie rebuild-index --accept-damage`, which"
            " puts every ledger in limbo: the bookie denies no missing entry until it was copied back"
        )
        self.damage = tuple(damage)


class BookieConfigError(BookieServerError):
    """The configuration file is invalid; the message names the key, the value, the line and a valid value.

    ``key`` is None if the error is not about one key of the file.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class DirectoryError(BookieServerError):
    """A directory cannot be created, written or locked, or has unexpected content."""


class StateError(BookieServerError):
    """The requested change of state is forbidden; the message names the configuration key."""


class DirectoryInUseError(DirectoryError):
    """Another process has this directory open. Nothing was changed."""


class ClusterRestoredError(BookieServerError):
    """The metadata were restored from a backup, so no ledger counts as deleted until an operator says so."""

    def __init__(self, root: str) -> None:
        super().__init__(
            f"the metadata under {root} were restored from a backup and may lack ledgers; no ledger is"
            " deleted before `dlog metadata release`"
        )


class ClusterInUseError(BookieServerError):
    """Bookies are registered, so the metadata of their cluster cannot be erased. Nothing was changed."""

    def __init__(self, root: str, bookies: Collection[str], count: int) -> None:
        more = f" and {count - len(bookies)} more" if count > len(bookies) else ""
        super().__init__(
            f"{root}: {count} bookies are registered: {', '.join(sorted(bookies))}{more}. Stop them first,"
            " and wait until their sessions with the metadata store end"
        )


class CookieError(BookieServerError):
    """The disks, the configuration and the metadata store disagree about which bookie the disks belong to.

    Nothing was changed. The message shows the cookies side by side and names the remedy.
    """


class ListenError(BookieServerError):
    """The listening address is in use, or it is not an address of this machine."""


class RegistrationError(BookieServerError):
    """The bookie could not announce itself in the metadata store, or lost its announcement for good."""
