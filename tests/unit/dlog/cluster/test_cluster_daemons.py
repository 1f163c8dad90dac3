"""Programs in the background: when a start succeeds, what a stop ends, and whose process gets a signal."""

# covers: dlog/cluster/daemons.py

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio

from dlog.cluster.daemons import (
    DaemonError,
    DaemonRunningError,
    Daemons,
    NoDaemonError,
)
from dlog.cluster.process import identify, is_alive

SERVE = (
    "from ledger.runtime.readiness import *; import signal;"
    " print('up', flush=True); notify(READY); signal.pause()"
)
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVE
SILENT = "import signal; print('up', flush=True); signal.pause()"


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
async def daemons(tmp_path: Path) -> AsyncIterator[Daemons]:
    made = Daemons(tmp_path / "daemons")
    with trio.fail_after(60):
        yield made
    for daemon in made.all():
        if daemon.is_running:
            os.kill(daemon.process.pid, signal.SIGKILL)


async def test_a_start_returns_when_the_program_serves_and_a_stop_when_it_has_ended(daemons: Daemons) -> None:
    daemon = await daemons.start("b1", program(SERVE), timeout_s=30)
    assert daemon.is_running
    assert daemon.log.read_text() == "up\n"
    assert daemons.all() == [daemon]
    assert await daemons.stop("b1", grace_s=30)
    assert (daemon.is_running, daemons.all()) == (False, [])


@pytest.mark.slow
async def test_a_name_has_one_process_and_another_name_has_its_own(daemons: Daemons) -> None:
    first = await daemons.start("b1", program(SERVE), timeout_s=30)
    with pytest.raises(DaemonRunningError, match=f"runs already, as process {first.process.pid}"):
        await daemons.start("b1", program(SERVE), timeout_s=30)
    second = await daemons.start("b2", program(SERVE), timeout_s=30)
    await daemons.stop("b1", grace_s=30)
    assert second.is_running


@pytest.mark.slow
async def test_the_end_of_a_program_that_fails_at_its_start_is_reported_with_its_last_line(
    daemons: Daemons,
) -> None:
    for _ in range(2):  # no trace of the first keeps the second from being started
        with pytest.raises(DaemonError, match="b1 ended at its start: the disk is on fire") as caught:
            await daemons.start("b1", program("print('a'); exit('the disk is on fire')"), timeout_s=30)
        assert str(daemons.directory / "b1.log") in str(caught.value)
    assert daemons.all() == []


@pytest.mark.slow
async def test_a_program_that_does_not_serve_in_time_goes_on_and_can_be_stopped(daemons: Daemons) -> None:
    with pytest.raises(DaemonError, match=r"does not serve after 0\.3 s\. It goes on"):
        await daemons.start("b1", program(SILENT), timeout_s=0.3)
    (daemon,) = daemons.all()
    assert daemon.is_running
    await daemons.stop("b1", grace_s=30)
    assert not daemon.is_running


@pytest.mark.slow
async def test_a_program_that_ignores_the_request_is_killed_after_the_grace(daemons: Daemons) -> None:
    daemon = await daemons.start("b1", program(DEAF), timeout_s=30)
    assert not await daemons.stop("b1", grace_s=0.1)
    assert not daemon.is_running


async def test_a_stop_signals_no_process_that_got_the_number_later(daemons: Daemons) -> None:
    """The machine was started again, and another program has the pid that is in the file."""
    daemons.directory.mkdir()
    other = identify(os.getpid())
    assert other is not None
    file = daemons.directory / "b1.json"
    for stranger in (attrs.evolve(other, start_ticks=1), attrs.evolve(other, boot_id="before")):
        file.write_text(json.dumps(attrs.asdict(stranger) | {"command": ["x"], "log": "x"}))
        assert [daemon.is_running for daemon in daemons.all()] == [False]
        assert await daemons.stop("b1", grace_s=0)
    assert is_alive(other)


async def test_what_was_not_started_cannot_be_stopped(daemons: Daemons) -> None:
    with pytest.raises(NoDaemonError, match="dlog daemon status"):
        await daemons.stop("b1", grace_s=1)
    assert not daemons.directory.exists()


async def test_two_commands_do_not_change_one_name_together(daemons: Daemons) -> None:
    daemon = await daemons.start("b1", program(SERVE), timeout_s=30)
    with (daemons.directory / "b1.lock").open("rb") as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        for change in (daemons.stop("b1", grace_s=1), daemons.start("b1", program(SERVE), timeout_s=1)):
            with pytest.raises(DaemonError, match="another command starts or stops b1 now"):
                await change
    assert daemon.is_running
    await daemons.stop("b1", grace_s=30)


@pytest.mark.parametrize("name", ["", "../b1", "b/1", ".b", "b 1", "b" * 65])
async def test_a_name_is_no_path(daemons: Daemons, name: str) -> None:
    daemons.directory.mkdir()
    own = identify(os.getpid())
    assert own is not None
    elsewhere = daemons.directory.parent / "b1.json"
    ended = attrs.evolve(own, start_ticks=1)
    elsewhere.write_text(json.dumps(attrs.asdict(ended) | {"command": ["x"], "log": "x"}))
    with pytest.raises(ValueError, match="is no name of a daemon"):
        await daemons.start(name, program(SERVE), timeout_s=1)
    with pytest.raises(NoDaemonError):
        await daemons.stop(name, grace_s=1)


async def test_a_damaged_file_is_reported_and_kept(daemons: Daemons) -> None:
    daemons.directory.mkdir()
    (daemons.directory / "b1.json").write_text("{")
    with pytest.raises(DaemonError, match="is damaged"):
        daemons.all()
    with pytest.raises(DaemonError, match="is damaged"):
        await daemons.start("b1", program(SERVE), timeout_s=1)
    file = daemons.directory / "b1.json"
    assert file.read_text() == "{"
    file.unlink()
