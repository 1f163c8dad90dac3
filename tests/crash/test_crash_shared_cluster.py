"""A cluster of real processes: the owner of a shared log is killed or stands still, and others continue.

``DLOG_SHARED_KILLS`` sets the number of kills in the first test, which prints the longest take-over.
"""

# covers: dlog/forwarding/network_meeting.py

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from dlog.cluster import open_local_cluster
from tests.crash.shared_crowd import Appender, Crowd, open_crowd, stored

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 240
CROWD = 8
PROGRAMS = 4
KILLS = int(os.environ.get("DLOG_SHARED_KILLS", "6"))
KILL_S = 60  # that one kill and what follows may take
SESSION_MS = 4_000
TAKE_OVER_S = 60  # far more than a session: only a program that hangs reaches it


def uri_of(cluster_uri: str) -> str:
    return f"{cluster_uri}?session_timeout_ms={SESSION_MS}"


async def next_owner(crowd: Crowd, before: Appender) -> float:
    """Return once every other program writes again, by an owner that follows this one; how long it took."""
    began_s, others = trio.current_time(), [each for each in crowd.living if each is not before]
    with trio.fail_after(TAKE_OVER_S):
        await crowd.more_from(others, 5)
    return trio.current_time() - began_s


async def test_in_a_cluster_records_are_stored_once_although_the_owner_is_killed_many_times(
    tmp_path: Path,
) -> None:
    took_s: list[float] = []
    with trio.fail_after(TEST_TIMEOUT_S + KILL_S * KILLS):
        async with (
            open_local_cluster(tmp_path / "cluster", session_timeout_ms=SESSION_MS) as cluster,
            open_crowd(uri_of(cluster.uri)) as crowd,
        ):
            for _ in range(CROWD):
                await crowd.start()
            for _ in range(KILLS):
                await crowd.more_from(crowd.living, 20)
                killed = crowd.owner
                await crowd.kill(killed)
                took_s.append(await next_owner(crowd, killed))
                await crowd.start()
            await crowd.more_from(crowd.living, 1)
            await crowd.check()
    print(f"{KILLS} kills; the others wrote again after at most {max(took_s):.2f} s")


async def test_an_owner_that_stands_still_is_followed_once_its_session_is_over_and_writes_nothing_twice(
    tmp_path: Path,
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with (
            open_local_cluster(tmp_path / "cluster", session_timeout_ms=SESSION_MS) as cluster,
            open_crowd(uri_of(cluster.uri)) as crowd,
        ):
            for _ in range(PROGRAMS):
                await crowd.start()
            for _ in range(2):
                await crowd.more_from(crowd.living, 20)
                still = crowd.owner
                still.process.send_signal(signal.SIGSTOP)
                await next_owner(crowd, still)
                still.process.send_signal(signal.SIGCONT)
                with trio.fail_after(TAKE_OVER_S):
                    await crowd.more_from([still], 5)
            await crowd.check()


async def written_by_two_commands(uri: str, config_file: Path | None = None) -> None:
    """Two commands write one log at the same time, and each line is there once and in order."""
    lines = {name: [b"%b %d" % (name, number) for number in range(50)] for name in (b"a", b"b")}
    command = [sys.executable, "-m", "dlog", "write", "orders", "--shared", "--create", "--uri", uri]
    environment = {**os.environ, **({} if config_file is None else {"DLOG_CONFIG": str(config_file)})}
    async with trio.open_nursery() as nursery:
        for each in lines.values():
            standard_input = b"\n".join(each)
            run = partial(trio.run_process, stdin=standard_input, capture_stderr=True, env=environment)
            nursery.start_soon(run, command)
    payloads = await stored(uri, config_file=config_file)
    for name, each in lines.items():
        assert [payload for payload in payloads if payload.startswith(name)] == each


async def test_two_commands_write_one_log_of_a_cluster(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=SESSION_MS) as cluster:
            await written_by_two_commands(cluster.uri)


async def test_two_commands_write_one_log_of_a_cluster_with_mutual_tls(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(
            tmp_path / "cluster", session_timeout_ms=SESSION_MS, secure=True
        ) as cluster:
            await written_by_two_commands(cluster.uri, cluster.paths.client_settings)


@asynccontextmanager
async def proxy(uri: str, name: str) -> AsyncIterator[trio.Process]:
    """A process of `dlog proxy`; at the end of the block SIGTERM has to end it."""
    command = [sys.executable, "-m", "dlog", "proxy", "--uri", uri, "--name", name]
    process = await trio.lowlevel.open_process(command, stderr=subprocess.DEVNULL)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_programs_that_own_no_log_write_through_proxies_that_leave_and_die(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=SESSION_MS) as cluster:
            uri = uri_of(cluster.uri)
            async with open_crowd(f"{uri}&owner_address=none") as crowd:
                async with proxy(uri, "a"):
                    for _ in range(PROGRAMS):
                        await crowd.start()
                    await crowd.more_from(crowd.living, 20)
                    async with proxy(uri, "b") as dying:
                        await crowd.more_from(crowd.living, 20)
                        dying.kill()
                        await dying.wait()
                        await crowd.more_from(crowd.living, 20)
                    async with proxy(uri, "c"):
                        await crowd.more_from(crowd.living, 20)
                    await crowd.more_from(crowd.living, 20)
                assert len(crowd.living) == PROGRAMS  # no append failed
                assert not any(each.has_owned for each in crowd.appenders)
                await crowd.check()
