"""A service is killed again and again; each time its standby continues with all that was acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest
import trio

import dlog
import dlog.wal
from dlog.cluster import open_local_cluster
from tests.crash.standby_service import State
from tests.places import ROOT

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("DLOG_STANDBY_KILLS", "8"))
OPERATIONS = 30  # of each owner at least, before its end
SESSION_MS = 4_000
LIMIT_S = 60  # far more than taking over takes: only what hangs reaches it


@attrs.define(eq=False)
class Service:
    """A process of ``standby_service``."""

    process: trio.Process
    lines: trio.MemoryReceiveChannel[str]
    acknowledged: int = 0

    async def until(self, word: str, least: int = 0) -> int:
        """The number of the next line that begins with the word and has at least this number."""
        with trio.fail_after(LIMIT_S):
            async for line in self.lines:
                said, _, rest = line.partition(" ")
                assert said != "wrong", line
                number = int(rest or 0)
                if said == "ack":
                    self.acknowledged = number
                if said == word and number >= least:
                    return number
        raise AssertionError(f"it ended before it said {word!r}")

    async def end(self) -> None:
        """Kill it, and read what it said before."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        async for line in self.lines:
            if line.startswith("ack "):
                self.acknowledged = int(line.split()[1])


async def start(uri: str, name: str, nursery: trio.Nursery) -> Service:
    command = [sys.executable, "-m", "tests.crash.standby_service", uri, name]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    send, receive = trio.open_memory_channel[str](100_000)

    async def listen() -> None:
        assert process.stdout is not None
        rest = b""
        async with send:
            async for chunk in process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    send.send_nowait(line.decode())

    nursery.start_soon(listen)
    service = Service(process, receive)
    await service.until("following")
    return service


async def kill_one_after_another(uri: str) -> list[float]:
    """End the owner again and again; return the seconds until the standby owned the state."""
    took_s: list[float] = []
    owners: list[tuple[str, int]] = []  # each name, and the operations before it
    async with trio.open_nursery() as nursery:
        started: list[Service] = []
        try:
            for number in range(KILLS + 1):
                started.append(await start(uri, f"s{number}", nursery))
                if number == 0:
                    owners.append(("s0", await started[0].until("owner")))
                    continue
                owner, standby = started[number - 1], started[number]
                await owner.until("ack", owners[-1][1] + OPERATIONS)
                await owner.end()
                ended_s = time.monotonic()
                owners.append((f"s{number}", await standby.until("owner")))
                took_s.append(time.monotonic() - ended_s)
                assert owners[-1][1] >= owner.acknowledged, "an acknowledged operation is lost"
            await started[-1].end()
        finally:
            with trio.CancelScope(shield=True):
                for each in started:
                    if each.process.returncode is None:
                        await each.end()
    operations: list[str] = []
    async with (
        dlog.open_namespace(uri) as namespace,
        dlog.wal.open_wal(
            namespace,
            apply=lambda operation: operations.append(operation.decode()),
            snapshot=State().dump,
            restore=lambda dump: operations.extend(["before"] * int(dump)),
        ) as log,
    ):
        assert log.index == len(operations) >= started[-1].acknowledged
    # At most one owner at a time: nobody wrote after another one had begun.
    for index, operation in enumerate(operations, 1):
        if operation != "before":
            by = [name for name, before in owners if before < index][-1]
            assert operation == f"{by} {index}"
    return took_s


async def test_a_standby_goes_on_when_the_owner_of_a_directory_is_killed(tmp_path: Path) -> None:
    took_s = await kill_one_after_another(tmp_path.as_uri())
    print(f"{KILLS} kills: {min(took_s):.2f} to {max(took_s):.2f} s until the standby owned the state")


@pytest.mark.cluster
@pytest.mark.zookeeper
async def test_a_standby_goes_on_when_the_owner_in_a_cluster_is_killed(tmp_path: Path) -> None:
    async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=SESSION_MS) as cluster:
        took_s = await kill_one_after_another(f"{cluster.uri}?session_timeout_ms={SESSION_MS}")
    print(f"{KILLS} kills: {min(took_s):.2f} to {max(took_s):.2f} s, in which the session ends")
