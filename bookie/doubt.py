"""Files by which one life of a bookie tells the next what it left open.

``DIRTY``, in each ledger directory while a bookie serves; a clean stop removes it. Apache's name and life. It
is empty if every acknowledgement waited for a sync; else it says that a power failure loses acknowledged
entries.

``DOUBT``, in every directory, with a reason in words: entries or fences that this bookie acknowledged may be
missing from its disks, and the ledgers that name it are not in limbo yet. Written before the evidence may
vanish, removed when they are.

Inside: reading, writing and removing them. Not inside: what follows from them (``admission``).
Always: they are durable when a call returns; a crash leaves them in some directories, and one is enough.

Source: UncleanShutdownDetectionImpl.java; reference on bookie storage 1.8 and 6.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.disk import Disk

DIRTY = "DIRTY"
DOUBT = "DOUBT"
_UNSYNCED = b"adds are acknowledged before they are synced\n"


def read_doubt(disk: Disk, directories: Iterable[Path]) -> str | None:
    """Why entries may be missing, as an earlier start has noted; None if none has."""
    for directory in directories:
        text = _read(disk, directory / DOUBT)
        if text is not None:
            return text.decode("utf-8", "replace").strip() or "an earlier start noted no reason"
    return None


def raise_doubt(disk: Disk, directories: Iterable[Path], reason: str) -> None:
    """Note that entries may be missing."""
    for directory in directories:
        disk.replace_file(directory / DOUBT, f"{reason}\n".encode())


def clear_doubt(disk: Disk, directories: Iterable[Path]) -> None:
    """All ledgers concerned are in limbo, durably."""
    for directory in directories:
        _remove(disk, directory / DOUBT)


def has_lost_unsynced(disk: Disk, ledger_directories: Iterable[Path]) -> bool:
    """Whether the last life acknowledged what it had not synced, and ended without a clean stop."""
    return any(_read(disk, directory / DIRTY) for directory in ledger_directories)


def mark_running(disk: Disk, ledger_directories: Iterable[Path], *, sync_adds: bool) -> None:
    """A life begins."""
    for directory in ledger_directories:
        wanted = b"" if sync_adds else _UNSYNCED
        if _read(disk, directory / DIRTY) != wanted:
            disk.replace_file(directory / DIRTY, wanted)


def mark_stopped(disk: Disk, ledger_directories: Iterable[Path]) -> None:
    """A life has ended with everything on disk."""
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
