"""Emptying the directories of a stopped bookie, for a new beginning.

Inside: what is deleted, in which order. Not inside: the cookie in the metadata store, the question to the
operator (``dlog bookie format``).
Always: nothing is deleted while another process has the directories; the cookie in the metadata store stays,
so the bookie does not start on the empty directories until an operator has removed it from the cluster.

Source: BookieImpl.java (format); docs/metadata.md 6.4.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bookie.offline.index_rebuild import locked
from bookie.storage.config import CURRENT, LOCK, StorageConfig

if TYPE_CHECKING:
    from bookie.disk.disk import Disk


def format_directories(disk: Disk, config: StorageConfig) -> list[Path]:
    """Delete everything in the journal, ledger and index directories; return the directories.

    If it is interrupted, a part is deleted; call it again.

    Raises:
        DirectoryInUseError: The bookie, or another process, has a directory. Nothing was deleted.
        FileNotFoundError: A directory is missing. Nothing was deleted.
        OSError: A file cannot be deleted.
    """
    directories = list(
        dict.fromkeys((*config.journal_directories, *config.ledger_directories, *config.index_directories))
    )
    with locked(disk, config):
        for directory in directories:
            current = directory / CURRENT
            for name in sorted(disk.list_directory(current)):
                path = current / name
                if name == LOCK:
                    continue
                if path.is_dir():
                    disk.remove_tree(path)
                else:
                    disk.unlink(path)
            disk.sync_directory(current)
    return directories
