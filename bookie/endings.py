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
from ledger.metadata_store.errors import NamespaceError


class ExitCode(enum.IntEnum):
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
    exit_code: ExitCode
    while_serving: bool  # False: only before it serves
    reason: str


ENDINGS = (
    Ending(StorageFailedError, ExitCode.DISKS, True, "a later acknowledgement could be lost"),
    Ending(
        DirectoryError, ExitCode.DISKS, True, "a disk is gone, is read-only or belongs to another process"
    ),
    Ending(RegistrationError, ExitCode.REGISTRATION, True, "no client could find it, or two have one id"),
    Ending(ListenError, ExitCode.SERVER, True, "no client could connect"),
    Ending(CookieError, ExitCode.DISKS, False, "the disks may be another bookie's"),
    Ending(StartError, ExitCode.DISKS, False, "the stored data cannot be served as they are"),
    Ending(LedgerListingError, ExitCode.DISKS, False, "it might deny entries that it has lost"),
    Ending(BookieConfigError, ExitCode.CONFIG, False, "the configuration is invalid"),
    Ending(NamespaceError, ExitCode.METADATA, False, "the metadata store cannot be reached or used"),
    Ending(MetadataFormatError, ExitCode.METADATA, False, "the layout of the cluster cannot be read"),
    Ending(OSError, ExitCode.DISKS, False, "a file cannot be read or written"),
)


def ending_of(error: BaseException) -> Ending | None:
    """The row of an error; None if the error is in none: a fault of ours, please report it."""
    return next((one for one in ENDINGS if isinstance(error, one.error)), None)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for an error, by the part of the system that failed."""
    ending = ending_of(error)
    return ExitCode.SERVER if ending is None else ending.exit_code
