"""A process of another user of this machine, and one that may not write.

The tests run as root, or as a user that may not become another one. Root's process becomes ``nobody``.
Otherwise the process stays one of this user, and a test has to make the guard count it as a stranger.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.places import ROOT

NOBODY = 65534
IS_ROOT = os.geteuid() == 0

# The interpreter may lie where only root can read. So the program imports first, then changes its user.
_PRELUDE = f"""
import os, sys

def become_other_user():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid({NOBODY})
        os.setuid({NOBODY})
"""


def open_to_others(directory: Path) -> None:
    """Let other users pass through the test's directories up to this one: pytest makes them private."""
    shared = Path(tempfile.gettempdir())
    for each in (directory, *(outer for outer in directory.parents if shared in outer.parents)):
        each.chmod(0o755)


def run_as_other_user(program: str, *args: str) -> str:
    """Run a Python program that calls ``become_other_user()`` after its imports; return what it prints."""
    finished = subprocess.run(
        [sys.executable, "-c", _PRELUDE + program, *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout
