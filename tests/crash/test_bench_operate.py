"""`python -m tests.bench operate` as a program, and the end of its browser. No test asserts a time."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
SMALL = "--mib 1 --ledgers 3 --bookies 4 --session-timeout 1000 --steady 0.2 --seconds 0.5 --loads 1"
BROWSER = """
import sys, trio
from pathlib import Path
from tests.bench.operate.browser import open_browser

async def main():
    async with open_browser(Path(sys.argv[1])):
        print("ready", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def test_repair_rest_and_page_are_measured_beside_their_yardsticks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "operate", *SMALL.split(), "--json"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    alone, floor, beside = found["repair"]
    assert [row["system"] for row in found["repair"]] == ["dlog", "copy of a file", "dlog"]
    for row in (alone, beside):
        assert row["replicas"] == 3 * row["entries"] == 3 * 3 * found["options"]["entries"]
        assert row["bytes"] == floor["bytes"] == found["options"]["size"] * row["entries"]
        assert row["healed_s"] > row["noticed_s"] > 0
        assert row["repair_s"] > 0
    assert alone["share_kept"] is None
    assert min(beside[key] for key in ("before_per_s", "during_per_s", "after_per_s", "share_kept")) > 0
    assert floor["repair_s"] > 0
    members = ["bookie-1", "bookie-2", "bookie-3", "autorecovery", "zookeeper"]
    assert [row["process"] for row in found["idle"]] == members
    assert [row["system"] for row in found["page"]] == ["dlog", "trivial page"]
    assert all(row["first_contentful_paint_ms"] >= row["first_paint_ms"] > 0 for row in found["page"])
    assert list((tmp_path / "dlog").iterdir()) == []
    assert _processes_with(tmp_path) == []


def test_auto_recovery_is_measured_while_a_bookie_is_away(tmp_path: Path) -> None:
    options = ["--away", "--away-ledgers", "20", "--seconds", "3", "--json"]
    command = [sys.executable, "-m", "tests.bench", "operate", *options]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["away"]
    assert [row["phase"] for row in rows] == [
        "first checks",
        "one bookie away",
        "until all replicas are back",
        "rolling restart",
        "until all replicas are there",
    ]
    assert [row["ledgers"] for row in rows] == [20, 20, 20, 40, 40]
    assert all(row["cpu_percent"] >= 0 for row in rows)
    assert rows[0]["entries_copied"] == 0
    assert rows[2]["entries_copied"] >= 20
    assert _processes_with(tmp_path) == []


def test_writers_are_measured_while_a_bookie_is_away(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "operate", "--writers", "--seconds", "3", "--json"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["writers"]
    assert all(row["appends"] for row in rows[:-1])
    assert rows[-1]["replicas_read"] >= 2 * sum(row["appends"] for row in rows)
    assert _processes_with(tmp_path) == []


def test_chromium_ends_when_the_command_is_killed(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-c", BROWSER, str(tmp_path / "browser")], stdout=subprocess.PIPE, text=True
    )
    pidfds = []
    try:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        pidfds = [os.pidfd_open(pid) for pid in _processes_with(tmp_path) if pid != command.pid]
        assert pidfds
    finally:
        command.kill()
        command.communicate()
        for pidfd in pidfds:
            assert _has_ended(pidfd)
            os.close(pidfd)


def _processes_with(directory: Path) -> list[int]:
    """The processes that have the directory in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if os.fsencode(directory) in words:
                found.append(int(entry.name))
    return found


def _has_ended(pidfd: int) -> bool:
    """Wait for the end of a process, by the kernel's event."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(30_000))
