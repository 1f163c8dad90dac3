"""The exit codes of all commands, and the code of each error.

Not inside: printing (``main``). docs/cli.md has the same table; a test compares the two.
"""

from __future__ import annotations

import enum

from bookie import errors as bookie_errors
from dlog import errors
from dlog.backup import errors as backup_errors
from dlog.blobs import errors as blobs_errors
from dlog.shards import errors as shards_errors
from ledger import errors as ledger_errors
from ledger.causes import cause_of
from ledger.metadata_store import errors as store_errors
from ledger.runtime.tasks.task_errors import errors_in


class ExitCode(enum.IntEnum):
    """The exit status of a command. A signal's code is 128 plus its number, as in shells."""

    OK = 0
    FAILED = 1  # a check failed, or an error has no code of its own
    USAGE = 2  # the command line, a URI, a name or a setting is invalid; nothing was done
    NOT_FOUND = 3  # the log, blob, ledger, file, namespace or ledgers root does not exist
    EXISTS = 4  # the log, the blob or the cluster exists already
    IN_USE = 5  # another writer has the log or replaced the blob, or a running bookie has the directories
    UNAVAILABLE = 6  # the metadata store or the bookies cannot be reached; a later try may succeed
    DAMAGED = 7  # the stored data contradict themselves; nothing was skipped or changed
    DENIED = 8  # the identity of this program lacks the right; nothing was changed
    INTERRUPTED = 130  # SIGINT
    BROKEN_PIPE = 141  # the program that reads our output closed the pipe
    TERMINATED = 143  # SIGTERM


# The first matching class decides, so a subclass must stand before its base class.
_OF_ERROR: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.InvalidUriError, ExitCode.USAGE),
    (errors.InvalidLogNameError, ExitCode.USAGE),
    (errors.InvalidCursorNameError, ExitCode.USAGE),
    (errors.ConfigError, ExitCode.USAGE),
    (errors.LogNotFoundError, ExitCode.NOT_FOUND),
    (errors.NamespaceNotBoundError, ExitCode.NOT_FOUND),
    (errors.LogExistsError, ExitCode.EXISTS),
    (backup_errors.BackupUnreachableError, ExitCode.UNAVAILABLE),
    (backup_errors.BackupDamagedError, ExitCode.DAMAGED),
    (backup_errors.BackupNotFoundError, ExitCode.NOT_FOUND),
    (backup_errors.BackupInUseError, ExitCode.IN_USE),
    (backup_errors.RestoreTargetError, ExitCode.EXISTS),
    (blobs_errors.InvalidBlobNameError, ExitCode.USAGE),
    (blobs_errors.BlobNotFoundError, ExitCode.NOT_FOUND),
    (blobs_errors.BlobExistsError, ExitCode.EXISTS),
    (blobs_errors.BlobConflictError, ExitCode.IN_USE),
    (blobs_errors.BlobGoneError, ExitCode.UNAVAILABLE),
    (blobs_errors.UploadLostError, ExitCode.UNAVAILABLE),
    (blobs_errors.CorruptBlobError, ExitCode.DAMAGED),
    (shards_errors.NotShardedError, ExitCode.NOT_FOUND),
    (shards_errors.ShardCountError, ExitCode.EXISTS),
    (errors.LogLockedError, ExitCode.IN_USE),
    (errors.LogMovingError, ExitCode.IN_USE),
    (errors.LogRenameError, ExitCode.IN_USE),
    (errors.LogFencedError, ExitCode.IN_USE),
    (errors.AccessDeniedError, ExitCode.DENIED),
    (errors.ReadOnlyError, ExitCode.USAGE),
    (errors.LogUnavailableError, ExitCode.UNAVAILABLE),
    (errors.LogReaderStalledError, ExitCode.UNAVAILABLE),
    (errors.LogWriteError, ExitCode.UNAVAILABLE),
    (errors.CorruptLogError, ExitCode.DAMAGED),
    (errors.LogMetadataError, ExitCode.DAMAGED),
    (errors.EntryFormatError, ExitCode.DAMAGED),
    (errors.DecryptionError, ExitCode.DAMAGED),
    (errors.EncryptionKeyError, ExitCode.USAGE),
    # Errors of commands on ledgers and on a bookie's files.
    (store_errors.InvalidStoreAddressError, ExitCode.USAGE),
    (store_errors.AccessDeniedError, ExitCode.DENIED),
    (store_errors.StoreSecurityError, ExitCode.DENIED),
    (store_errors.ReadOnlyStoreError, ExitCode.USAGE),
    (ledger_errors.ReadOnlyError, ExitCode.USAGE),
    (store_errors.StoreFormatError, ExitCode.DAMAGED),
    (store_errors.StoreUnreachableError, ExitCode.UNAVAILABLE),
    (store_errors.ConnectionLostError, ExitCode.UNAVAILABLE),
    (store_errors.SessionExpiredError, ExitCode.UNAVAILABLE),
    (store_errors.NodeExistsError, ExitCode.EXISTS),
    (ledger_errors.SecuritySettingsError, ExitCode.USAGE),
    (ledger_errors.TracingError, ExitCode.USAGE),
    (ledger_errors.NoSuchLedgerError, ExitCode.NOT_FOUND),
    (ledger_errors.MetadataFormatError, ExitCode.DAMAGED),
    (ledger_errors.NoSuchEntryError, ExitCode.DAMAGED),
    (ledger_errors.CorruptEntryError, ExitCode.DAMAGED),
    (ledger_errors.AccessDeniedError, ExitCode.DENIED),
    (ledger_errors.LedgerReadError, ExitCode.UNAVAILABLE),
    (ledger_errors.LedgerWriteError, ExitCode.UNAVAILABLE),
    (ledger_errors.LedgerRecoveryError, ExitCode.UNAVAILABLE),
    (ledger_errors.NotEnoughBookiesError, ExitCode.UNAVAILABLE),
    (ledger_errors.BookieError, ExitCode.UNAVAILABLE),
    (ledger_errors.BookieInUseError, ExitCode.IN_USE),
    (ledger_errors.BackupFileError, ExitCode.DAMAGED),
    (ledger_errors.RestoreRefusedError, ExitCode.EXISTS),
    (ledger_errors.ClusterNotFoundError, ExitCode.NOT_FOUND),
    (ledger_errors.NoAutoRecoveryError, ExitCode.UNAVAILABLE),
    (ledger_errors.BalanceRunningError, ExitCode.IN_USE),
    (ledger_errors.ClusterNotWholeError, ExitCode.UNAVAILABLE),
    (bookie_errors.FormatError, ExitCode.DAMAGED),
    (bookie_errors.JournalCorruptError, ExitCode.DAMAGED),
    (bookie_errors.LogDamagedError, ExitCode.DAMAGED),
    (bookie_errors.IndexMissingError, ExitCode.DAMAGED),
    (bookie_errors.IndexFailedError, ExitCode.DAMAGED),
    (bookie_errors.NoLedgerError, ExitCode.NOT_FOUND),
    (bookie_errors.ClusterInUseError, ExitCode.IN_USE),
    (bookie_errors.DirectoryInUseError, ExitCode.IN_USE),
    (bookie_errors.BookieConfigError, ExitCode.USAGE),
    (FileNotFoundError, ExitCode.NOT_FOUND),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of an error; ``FAILED`` if the error has no code of its own."""
    cause = cause_of(error)
    if isinstance(error, ledger_errors.MetadataStoreError) and cause is not None:
        error = cause
    if isinstance(error, errors.WriteError) and isinstance(cause, errors.AccessDeniedError):
        error = cause  # the writer ended because it lacks a right
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), ExitCode.FAILED)


def first_cause(error: BaseException) -> BaseException:
    """The error to report if several tasks failed at once.

    The first error with an exit code of its own is the cause; errors without one are often consequences.
    """
    errors_found = errors_in(error) or [error]
    return next((one for one in errors_found if exit_code_of(one) is not ExitCode.FAILED), errors_found[0])
