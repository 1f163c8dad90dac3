"""docs/security.md, "A secured cluster from nothing": files are written and commands typed, in order."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from dlog.cluster.ports import free_ports
from dlog.cluster.zookeeper_process import start_zookeeper, stop_zookeeper
from tests.places import ROOT

HEADING = "### A secured cluster from nothing\n"
TIMEOUT_S = 120


def script_of(page: str) -> str:
    """A script of bash that writes each file and types each command of the walk-through."""
    part = re.split(r"^##", page.partition(HEADING)[2], maxsplit=1, flags=re.M)[0]
    lines = []
    for block in re.findall(r"^```text\n(.*?)^```$", part, re.M | re.S):
        name = re.match(r"# file: (\S+)\n", block)
        if name is not None:
            lines.append(f"cat > {name[1]} <<'END'\n{block[name.end() :]}END")
            continue
        for line in block.splitlines():
            assert line.startswith("$ "), line
            lines.append(line.removeprefix("$ "))
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.zookeeper
def test_the_walk_through_of_a_secured_cluster_is_typed(tmp_path: Path) -> None:
    server = trio.run(start_zookeeper, tmp_path / "zookeeper")
    (port,) = free_ports(1, random.Random(), host="127.0.0.1")
    script = script_of((ROOT / "docs" / "security.md").read_text("utf-8"))
    assert script.count("\n") > 50
    script = script.replace("zk1:2181", server.hosts).replace("bookiePort=3181", f"bookiePort={port}")
    # A disk that is nearly full is no fault of the page.
    full = "diskUsageThreshold=0.99\ndiskUsageWarnThreshold=0.98\n"
    script = script.replace("allowLoopback=true\n", f"allowLoopback=true\n{full}")
    home = tmp_path / "home"
    home.mkdir()
    programs = home / "bin"
    programs.mkdir()
    wrapper = programs / "dlog"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m dlog.cli.main "$@"\n')
    wrapper.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DLOG_")}
    environment |= {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p)' EXIT\n{script}"],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    finally:
        trio.run(stop_zookeeper, server.identity)
    log = home / "bookie.log"
    shown = f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}\n{log.read_text()[-3000:] if log.exists() else ''}"
    assert done.returncode == 0, shown
    assert "first\nfirst\nsecond\n" in re.sub(r"(?m)^(?!first$|second$).*\n", "", done.stdout), shown
    assert "other users may" not in log.read_text()
