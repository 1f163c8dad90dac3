"""File systems that tests mount, and the tests marked ``mounts`` for a user who may not mount.

Inside: mounting, and running one test in namespaces of its own. Not inside: what is mounted where
(``fakes.small_disk``, ``fakes.moved_directories``).
Always: a test marked ``mounts`` runs with its mounts, or fails and says what it needs; it is never left out,
and nothing else takes the place of a mount.

Source: mount(2), user_namespaces(7), mount_namespaces(7).
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.places import ROOT

_BIND = 4096
_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)
ALONE = ["unshare", "--user", "--map-root-user", "--mount"]  # a user who may mount, there
NEEDS = (
    "this test mounts file systems: it needs root, or a kernel that lets each user make namespaces"
    f" (`{' '.join(ALONE)} true` must work; unshare is in the package util-linux)"
)


def _mount(source: bytes, path: Path, kind: bytes | None, flags: int, options: bytes | None) -> None:
    if _libc.mount(source, os.fsencode(path), kind, flags, options):
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}; is the test marked `mounts`?", str(path))


def mount_memory(path: Path, size_bytes: int) -> None:
    """Mount an empty file system of this size."""
    _mount(b"tmpfs", path, b"tmpfs", 0, b"size=%d" % size_bytes)


def mount_directory(source: Path, path: Path) -> None:
    """Mount a directory over another one."""
    _mount(os.fsencode(source), path, None, _BIND, None)


def unmount(path: Path) -> None:
    """Take away what is mounted there, if anything is."""
    _libc.umount2(os.fsencode(path), _DETACH)


@functools.cache
def may_mount() -> bool:
    """True if this process may."""
    with tempfile.TemporaryDirectory(prefix="mount-") as directory:
        try:
            mount_memory(Path(directory), 1 << 16)
        except OSError:
            return False
        unmount(Path(directory))
        return True


def run_alone(node_id: str) -> None:
    """Run a test in namespaces in which it may mount; fail as it does."""
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.fail(NEEDS, pytrace=False)
    command = [*ALONE, sys.executable, "-m", "pytest", "-n", "0", node_id]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def run_item(item: pytest.Item) -> bool | None:
    """The protocol of a test, for the hook: None for one that this process may run."""
    if item.get_closest_marker("mounts") is None or may_mount():
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    call = pytest.CallInfo.from_call(lambda: run_alone(item.nodeid), "call")
    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
