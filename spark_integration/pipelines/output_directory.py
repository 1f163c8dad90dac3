"""A directory that a pipeline fills with files of Spark: one program at a time, and durable.

Not inside: what is in it, and when it counts as complete.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_integration.errors import PipelineError


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Keep other programs out of a directory until the end of the block, or of this process.

    Raises:
        PipelineError: Another program has it.
    """
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(f"{home}: another program writes its files here") from None
        yield
    finally:
        os.close(descriptor)


def sync_all(rows: Path) -> None:
    """Have all files below a directory on disk: Spark does not sync them."""
    for path in rows.rglob("*"):
        if path.is_file():
            sync(path)
    sync(rows)


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
