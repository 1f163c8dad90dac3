"""The blocks of docs/operators-day.md, run in one shell with real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]

FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = (ROOT / "docs" / "operators-day.md").read_text("utf-8")


def test_the_day_of_an_operator_goes_as_the_page_says(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, program in (("dlog", f"{sys.executable} -m dlog.cli.main"), ("python3", sys.executable)):
        (programs / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (programs / name).chmod(0o755)
    blocks = FENCE.findall(TEXT)
    assert len(blocks) > 8
    script = "\n".join(f"echo '=== {number}' >&2\n{text}" for number, text in enumerate(blocks, 1))
    cluster = tmp_path / "shop" / "cluster"
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    for name in ("DLOG_URI", "DLOG_CLUSTER"):
        environment.pop(name, None)
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script.replace("/var/lib/shop", str(tmp_path / "shop"))],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
    finally:
        subprocess.run(
            [str(programs / "dlog"), "cluster", "stop", "--directory", str(cluster)],
            env=environment,
            capture_output=True,
            timeout=120,
        )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    # What the page says of the commands that find a fault.
    assert "the bookie does not reply" in done.stdout, log
    assert "a disk was lost, swapped or is not mounted" in done.stderr, log
    copied = re.search(r"has all entries of its (\d+) ledgers? again", log)
    assert copied is not None, log
    assert int(copied[1]) > 0, log
    assert log.count(" 0 problems") == 3, log
    assert "its cookie is deleted" in log
