"""A file that appears under its name when it is complete.

Always: a file that is under way has another name, and is deleted if it does not come to its end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_file(path: Path, *, replaces: bool) -> Iterator[Path]:
    """Yield another name to write to; at the end of the block the file gets this one.

    Raises:
        FileExistsError: There is a file of this name, unless ``replaces``.
    """
    _check_new(path, replaces)
    under_way = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield under_way
        with under_way.open("rb+") as file:
            os.fsync(file.fileno())
        _check_new(path, replaces)
        os.replace(under_way, path)
    finally:
        under_way.unlink(missing_ok=True)


def _check_new(path: Path, replaces: bool) -> None:
    if path.exists() and not replaces:
        raise FileExistsError(f"{path} exists")
