"""Each example runs and does what its first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.slow


def run(name: str, *args: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout


def test_the_write_ahead_log_keeps_its_values(tmp_path: Path) -> None:
    assert run("write_ahead_log.py", str(tmp_path), "get", "greeting") == "None\n"
    assert run("write_ahead_log.py", str(tmp_path), "set", "greeting", "hello") == "hello\n"
    assert run("write_ahead_log.py", str(tmp_path), "set", "other", "x") == "x\n"
    assert run("write_ahead_log.py", str(tmp_path), "get", "greeting") == "hello\n"


def test_both_followers_see_every_event_in_order(tmp_path: Path) -> None:
    lines = run("event_stream.py", str(tmp_path)).splitlines()
    for name in ("early", "late"):
        mine = [line.split(" at ")[0] for line in lines if line.startswith(name)]
        assert mine == [f"{name}: event {number}" for number in range(20)]


def test_the_script_writes_lines_and_counts_them(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(500))
    assert run("script.py", str(tmp_path), stdin=text).splitlines()[-1] == "500 lines in the log"
    assert run("script.py", str(tmp_path), stdin=text).splitlines()[-1] == "1000 lines in the log"
