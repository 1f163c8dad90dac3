"""The processes of a benchmark end with its command, also when the command is killed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.bench.peers.table import FLOOR
from tests.bench.work.job import Job
from tests.bench.work.link import BenchError, open_worker

COMMAND = """
import sys, trio
from tests.bench.work.job import decode_job
from tests.bench.work.link import open_worker

async def main():
    async with open_worker(decode_job(sys.stdin.readline())) as worker:
        await worker.receive("ready")
        print(worker.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def job(directory: Path, **changed: Any) -> Job:
    settings = {"role": "produce", "system": FLOOR.name, "records": 10, "size": 16, "rate": 1000}
    return Job(address={"directory": str(directory), "files": 1}, **{**settings, **changed})


def has_ended(pidfd: int, *, timeout_ms: int) -> bool:
    """Wait for the end of a process, by the kernel's event."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_ms))


@pytest.mark.slow
def test_a_process_ends_when_the_command_is_killed(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert command.stdin is not None
    assert command.stdout is not None
    command.stdin.write(job(tmp_path).encoded() + "\n")
    command.stdin.flush()
    pidfd = os.pidfd_open(int(command.stdout.readline()))
    try:
        assert not has_ended(pidfd, timeout_ms=0)
        command.kill()
        command.communicate()
        assert has_ended(pidfd, timeout_ms=30_000)
    finally:
        os.close(pidfd)


@pytest.mark.slow
async def test_a_process_is_killed_when_the_command_fails(tmp_path: Path) -> None:
    pidfds: list[int] = []

    async def fail() -> None:
        async with open_worker(job(tmp_path)) as worker:
            await worker.receive("ready")
            pidfds.append(os.pidfd_open(worker.pid))
            assert not has_ended(pidfds[0], timeout_ms=0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert has_ended(pidfds[0], timeout_ms=0)
    os.close(pidfds[0])


@pytest.mark.slow
async def test_a_process_that_fails_is_reported_with_its_role(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with open_worker(job(tmp_path / "missing", role="consume")) as worker:
            with pytest.raises(BenchError, match="role consume of file ended with status 1"):
                await worker.receive("ready")


@pytest.mark.slow
def test_a_tail_at_a_rate_is_measured_in_two_processes_beside_the_floor() -> None:
    command = [sys.executable, "-m", "tests.bench", "tail", "--rate", "500", "--records", "200"]
    command += ["--peers", "sqlite", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [one["system"] for one in document["systems"]] == ["dlog", "file", "loop", "sqlite"]
    assert document["options"]["left_out"] == 10
    for one in document["systems"]:
        assert 0 < one["p50_ms"] <= one["p90_ms"] <= one["p99_ms"] <= one["p99_9_ms"] <= one["max_ms"]
        assert one["cpu_us"] == pytest.approx(one["cpu_producer_us"] + one["cpu_consumer_us"], abs=0.2)
        assert one["cpu_servers_us"] is None
        assert one["replicas"] == 1
    assert document["not_installed"] == {}


@pytest.mark.slow
def test_lone_appends_are_measured_with_and_without_a_loop_beside_the_floor() -> None:
    command = [sys.executable, "-m", "tests.bench", "latency", "--records", "20"]
    done = subprocess.run(
        [*command, "--peers", "sqlite", "--json"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rows = [(one["system"], one["level"]) for one in document["systems"]]
    assert rows == [("dlog", "stream"), ("dlog", "blocking"), ("file", None), ("sqlite", None)]
    for one in document["systems"]:
        assert 0 < one["p50_ms"] <= one["p90_ms"] <= one["p99_ms"] <= one["p99_9_ms"] <= one["max_ms"]
        assert one["cpu_us"] > 0
        assert one["p50_ratio"] > 0


@pytest.mark.slow
def test_idle_followers_are_measured_beside_waiting_tasks() -> None:
    command = [sys.executable, "-m", "tests.bench", "idle", "--followers", "6", "--logs", "2"]
    done = subprocess.run(
        [*command, "--seconds", "0.1", "--json"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["systems"]
    assert [(one["system"], one["followers"]) for one in rows] == [("dlog", 6), ("tasks", 6)]
    for one in rows:
        assert one["cpu_percent"] >= 0
        assert one["cpu_servers_percent"] is None


@pytest.mark.slow
def test_many_open_writers_are_measured_beside_one_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "many", "--writers", "5", "--seconds", "0.2", "--json"]
    command += ["--uri", tmp_path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["systems"]
    assert [(one["system"], one["logs"]) for one in rows] == [("dlog", 5), ("one log", 1)]
    assert all(one["appends_per_s"] > 0 for one in rows)
    assert all(one["open_cpu_s"] >= 0 for one in rows)


@pytest.mark.slow
def test_the_life_of_a_log_and_the_start_of_programs_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "logs", "--logs", "3", "--json"]
    command += ["--uri", tmp_path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [one["system"] for one in document["systems"]] == ["dlog", "file"]
    for one in document["systems"]:
        steps = [one[f"{step}_cpu_ms"] for step in ("create", "open", "append", "close")]
        assert one["cpu_ms"] == pytest.approx(sum(steps), abs=0.01)
        assert one["wall_ms"] > 0
    assert [one["command"] for one in document["startup"]] == ["python -c pass", "import dlog", "dlog --help"]
    assert all(one["cpu_ms"] > 0 for one in document["startup"])
    listed = subprocess.run(
        [sys.executable, "-m", "dlog.cli.main", "log", "list", "--uri", tmp_path.as_uri()],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (listed.returncode, listed.stdout) == (0, ""), listed.stderr


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.slow
def test_lone_appends_to_ledgers_and_streams_are_measured_on_a_cluster() -> None:
    command = [sys.executable, "-m", "tests.bench", "latency", "--records", "20", "--cluster", "3"]
    command += ["--level", "stream", "--level", "ledger", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["systems"]
    assert [(one["system"], one["level"]) for one in rows] == [
        ("dlog", "stream"),
        ("dlog", "ledger"),
        ("file", None),
    ]
    assert [one["replicas"] for one in rows] == [3, 3, 3]
    assert [one["cpu_servers_us"] is None for one in rows] == [False, False, True]
