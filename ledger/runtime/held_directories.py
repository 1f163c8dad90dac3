"""A directory held open: what is written goes to this directory, wherever its path leads by now.

Inside: the descriptor, and the check that the path still leads to it. Not inside: the files (``bookie.disk``,
``sqlite_store``, ``ledger.deploy``).
Always: once the path was seen to lead elsewhere, every later check fails, also if the directory comes back;
the descriptor keeps the inode, so no other directory can get its number meanwhile.

Source: open(2) and openat(2); docs/guide.md, the session of a directory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

CHECK_S = 0.05  # a look at the path is not repeated within this time
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class DirectoryLostError(OSError):
    """The directory was moved, removed or replaced while it was open. Nothing is written or promised after.

    ``strerror`` says what is there now, and what to do.
    """


class HeldDirectory:
    """See the module. Any thread may check."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor``: of the directory at ``path``; ``close`` closes it."""
        self.path, self.fd = path, descriptor
        found = os.fstat(descriptor)
        self._identity = (found.st_dev, found.st_ino)
        self._lost: str | None = None

    def __repr__(self) -> str:
        return f"<HeldDirectory {self.path}{'' if self._lost is None else ', lost'}>"

    @property
    def is_lost(self) -> bool:
        """True if a check has failed."""
        return self._lost is not None

    def library_path(self, name: str) -> str:
        """A path of a file in the directory, for a library that takes no descriptor."""
        return f"/proc/self/fd/{self.fd}/{name}"

    def check(self) -> None:
        """Look at the path now.

        Raises:
            DirectoryLostError: It does not lead to this directory any more.
            OSError: It cannot be followed, so that it is not known.
        """
        if self._lost is None:
            self._lost = self._look()
        if self._lost is not None:
            raise DirectoryLostError(errno.ESTALE, self._lost, str(self.path))

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def _look(self) -> str | None:
        try:
            found = os.stat(self.path)
        except OSError as exc:
            if exc.errno not in _GONE:
                raise
            now = "nothing is there now"
        else:
            if (found.st_dev, found.st_ino) == self._identity:
                return None
            kind = "another directory" if stat.S_ISDIR(found.st_mode) else "a file"
            now = f"{kind} is there now (inode {found.st_ino}, not {self._identity[1]})"
        return (
            f"the directory was moved, removed or replaced while this process had it open: {now}. Nothing was"
            " written to what is there now, and what was acknowledged is in the directory that was open. Open"
            " that one at its present path, or move it back"
        )


def open_directory(path: str | Path, *, directory_fd: int | None = None) -> int:
    """Open a directory; ``path`` may be relative to another one. The descriptor is closed by ``exec``."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
