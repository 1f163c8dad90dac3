"""Making the metadata of a directory again from their second copy.

Inside: the lock that keeps other processes away. Not inside: the work
(``ledger.metadata_store.sqlite_store.repair``).

Source: our own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ledger.deploy.directory import BOOKIE, METADATA, Directory
from ledger.errors import DirectoryUnusableError
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.sqlite_store.failures import FAILURES
from ledger.metadata_store.sqlite_store.repair import find_loss, repair_store


def repair_directory(path: Path, confirm: Callable[[str], None]) -> int | None:
    """Make lost metadata again; the number of their last change, or None if they are sound.

    Args:
        confirm: Called with what is wrong before anything is changed; raises to stop.

    Raises:
        DirectoryUnusableError: It is no directory of a namespace, is in use, or cannot be repaired.
    """
    if not (path / BOOKIE).is_dir():
        raise DirectoryUnusableError(f"directory {path}: no namespace is there ({BOOKIE} is missing)")
    directory = Directory(path)
    try:
        lock = directory.try_lock()
        if lock is None:
            raise DirectoryUnusableError(f"directory {path}: {directory.holder()} has it open; end it first")
        try:
            lost = find_loss(path / METADATA)
            if lost is None:
                return None
            confirm(lost)
            return repair_store(path / METADATA)
        except (MetadataError, *FAILURES) as exc:
            raise DirectoryUnusableError(f"directory {path}: it cannot be repaired: {exc}") from None
        finally:
            directory.unlock(lock)
    finally:
        directory.close()
