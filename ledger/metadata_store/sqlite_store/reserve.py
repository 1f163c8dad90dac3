"""Space kept for a full disk, beside a metadata store: so that it can be opened, and logs can be deleted.

Inside: one file, filled while the disk has plenty. Not inside: when it is needed (``database``).
Always: an error here fails no call; the file is never read.

Source: our own; docs/storage-format.md 10.2.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ledger.runtime.private_files import open_private

RESERVE_BYTES = 1 << 20  # SQLite needs 32 KiB to open, and some 40 KiB for each change until a checkpoint
LOAN_BYTES = 64 << 10  # RocksDB needs some 130 KiB to open
KEPT_BYTES = 128 << 10  # never lent
_PLENTY_BYTES = 16 << 20
_BLOCK_BYTES = 4096


class SpaceReserve:
    """The file ``name`` in a directory. Any process that uses the store may give it, and fill it again."""

    def __init__(self, directory_fd: int, name: str) -> None:
        """``directory_fd``: the caller closes it."""
        self._directory_fd, self._name = directory_fd, name

    def missing_bytes(self) -> int:
        """What a file that was given lacks; 0 if there is none."""
        try:
            with self._opened(create=False) as fd:
                return max(0, RESERVE_BYTES - os.fstat(fd).st_size)
        except OSError:
            return 0

    def is_wanted(self) -> bool:
        """True if less is free than opening the store may take."""
        return self._free_bytes() < RESERVE_BYTES

    def is_scarce(self) -> bool:
        """True if so little is free that no reserve is made. False once the directory is closed."""
        try:
            return self._free_bytes() < _PLENTY_BYTES
        except OSError:
            return False

    def release(self) -> bool:
        """Give the space. True if there was some. An empty file stays, to be filled again."""
        try:
            with self._opened(create=False) as fd:
                had_bytes = os.fstat(fd).st_size
                os.ftruncate(fd, 0)
                return had_bytes > 0
        except OSError:
            return False

    def lend(self) -> bool:
        """Give ``LOAN_BYTES`` to another user of the disk, if enough stays for the store. False if not.

        ``fill`` takes them back.
        """
        try:
            with self._opened(create=False) as fd:
                left_bytes = os.fstat(fd).st_size - LOAN_BYTES
                if left_bytes < KEPT_BYTES:
                    return False
                os.ftruncate(fd, left_bytes)
                return True
        except OSError:
            return False

    def fill(self, *, makes: bool = True) -> None:
        """Fill the file: a new one while the disk has plenty, and with what is free one that was given.

        ``makes``: False: only the latter.
        """
        with contextlib.suppress(OSError):
            try:
                with self._opened(create=False) as fd:
                    self._grow(fd)
            except FileNotFoundError:
                if makes and self._free_bytes() >= _PLENTY_BYTES:
                    with self._opened(create=True) as fd:
                        self._grow(fd)

    def _grow(self, fd: int) -> None:
        held = os.fstat(fd).st_size
        stop = min(RESERVE_BYTES, held + self._free_bytes() // _BLOCK_BYTES * _BLOCK_BYTES)
        if stop > held:
            os.posix_fallocate(fd, held, stop - held)

    def _free_bytes(self) -> int:
        found = os.fstatvfs(self._directory_fd)
        return found.f_bavail * found.f_frsize

    @contextlib.contextmanager
    def _opened(self, *, create: bool) -> Iterator[int]:
        fd = open_private(self._name, create=create, directory_fd=self._directory_fd, takes_links=True)
        try:
            yield fd
        finally:
            os.close(fd)
