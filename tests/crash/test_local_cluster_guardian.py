"""A local cluster ends with the program that opened it, also when that program is killed."""

# covers: dlog/cluster/guardian.py

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from dlog.cluster import process
from dlog.cluster.guardian import open_guardian
from dlog.cluster.layout import ClusterPaths, decode_state
from dlog.cluster.process import ProcessId, is_alive, start_detached
from tests.places import ROOT

OPENER = """
import sys, trio
from pathlib import Path
from dlog.cluster import open_local_cluster

async def main():
    async with open_local_cluster(Path(sys.argv[1]), bookie_count=1):
        print("serving", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def assert_ended(identities: list[ProcessId]) -> None:
    with trio.fail_after(60):
        while any(map(is_alive, identities)):  # noqa: ASYNC110 - the kernel reports an end only to the parent
            await trio.sleep(0.05)


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.slow
async def test_a_killed_opener_leaves_no_process_behind(tmp_path: Path) -> None:
    opener = await trio.lowlevel.open_process(
        [sys.executable, "-c", OPENER, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert opener.stdout is not None
        with trio.fail_after(120):
            assert (await opener.stdout.receive_some()).startswith(b"serving")
        paths = ClusterPaths(tmp_path)
        members = [
            member.process for member in decode_state(paths.state.read_text("utf-8"), paths.state).members
        ]
        identities = [identity for identity in members if identity is not None]
        assert len(identities) == 2
        assert all(map(is_alive, identities))
    finally:
        opener.kill()
        await opener.wait()
    await assert_ended(identities)


async def test_a_guardian_kills_its_group_and_nothing_else(tmp_path: Path) -> None:
    outside = start_detached(["/bin/sleep", "600"], tmp_path / "outside.log")
    try:
        with open_guardian() as group:
            inside = [
                start_detached(["/bin/sleep", "600"], tmp_path / "inside.log", group=group) for _ in range(3)
            ]
            assert all(map(is_alive, inside))
        await assert_ended(inside)
        assert is_alive(outside)
    finally:
        await process.stop(outside, grace_s=0)


async def test_leaving_a_guardian_whose_group_has_ended_is_quiet(tmp_path: Path) -> None:
    with open_guardian() as group:
        member = start_detached(["/bin/true"], tmp_path / "log", group=group)
        await assert_ended([member])
