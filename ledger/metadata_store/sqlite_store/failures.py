"""The meaning of a failure of SQLite or of the file system for a call.

Inside: the failures, the store's error for each, which of them refuse every write, and which end by
themselves. Not inside: the calls (``tree``).
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from ledger.causes import cause_of
from ledger.metadata_store.errors import ConnectionLostError, StoreDiskError, StoreError, StoreFullError

FAILURES = (sqlite3.Error, OSError)  # a call may raise these besides this package's errors


def translated(database: Path, path: str, failure: Exception) -> StoreError:
    """The store's error for one of ``FAILURES`` of a call about a node."""
    if is_full(failure, database):
        if failure.__cause__ is None and not isinstance(failure, OSError):
            failure.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(database))
        return StoreFullError(
            path,
            f"{database}: its disk is full. What was written before is kept. Free some space",
        )
    if isinstance(failure, sqlite3.OperationalError):  # locked too long, disk full, input or output failed
        kind = StoreDiskError if is_refused_write(failure) else ConnectionLostError
        return kind(path, f"{database}: {failure}; a write may be applied")
    return StoreError(path, f"{database}: {failure}")


def is_busy(failure: Exception) -> bool:
    """True if another connection locks the database. The transaction did nothing, or is rolled back."""
    return getattr(failure, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_full(failure: BaseException, database: Path) -> bool:
    """True if the disk has no space. The transaction did nothing, or is rolled back."""
    if isinstance(failure, OSError):
        return failure.errno in (errno.ENOSPC, errno.EDQUOT)
    kind = getattr(failure, "sqlite_errorcode", 0) & 0xFF
    if kind != sqlite3.SQLITE_IOERR:
        return kind == sqlite3.SQLITE_FULL
    try:  # SQLite does not say why it could not make its index of the WAL
        found = os.statvfs(database.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _FULL_BYTES


_FULL_BYTES = 128 << 10
_REFUSED_WRITES = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES)
_REFUSED_BY_SQLITE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
)


def is_refused_write(error: BaseException) -> bool:
    """True if an error or its cause is a full disk, a read-only one, or a missing right."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _REFUSED_WRITES:
            return True
        if isinstance(cause, sqlite3.Error):  # the low byte is the kind; the others say more
            return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _REFUSED_BY_SQLITE
        cause = cause_of(cause)
    return False
