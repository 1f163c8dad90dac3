"""The file with the second copy of a metadata store, ``metadata.copy`` beside ``metadata.sqlite``.

Each transaction appends its change here, before it commits in the database, under the database's write lock.
The database is synced by each commit and decides; the copy is synced now and then. So after a power cut the
copy may be behind, and is at most one change ahead; a killed process leaves it complete.

Inside: reading, appending, writing it again. Not inside: the format (``copy_format``), the transactions
(``database``).
Always: the file has the old content or the new one when it is written again; an append goes after the last
change of the database; an error here fails no transaction, because a copy that is after is written again.

Source: our own; docs/storage-format.md 7.9.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from ledger.metadata_store.sqlite_store.copy_format import Change, Row, encode_snapshot, read_changes
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.private_files import open_private

_GROWN_BYTES = 1 << 20  # a file that has grown so far, and to this multiple of its snapshot, is written again
_GROWN_FACTOR = 4
LOST = ".lost"  # ends the name of a file that was put aside

log = get_logger(__name__)


def copy_name(database: Path) -> str:
    """The name of the copy of a database: ``metadata.copy`` for ``metadata.sqlite``."""
    return f"{database.stem}.copy"


class SecondCopy:
    """See the module. Used by one thread at a time, and changed under the write lock of the database."""

    def __init__(self, database: Path, directory_fd: int) -> None:
        """``directory_fd``: of the directory of the database; the caller closes it."""
        self.name = copy_name(database)
        self._path = database.with_name(self.name)  # for messages
        self._directory_fd = directory_fd
        self._fd: int | None = None
        self._end = self._snapshot_bytes = 0
        self._at: tuple[int, bytes] | None = None  # number and digest of the change that ends at ``_end``

    def read(self) -> list[Change]:
        """The changes in the file; none if it is missing or its beginning is damaged. ``OSError``"""
        self._close()
        try:
            self._fd = open_private(
                self.name, create=False, directory_fd=self._directory_fd, takes_links=True
            )
        except FileNotFoundError:
            return []
        data, at = bytearray(), 0
        while part := os.pread(self._fd, 1 << 20, at):
            data += part
            at += len(part)
        changes = read_changes(bytes(data))
        self._snapshot_bytes = changes[0].end if changes else 0
        return changes

    def is_at(self, number: int, digest: bytes) -> bool:
        """True if the next ``append`` can go after this change; False: ``write`` the copy again."""
        if self._fd is None or self._at != (number, digest) or not os.fstat(self._fd).st_nlink:
            self._at = None
            for change in self.read():
                if (change.number, change.digest) == (number, digest):
                    self._end, self._at = change.end, (number, digest)
        return self._at is not None and self._end < max(_GROWN_BYTES, _GROWN_FACTOR * self._snapshot_bytes)

    def append(self, record: bytes, number: int, digest: bytes) -> None:
        """Append a change after the one of ``is_at``. ``OSError``: the copy is behind from now on."""
        if self._fd is None or self._at is None:
            return
        self._at = None
        if os.pwrite(self._fd, record, self._end) == len(record):
            self._end += len(record)
            self._at = number, digest

    def write(self, number: int, digest: bytes, rows: Mapping[str, Row]) -> None:
        """Replace the file by a snapshot. Durable on return. ``OSError``"""
        self._close()
        data, new = encode_snapshot(number, digest, rows), f"{self.name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self._directory_fd)
        fd = open_private(new, create=True, directory_fd=self._directory_fd, takes_links=True)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            os.fdatasync(fd)
            os.rename(new, self.name, src_dir_fd=self._directory_fd, dst_dir_fd=self._directory_fd)
            os.fsync(self._directory_fd)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):  # on a full disk it would keep the space
                os.unlink(new, dir_fd=self._directory_fd)
            raise
        self._fd, self._end, self._snapshot_bytes, self._at = fd, len(data), len(data), (number, digest)

    def warn(self, error: OSError) -> None:
        """Log that the copy is behind."""
        log.warning(
            "%s cannot be written, so the metadata has no second copy now: %s",
            self._path,
            error,
            extra=event("metadata.copy_failed", copy=str(self._path), error=error),
        )

    def put_aside(self) -> None:
        """Rename the file, if there is one: its store was given up. ``OSError``"""
        with contextlib.suppress(FileNotFoundError):
            aside = f"{self.name}{LOST}"
            os.rename(self.name, aside, src_dir_fd=self._directory_fd, dst_dir_fd=self._directory_fd)

    def sync(self) -> None:
        """Make what was appended durable, as far as that is possible now."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)

    def close(self) -> None:
        """Sync and close the file."""
        self.sync()
        self._close()

    def _close(self) -> None:
        fd, self._fd, self._at = self._fd, None, None
        if fd is not None:
            os.close(fd)
