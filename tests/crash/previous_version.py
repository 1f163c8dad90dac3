"""The last tagged state of DLog, for the tests of an upgrade from it.

It is the newest tag ``v...`` before this commit. While no version has been released, ``COMMIT`` stands for
the tag. It is from before the stream layer was complete, long polls that go on, hints, and the key for the
index of a bookie. Its command line needs ``rich``, which is a package of the tests for that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import trio

from tests.places import ROOT

COMMIT: Final = "ea53cea65b0631df3454a6a8312440c3d385aea6"
PACKAGES: Final = ("bookie", "dlog", "ledger", "namespace")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, stdout=subprocess.PIPE).stdout


def last_state(root: Path = ROOT) -> str:
    """The name of the last tagged state before the commit that is checked out in ``root``."""
    words = ["git", "-C", str(root), "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]
    described = subprocess.run(words, check=False, capture_output=True)
    return COMMIT if described.returncode else described.stdout.decode().strip()


def unpack(directory: Path) -> None:
    """Write the packages of the previous version below ``directory``.

    Raises:
        CalledProcessError: git or tar failed. In a clone without the commit ``git`` says so.
    """
    if _git("rev-parse", "--is-shallow-repository").strip() == b"true":
        _git("fetch", "--unshallow", "--quiet")
    directory.mkdir(parents=True)
    packed = _git("archive", last_state(), *PACKAGES)
    subprocess.run(["tar", "-x", "-C", str(directory)], input=packed, check=True)


async def start(tree: Path, *words: str) -> trio.Process:
    """Start Python with ``words``, importing DLog from ``tree``; its stdin and stdout are pipes."""
    return await trio.lowlevel.open_process(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
    )
