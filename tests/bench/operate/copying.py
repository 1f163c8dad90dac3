"""The floor of a repair: one copy of the same bytes on the same disk, synced."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

CHUNK_BYTES = 1 << 20


def copy_floor_s(directory: Path, size_bytes: int) -> float:
    """Seconds to copy a file of this many bytes and to sync the copy. The page cache holds the source.

    Raises:
        OSError: The disk is full.
    """
    source, target = directory / "floor-source", directory / "floor-copy"
    try:
        with source.open("wb") as output:
            for first in range(0, size_bytes, CHUNK_BYTES):
                output.write(os.urandom(min(CHUNK_BYTES, size_bytes - first)))
            output.flush()
            os.fsync(output.fileno())
        started = time.perf_counter()
        shutil.copyfile(source, target)
        with target.open("rb") as copied:
            os.fsync(copied.fileno())
        return time.perf_counter() - started
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
