"""README fits on a few screens, and its example runs in each of the three forms."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT

LINES_MAX = 100
README = (ROOT / "README.md").read_text("utf-8")


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX


def test_the_first_screen_proves_installs_and_shows() -> None:
    heads = [
        README.index(one) for one in ("make demo", "make test", "## Install", "## An example", "## Guar")
    ]
    assert heads == sorted(heads)


def test_the_lines_that_trio_needs_make_the_example_of_asyncio_one_of_trio(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    example = next(block for block in blocks if "import asyncio" in block)
    sentence = next(line for line in README.splitlines() if line.startswith("In trio three lines differ"))
    lines = re.findall(r"`([^`]+)`", sentence)
    assert len(lines) == 3
    for own in lines:
        start = re.match(r"\w+ (?:with )?|trio", own)
        assert start is not None
        pattern = {"import ": r"^import .*$", "async with ": r"async with dlog.*$", "trio": r"^asyncio.*$"}[
            start[0]
        ]
        example, count = re.subn(pattern, own, example, count=1, flags=re.MULTILINE)
        assert count == 1
    program = example.replace("/var/lib/shop", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "asyncio" not in program
    assert done.stdout == "[b'first']\n"
