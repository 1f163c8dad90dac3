"""The disk of a storage benchmark: is there room, and how to make its files cold again.

Always: what a part may write at its greatest is known before it writes anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from dlog.cli.bench.storage.figures import GIB

SPARE_BYTES = 1 * GIB  # left to everybody else on the disk, and to journals and indexes


class NoRoomError(Exception):
    """The disk is too full for what was asked."""


def check_room(directory: Path, wanted_bytes: int) -> None:
    """``NoRoomError`` unless the disk of ``directory`` can take so much."""
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < wanted_bytes + SPARE_BYTES:
        raise NoRoomError(
            f"{directory}: {free_bytes / GIB:.1f} GiB are free, and this needs {wanted_bytes / GIB:.1f} and"
            f" {SPARE_BYTES / GIB:.0f} to spare. Choose another disk by XDG_CACHE_HOME, or less by --mib"
        )


def files_below(directory: Path) -> list[Path]:
    """All files in a directory and the directories in it."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def make_cold(files: Iterable[Path]) -> None:
    """Have the kernel drop these files from its page cache; what is not written yet, it writes first."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
