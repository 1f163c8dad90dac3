"""Detached processes: identified by start time, stopped within a bound."""

# covers: dlog/cluster/process.py

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import attrs
import pytest

from dlog.cluster import process

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)",
]


def wait_up(log: Path) -> None:
    """Wait until the process has set its signal handlers and printed a line."""
    deadline = time.monotonic() + 120
    while "up" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.005)


async def test_a_started_process_is_alive_until_it_is_stopped(tmp_path: Path) -> None:
    started = process.start_detached(SLEEPER, tmp_path / "logs" / "sleeper.log")
    wait_up(tmp_path / "logs" / "sleeper.log")
    assert process.is_alive(started)
    assert await process.stop(started, grace_s=10) is True
    assert not process.is_alive(started)


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    started = process.start_detached(STUBBORN, tmp_path / "log")
    wait_up(tmp_path / "log")
    assert await process.stop(started, grace_s=0.05) is False
    assert not process.is_alive(started)


async def test_stopping_an_ended_process_succeeds(tmp_path: Path) -> None:
    started = process.start_detached([sys.executable, "-c", ""], tmp_path / "log")
    assert await process.wait_ended(started, timeout_s=120)
    assert await process.stop(started, grace_s=1) is True


def test_a_later_process_with_the_same_pid_is_another_one() -> None:
    own = process.identify(os.getpid())
    assert own is not None
    assert process.is_alive(own)
    for other in (
        attrs.evolve(own, start_ticks=own.start_ticks - 1),
        attrs.evolve(own, boot_id="another boot"),
    ):
        assert not process.is_alive(other)
        assert process.stats(other) is None
        # Without the comparison of start times, this signal would end the tests.
        assert process.send_signal(other, signal.SIGKILL) is False


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields(tmp_path: Path) -> None:
    program = tmp_path / "odd) S 1 (name"
    program.symlink_to("/bin/sleep")
    started = process.start_detached([str(program), "600"], tmp_path / "log")
    try:
        assert process.is_alive(started)
        found = process.stats(started)
        assert found is not None
        assert 0 <= found.cpu_s < 60
    finally:
        process.send_signal(started, signal.SIGKILL)
        process.wait_killed(started)
    assert not process.is_alive(started)


def test_stats_are_of_the_process_itself() -> None:
    own = process.identify(os.getpid())
    assert own is not None
    found = process.stats(own)
    assert found is not None
    assert found.rss_bytes > 1_000_000
    assert found.cpu_s > 0


def test_a_program_that_does_not_exist_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        process.start_detached([str(tmp_path / "nothing")], tmp_path / "log")


async def test_an_ended_child_leaves_no_zombie(tmp_path: Path) -> None:
    started = process.start_detached([sys.executable, "-c", ""], tmp_path / "log")
    assert await process.wait_ended(started, timeout_s=120)
    assert process.identify(started.pid) != started
