"""Files in which one run of a bookie reports a possible loss to the next run.

``DIRTY`` is in each ledger directory while a bookie serves; a clean stop removes it. Apache's name and life.
It is empty if every acknowledgement waited for a sync. Otherwise it says that a power failure loses
acknowledged entries.

``DOUBT``, the loss mark, is in every directory, with a reason in words: entries or fences that this bookie
acknowledged may be missing from its disks, and the ledgers that name the bookie are not in limbo yet. The
bookie writes it before it may remove the evidence, and removes it when the ledgers are in limbo.

Inside: reading, writing and removing these files. Not inside: the conclusion from them (``startup_check``).
Always: a change is durable when a call returns; a crash leaves the file in some directories, and one is
enough.

Source: UncleanShutdownDetectionImpl.java; docs/storage-format.md 7.5 and 11.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.disk.disk import Disk

DIRTY = "DIRTY"
DOUBT = "DOUBT"
_UNSYNCED = b"adds are acknowledged before they are synced\n"


def read_loss_mark(disk: Disk, directories: Iterable[Path]) -> str | None:
    """The reason in the loss mark of an earlier start; None if there is no mark."""
    for directory in directories:
        text = _read(disk, directory / DOUBT)
        if text is not None:
            return text.decode("utf-8", "replace").strip() or "an earlier start noted no reason"
    return None


def write_loss_mark(disk: Disk, directories: Iterable[Path], reason: str) -> None:
    """Note that acknowledged entries or fences may be missing."""
    for directory in directories:
        disk.replace_file(directory / DOUBT, f"{reason}\n".encode())


def remove_loss_mark(disk: Disk, directories: Iterable[Path]) -> None:
    """Remove the mark. The caller has put all affected ledgers in limbo, durably."""
    for directory in directories:
        _remove(disk, directory / DOUBT)


def has_lost_unsynced(disk: Disk, ledger_directories: Iterable[Path]) -> bool:
    """True if the last run acknowledged adds before syncing them and ended without a clean stop."""
    return any(_read(disk, directory / DIRTY) for directory in ledger_directories)


def mark_running(disk: Disk, ledger_directories: Iterable[Path], *, sync_adds: bool) -> None:
    """Write ``DIRTY``: the bookie begins to serve."""
    wanted = b"" if sync_adds else _UNSYNCED
    for directory in ledger_directories:
        if _read(disk, directory / DIRTY) != wanted:
            disk.replace_file(directory / DIRTY, wanted)


def mark_stopped(disk: Disk, ledger_directories: Iterable[Path]) -> None:
    """Remove ``DIRTY``: the bookie has stopped with everything on disk."""
    for directory in ledger_directories:
        _remove(disk, directory / DIRTY)


def _read(disk: Disk, path: Path) -> bytes | None:
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return None


def _remove(disk: Disk, path: Path) -> None:
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return
    disk.sync_directory(path.parent)
