"""The programs of docs/tutorial.md, run in order as a newcomer types them, print what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DLSN = re.compile(r"\b\d+:\d+:\d+\b")
TEXT = (
    (ROOT / "docs" / "tutorial.md").read_text("utf-8").partition("\n## Write\n")[2]
)  # after the installation


def in_order(text: str, seen: dict[str, int]) -> str:
    """The text with the order of its positions in their place.

    A program that stalls between two records has the second one an entry later: a control record, which tells
    readers of the first one, comes between.
    """
    return DLSN.sub(lambda found: f"<{seen.setdefault(found[0], len(seen))}>", text)


@pytest.mark.slow
def test_each_program_prints_what_the_page_says(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, program in (("dlog", f"{sys.executable} -m dlog.cli.main"), ("python", sys.executable)):
        (programs / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "DLOG_URI": f"file://{tmp_path}/shop",
    }
    blocks = FENCE.findall(TEXT)
    assert len(blocks) > 10
    printed = ""
    of_programs: dict[str, int] = {}
    of_page: dict[str, int] = {}
    for language, text in blocks:
        if language == "text":
            assert in_order(printed, of_programs) == in_order(text, of_page)
            continue
        if language == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
            command = ["python", name]
        else:
            assert language == "sh"
            command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        expected = -signal.SIGKILL if "SIGKILL" in text else 0
        assert done.returncode == expected, f"{text}\n{done.stdout}\n{done.stderr}"
        printed = done.stdout
