"""Where backups are kept: named objects in a directory.

Inside: objects of bytes by name, whole or not there at all. Not inside: what they mean (``format``,
``store``).
Always: an object that ``names`` shows is whole, whatever was killed when; ``settle`` returns when all that
was put before survives a power cut. Each call blocks its thread.

Source: our own; rename(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from dlog.backup.errors import BackupDamagedError, BackupError, BackupInUseError, BackupUnreachableError
from ledger.runtime.private_files import (
    DIRECTORY_MODE,
    FILE_MODE,
    describe_holders,
    make_private_directories,
    open_private,
    sync_directory,
)

LOCK = "lock"
_UNFINISHED = ".new-"  # begins the name of a file that is being written
_numbers = count()


class Destination(Protocol):
    """Objects by name. A name has parts: ``ledgers/7/0-9-…``. Each call may raise BackupUnreachableError."""

    where: str  # for messages

    def begin(self, *, create: bool) -> None:
        """Keep other writers away until ``end``; without ``create`` nothing is made.

        Raises:
            BackupInUseError: Another process writes there.
        """

    def end(self) -> None:
        """Let other processes write there."""

    def put(self, name: str, data: bytes) -> None:
        """Write an object; one of this name is replaced."""

    def settle(self) -> None:
        """Make durable what was put."""

    def get(self, name: str) -> bytes:
        """The bytes of an object.

        Raises:
            BackupDamagedError: There is none.
        """

    def names(self, prefix: str) -> list[str]:
        """The names of the objects that begin with a prefix, which ends with a slash; in no order."""

    def delete(self, name: str) -> None:
        """Delete an object; none is no error."""


def open_destination(where: str | os.PathLike[str]) -> Destination:
    """The destination that a text names: the path of a directory, or s3://BUCKET/PREFIX. Nothing is made yet.

    Raises:
        BackupError: It is no destination.
    """
    text = os.fspath(where)
    if text.startswith("s3://"):
        from dlog.backup.s3 import S3Destination

        return S3Destination(text)
    if "://" in text:
        raise BackupError(
            f"destination {text!r}: it is neither the path of a directory nor s3://BUCKET/PREFIX"
        )
    return DirectoryDestination(Path(text).absolute())


class DirectoryDestination:
    """Objects as files below a directory of this user."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._lock: int | None = None
        self._guard = threading.Lock()
        self._unsettled: set[Path] = set()  # directories with new names

    def begin(self, *, create: bool) -> None:
        try:
            if create:
                for made in make_private_directories(self._path):
                    self._note(made.parent)
            self._lock = open_private(self._path / LOCK, create=True)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder, _, files in os.walk(self._path):
                for name in files:
                    if name.startswith(_UNFINISHED):  # of a process that was killed
                        os.unlink(os.path.join(folder, name))
        except BlockingIOError:
            assert self._lock is not None  # flock raised it
            holders = describe_holders(self._lock)
            self.end()
            raise BackupInUseError(
                f"destination {self.where}: {holders} makes or prunes a backup there"
            ) from None
        except OSError as exc:
            self.end()
            raise self._failed(exc) from None

    def end(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def put(self, name: str, data: bytes) -> None:
        path = self._path / name
        new = path.with_name(f"{_UNFINISHED}{os.getpid()}-{next(_numbers)}")
        try:
            self._make_parents(path.parent)
            descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(new, path)
        except OSError as exc:
            with suppress(OSError):
                os.unlink(new)
            raise self._failed(exc) from None
        self._note(path.parent)

    def settle(self) -> None:
        with self._guard:
            unsettled, self._unsettled = self._unsettled, set()
        try:
            for directory in unsettled:
                sync_directory(directory)
        except OSError as exc:
            with self._guard:
                self._unsettled |= unsettled
            raise self._failed(exc) from None

    def get(self, name: str) -> bytes:
        try:
            return (self._path / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise BackupDamagedError(name, f"it is missing in {self.where}") from None
        except OSError as exc:
            raise self._failed(exc) from None

    def names(self, prefix: str) -> list[str]:
        found: list[str] = []
        top = self._path / prefix

        def fail(exc: OSError) -> None:
            if not isinstance(exc, FileNotFoundError):
                raise exc

        try:
            for folder, _, files in os.walk(top, onerror=fail):
                below = os.path.relpath(folder, self._path)
                found += [f"{below}/{name}" for name in files if not name.startswith(_UNFINISHED)]
        except OSError as exc:
            raise self._failed(exc) from None
        return found

    def delete(self, name: str) -> None:
        path = self._path / name
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise self._failed(exc) from None
        with suppress(OSError):
            if path.parent.parent != self._path:
                os.rmdir(path.parent)  # the directory of a ledger without chunks

    def _make_parents(self, directory: Path) -> None:
        """Make what is missing below the destination, and not the destination: it may be unmounted."""
        if directory.is_dir():
            return
        if directory == self._path:
            raise FileNotFoundError(errno.ENOENT, "the destination is gone", self.where)
        self._make_parents(directory.parent)
        with suppress(FileExistsError):
            os.mkdir(directory, DIRECTORY_MODE)
        self._note(directory.parent)

    def _note(self, directory: Path) -> None:
        with self._guard:
            self._unsettled.add(directory)

    def _failed(self, exc: OSError) -> BackupUnreachableError:
        return BackupUnreachableError(f"destination {self.where}: {exc.strerror or exc} ({exc.filename})")
