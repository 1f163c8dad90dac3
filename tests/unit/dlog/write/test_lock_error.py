"""What a writer is told that finds the log's lock taken: by whom, for how long at most, and what to do."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import dlog
from dlog.errors import LogLockedError
from tests.unit.dlog.test_expired_sessions import two_programs

HOLDER = """
import sys
import dlog.blocking

with dlog.blocking.open_namespace(sys.argv[1]) as namespace, namespace.open_writer("log", create=True):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
async def test_a_second_worker_learns_which_process_writes_and_what_to_do(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    async with trio.open_nursery() as nursery:
        holder = await trio.lowlevel.open_process([sys.executable, "-c", HOLDER, uri], stdin=-1, stdout=-1)
        assert holder.stdout is not None
        assert holder.stdin is not None
        with trio.fail_after(60):
            assert await holder.stdout.receive_some(1) == b"o"  # of "open"
        async with dlog.open_namespace(uri) as namespace:
            with pytest.raises(LogLockedError) as caught:
                async with namespace.open_writer("log", lock_timeout_s=0):
                    raise AssertionError("the lock is taken")
            await holder.stdin.aclose()
            with trio.fail_after(60):
                await holder.wait()
        nursery.cancel_scope.cancel()
    assert caught.value.owner == f"{socket.gethostname()}/{holder.pid}"
    assert caught.value.owner != f"{socket.gethostname()}/{os.getpid()}"
    assert not caught.value.is_own
    assert "let one process write it (one worker, or a process of its own)" in str(caught.value)


async def test_a_lock_in_a_cluster_is_told_with_the_end_of_its_session(autojump_clock: MockClock) -> None:
    async with two_programs() as (one, two), one.namespace.open_writer("log"):
        for lock_timeout_s in (0, 1):
            with pytest.raises(LogLockedError) as caught:
                async with two.namespace.open_writer("log", lock_timeout_s=lock_timeout_s):
                    raise AssertionError("the lock is taken")
            assert caught.value.session_timeout_s == 10.0
            assert caught.value.is_own


def test_the_text_names_the_end_of_a_killed_owner() -> None:
    error = LogLockedError("log", "host/12", 0, session_timeout_s=10.0)
    assert str(error) == (
        "log 'log' has a writer already: host/12 holds its lock, waited 0 s; a log has one writer: let one"
        " process write it (one worker, or a process of its own), close that writer, or wait longer with"
        " lock_timeout_s. If its program was killed, its session ends at the latest 10 s later"
    )
