"""The errors that end a bookie, each with its reason and its exit code.

Every other error ends one connection, one ledger's work or one round
(``ledger.runtime.tasks.failure_domain``).

Inside: the list, the exit code of an error. Not inside: raising the errors, the process (``__main__``).
Always: the table in docs/running.md, "What ends a bookie", has the same rows; a test compares them.

Source: ExitCode.java.
"""

from __future__ import annotations

import enum

import attrs

from bookie.errors import (
    BookieConfigError,
    CookieError,
    DirectoryError,
    LedgerListingError,
    ListenError,
    RegistrationError,
    StartError,
    StorageFailedError,
)
from ledger.errors import MetadataFormatError
from ledger.metadata_store.errors import MetadataError


class BookieExit(enum.IntEnum):
    """How a bookie's process ends."""

    OK = 0
    CONFIG = 1
    SERVER = 2
    METADATA = 3
    REGISTRATION = 4
    DISKS = 5


@attrs.frozen
class Ending:
    """One row: these errors, its subclasses included, end a bookie."""

    error: type[Exception]
    exit_code: BookieExit
    while_serving: bool  # False: only before it serves
    reason: str


ENDINGS = (
    Ending(StorageFailedError, BookieExit.DISKS, True, "a later acknowledgement could be lost"),
    Ending(
        DirectoryError,
        BookieExit.DISKS,
        True,
        "a disk is gone, is read-only or belongs to another process",
    ),
    Ending(RegistrationError, BookieExit.REGISTRATION, True, "no client could find it, or two have one id"),
    Ending(ListenError, BookieExit.SERVER, True, "no client could connect"),
    Ending(CookieError, BookieExit.DISKS, False, "the disks may be another bookie's"),
    Ending(StartError, BookieExit.DISKS, False, "the stored data cannot be served as they are"),
    Ending(LedgerListingError, BookieExit.DISKS, False, "it might deny entries that it has lost"),
    Ending(BookieConfigError, BookieExit.CONFIG, False, "the configuration is invalid"),
    Ending(MetadataError, BookieExit.METADATA, False, "the metadata store cannot be reached or used"),
    Ending(MetadataFormatError, BookieExit.METADATA, False, "the layout of the cluster cannot be read"),
    Ending(OSError, BookieExit.DISKS, False, "a file cannot be read or written"),
)


def ending_of(error: BaseException) -> Ending | None:
    """The row of an error; None if the error is in none: a fault of ours, please report it."""
    return next((one for one in ENDINGS if isinstance(error, one.error)), None)


def exit_code_of(error: BaseException) -> BookieExit:
    """The exit code for an error, by the part of the system that failed."""
    ending = ending_of(error)
    return BookieExit.SERVER if ending is None else ending.exit_code
