"""What the disk itself could do: the same bytes, in the same groups, by a plain loop and nothing else.

write  each group is written to each file (three: the replicas), one after the other, and each is fdatasynced
read   one file with all the bytes is read in groups (it is in the page cache, as a fresh log is)
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FILES = 3


def write_floor_s(directory: Path, *, records: int, size_bytes: int, group: int, files: int = FILES) -> float:
    """Seconds for ``records`` of ``size_bytes`` in groups of ``group``, on the disk of ``directory``."""
    content = os.urandom(size_bytes * group)
    paths = [directory / f"floor-{index}" for index in range(files)]
    descriptors = [os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600) for path in paths]
    try:
        started = time.perf_counter()
        for first in range(0, records, group):
            part = memoryview(content)[: size_bytes * min(group, records - first)]
            for descriptor in descriptors:
                _write_all(descriptor, part)
                os.fdatasync(descriptor)
        return time.perf_counter() - started
    finally:
        for descriptor, path in zip(descriptors, paths, strict=True):
            os.close(descriptor)
            path.unlink()


def read_floor_s(directory: Path, *, records: int, size_bytes: int, group: int) -> float:
    """Seconds to read as many bytes back in groups."""
    file = directory / "floor"
    content = os.urandom(size_bytes * group)
    with file.open("wb") as output:
        for first in range(0, records, group):
            output.write(content[: size_bytes * min(group, records - first)])
        output.flush()
        os.fdatasync(output.fileno())
    try:
        with file.open("rb", buffering=0) as source:
            started = time.perf_counter()
            while source.read(size_bytes * group):
                pass
            return time.perf_counter() - started
    finally:
        file.unlink()


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
