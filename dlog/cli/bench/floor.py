"""The floor: a plain loop moves the same bytes in the same groups on the same disk.

write  writes each group to each file in turn and calls fdatasync; there are three files, one per replica
lone   the same with one record at a time
read   reads one file with all the bytes in groups; the page cache holds it, as it holds a fresh log
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

FILES = 3


def write_floor_s(directory: Path, *, records: int, size_bytes: int, group: int, files: int = FILES) -> float:
    """Seconds to write ``records`` of ``size_bytes`` in groups of ``group`` on the disk of ``directory``."""
    content = os.urandom(size_bytes * group)
    with open_floor(directory, files) as append:
        started = time.perf_counter()
        for first in range(0, records, group):
            append(memoryview(content)[: size_bytes * min(group, records - first)])
        return time.perf_counter() - started


@contextlib.contextmanager
def open_floor(directory: Path, files: int) -> Iterator[Callable[[bytes | memoryview], None]]:
    """The call that writes to each file in turn and syncs it; the files are removed at the end."""
    paths = [directory / f"floor-{index}" for index in range(files)]
    descriptors = [os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600) for path in paths]

    def append(data: bytes | memoryview) -> None:
        for descriptor in descriptors:
            _write_all(descriptor, memoryview(data))
            os.fdatasync(descriptor)

    try:
        yield append
    finally:
        for descriptor, path in zip(descriptors, paths, strict=True):
            os.close(descriptor)
            path.unlink()


def read_floor_s(directory: Path, *, records: int, size_bytes: int, group: int) -> float:
    """Seconds to read ``records`` of ``size_bytes`` back in groups of ``group``."""
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
