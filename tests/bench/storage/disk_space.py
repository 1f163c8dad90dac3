"""The disk of a storage benchmark: check its free space, drop its files from the page cache.

Always: a part's peak of disk use is checked before the part writes anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.bench.storage.measurement import GIB

SPARE_BYTES = 1 * GIB  # for other programs on the disk, and for journals and indexes


class NoSpaceError(Exception):
    """The disk has too little free space for the benchmark."""


def check_space(directory: Path, needed_bytes: int) -> None:
    """Check the free space of the disk that holds ``directory``.

    Raises:
        NoSpaceError: Less than ``needed_bytes`` and ``SPARE_BYTES`` are free.
    """
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes + SPARE_BYTES:
        raise NoSpaceError(
            f"{directory}: {free_bytes / GIB:.1f} GiB are free, but the benchmark needs"
            f" {needed_bytes / GIB:.1f} GiB and {SPARE_BYTES / GIB:.0f} GiB to spare. Set XDG_CACHE_HOME to a"
            " directory on another disk, or give a smaller --mib"
        )


def files_below(directory: Path) -> list[Path]:
    """All files in a directory and in its subdirectories."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def make_cold(files: Iterable[Path]) -> None:
    """Sync these files, then have the kernel drop them from its page cache."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
