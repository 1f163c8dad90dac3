"""What the exit codes of all commands mean, and which error leads to which.

Not inside: printing (``main``). The same table is in docs/cli.md; a test compares them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from bookie import errors as bookie_errors
from dlog import errors
from ledger import errors as ledger_errors
from namespace import errors as namespace_errors


class ExitCode(enum.IntEnum):
    """The status a command ends with. Signals add 128, as shells have it."""

    OK = 0
    FAILED = 1  # something was found wrong, or went wrong in a way that has no code of its own
    USAGE = 2  # the command line, a URI, a name or a setting cannot be understood; nothing was done
    NOT_FOUND = 3  # no such log, ledger or file; no namespace or ledgers there
    EXISTS = 4  # the log, or the cluster, exists already
    TAKEN = 5  # another writer has the log; the bookie whose directories these are runs
    UNAVAILABLE = 6  # metadata store or bookies out of reach: worth trying again
    DAMAGED = 7  # what is stored contradicts itself; nothing was skipped or changed
    INTERRUPTED = 130  # SIGINT
    BROKEN_PIPE = 141  # the program reading our output left
    TERMINATED = 143  # SIGTERM


# The first class that fits, so that subclasses come before their roots.
_OF_ERROR: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.InvalidUriError, ExitCode.USAGE),
    (errors.InvalidLogNameError, ExitCode.USAGE),
    (errors.ConfigError, ExitCode.USAGE),
    (errors.LogNotFoundError, ExitCode.NOT_FOUND),
    (errors.NamespaceNotBoundError, ExitCode.NOT_FOUND),
    (errors.LogExistsError, ExitCode.EXISTS),
    (errors.LogLockedError, ExitCode.TAKEN),
    (errors.LogFencedError, ExitCode.TAKEN),
    (errors.LogUnavailableError, ExitCode.UNAVAILABLE),
    (errors.LogReaderStalledError, ExitCode.UNAVAILABLE),
    (errors.LogWriteError, ExitCode.UNAVAILABLE),
    (errors.CorruptLogError, ExitCode.DAMAGED),
    (errors.LogMetadataError, ExitCode.DAMAGED),
    (errors.EntryFormatError, ExitCode.DAMAGED),
    # Of commands that work below logs, on ledgers and files.
    (namespace_errors.InvalidUriError, ExitCode.USAGE),
    (namespace_errors.NoBindingError, ExitCode.NOT_FOUND),
    (namespace_errors.FormatError, ExitCode.DAMAGED),
    (namespace_errors.StoreUnreachableError, ExitCode.UNAVAILABLE),
    (namespace_errors.ConnectionLostError, ExitCode.UNAVAILABLE),
    (namespace_errors.SessionExpiredError, ExitCode.UNAVAILABLE),
    (namespace_errors.NodeExistsError, ExitCode.EXISTS),
    (ledger_errors.NoSuchLedgerError, ExitCode.NOT_FOUND),
    (ledger_errors.MetadataFormatError, ExitCode.DAMAGED),
    (ledger_errors.NoSuchEntryError, ExitCode.DAMAGED),
    (ledger_errors.CorruptEntryError, ExitCode.DAMAGED),
    (ledger_errors.LedgerReadError, ExitCode.UNAVAILABLE),
    (ledger_errors.LedgerWriteError, ExitCode.UNAVAILABLE),
    (ledger_errors.LedgerRecoveryError, ExitCode.UNAVAILABLE),
    (ledger_errors.NotEnoughBookiesError, ExitCode.UNAVAILABLE),
    (ledger_errors.BookieError, ExitCode.UNAVAILABLE),
    (bookie_errors.FormatError, ExitCode.DAMAGED),
    (bookie_errors.JournalCorruptError, ExitCode.DAMAGED),
    (bookie_errors.LogDamagedError, ExitCode.DAMAGED),
    (bookie_errors.IndexMissingError, ExitCode.DAMAGED),
    (bookie_errors.IndexFailedError, ExitCode.DAMAGED),
    (bookie_errors.NoLedgerError, ExitCode.NOT_FOUND),
    (bookie_errors.DirectoryInUseError, ExitCode.TAKEN),
    (bookie_errors.ConfigError, ExitCode.USAGE),
    (FileNotFoundError, ExitCode.NOT_FOUND),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that tells a script what to do about this error."""
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), ExitCode.FAILED)


def first_cause(error: BaseException) -> BaseException:
    """The error to tell of, when several tasks failed at once: the first that is no mere consequence."""
    alone = list(_alone(error))
    return next((one for one in alone if exit_code_of(one) is not ExitCode.FAILED), alone[0])


def _alone(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _alone(one)
    else:
        yield error
