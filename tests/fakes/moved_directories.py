"""What happens to a directory that a process has open, and what is at its path afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mounts import mount_directory


def keep_copy(directory: Path) -> None:
    """Make the copy for ``replace_by_old_copy``."""
    shutil.copytree(
        directory, directory.with_name("copy"), ignore=shutil.ignore_patterns("*.sock", "*-sessions")
    )


# Each returns the present path of what was the directory.


def move(directory: Path) -> Path:
    """Nothing is at the path."""
    return directory.rename(directory.with_name("moved"))


def replace_by_empty(directory: Path) -> Path:
    """An empty directory is at the path."""
    moved = move(directory)
    directory.mkdir(0o700)
    return moved


def replace_by_old_copy(directory: Path) -> Path:
    """What ``keep_copy`` copied is at the path."""
    moved = move(directory)
    shutil.copytree(directory.with_name("copy"), directory)
    return moved


def replace_by_new_namespace(directory: Path) -> Path:
    """Another process has made a namespace there, with a log."""
    moved = move(directory)
    program = (
        "import sys, dlog.blocking\n"
        "with dlog.blocking.open_namespace(sys.argv[1]) as namespace:\n"
        "    with namespace.open_writer('new', create=True) as writer:\n"
        "        writer.append(b'new')\n"
    )
    subprocess.run([sys.executable, "-c", program, directory.as_uri()], check=True)
    return moved


def move_parent(directory: Path) -> Path:
    """Not even the directory above is at its path."""
    return directory.parent.rename(directory.parent.with_name("elsewhere")) / directory.name


def remove(directory: Path) -> Path:
    """The directory is gone, also if its files are being written."""
    while directory.exists():
        with suppress(OSError):
            shutil.rmtree(directory)
    return directory


def mount_over(directory: Path) -> Path:
    """An empty directory is mounted at the path, until ``tests.mounts.unmount``."""
    other = directory.with_name("other")
    other.mkdir(0o700)
    mount_directory(other, directory)
    return directory


CHANGES = [
    move,
    replace_by_empty,
    replace_by_old_copy,
    replace_by_new_namespace,
    move_parent,
    mount_over,
    remove,
]


def case(change: Callable[[Path], Path], *more: object, name: str = "") -> pytest.ParameterSet:
    """The arguments of a test about a change, marked with what the change needs."""
    marks = [pytest.mark.mounts] if change is mount_over else []
    return pytest.param(change, *more, id=name or change.__name__, marks=marks)


def tree(directory: Path) -> dict[Path, bytes | None]:
    """The content of all files below a directory."""
    return {
        path.relative_to(directory): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if not path.is_socket()
    }
