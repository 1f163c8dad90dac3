"""`dlog daemon` as a program: a bookie and auto-recovery of a real cluster in the background."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cluster import process
from dlog.cluster.daemons import Daemons
from dlog.cluster.layout import ClusterPaths, decode_state

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
DLOG = [sys.executable, "-m", "dlog.cli.main"]


def dlog(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*DLOG, *arguments], input=stdin, capture_output=True, timeout=240)


def document(*arguments: str) -> Any:
    done = dlog(*arguments[:2], "--json", *arguments[2:])
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    dlog("cluster", "stop", "--directory", str(tmp_path / "cluster"))


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemons]:
    directory = tmp_path / "daemons"
    monkeypatch.setenv("DLOG_DAEMONS", str(directory))
    yield Daemons(directory)
    for daemon in Daemons(directory).all():
        process.send_signal(daemon.process, signal.SIGKILL)


def test_a_bookie_and_auto_recovery_run_in_the_background(cluster: Path, daemons: Daemons) -> None:
    uri = document("cluster", "start", "--directory", str(cluster))["uri"]
    paths = ClusterPaths(cluster)
    member = decode_state(paths.state.read_text("utf-8"), paths.state).bookies[0]
    assert member.process is not None
    process.send_signal(member.process, signal.SIGKILL)
    process.wait_killed(member.process)

    # It serves when the command returns: two bookies would be too few.
    config = cluster / member.name / "bk_server.conf"
    started = document("daemon", "start", "--name", "b1", "bookie", "--config", str(config))
    written = dlog(
        "write", "orders", "--create", "--uri", f"{uri}?ensemble_size=3&ack_quorum=3", stdin=b"one\n"
    )
    assert written.returncode == 0, written.stderr.decode()
    again = dlog("daemon", "start", "--name", "b1", "bookie", "--config", str(config))
    assert again.returncode == ExitCode.IN_USE

    document("daemon", "start", "autorecovery", "--service", uri)
    assert document("autorecovery", "status", "--service", uri)["enabled"] is True
    shown = {each["name"]: each["pid"] for each in document("daemon", "status")}
    assert shown["b1"] == started["pid"]
    assert set(shown) == {"autorecovery", "b1"}

    running = [daemon.process for daemon in daemons.all()]
    for name in shown:
        stopped = dlog("daemon", "stop", name)
        assert (stopped.returncode, stopped.stderr) == (0, b""), "it was not killed"
    assert not any(map(process.is_alive, running))
    assert dlog("daemon", "stop", "b1").returncode == ExitCode.NOT_FOUND
