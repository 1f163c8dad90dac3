"""A wheel of the tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT

PACKAGES = ("bookie", "dlog", "ledger", "namespace", "spark_integration")
LIMIT_S = 600  # on a busy machine


def build_wheel(source: Path, target: Path) -> Path:
    """Build the wheel from a copy of the tree, because a build leaves files behind.

    Args:
        source: An empty directory, for the copy.
        target: Where the wheel comes to lie.
    """
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--wheel-dir", str(target), str(source)],
        check=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    (built,) = target.glob("*.whl")
    return built
