"""SIGKILL for a program that puts blobs: each is whole or not there, and no ledger is left."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster import open_local_cluster
from tests.crash.blob_putter import content_of
from tests.effort import sampled
from tests.places import ROOT

pytestmark = pytest.mark.slow
TIMEOUT_S = 120
KILLS = 8

State = dict[str, bytes]


def changed(state: State, words: list[str]) -> State:
    """The blobs after an act."""
    after = dict(state)
    if words[0] == "delete":
        after.pop(words[1], None)
    else:
        after[words[1]] = content_of(int(words[2]), int(words[3]))
    return after


def run_and_kill(uri: str, seed: int, state: State, after_s: float) -> tuple[State, State]:
    """Kill the program some time after it has opened; return what it acknowledged, and that and the act
    under way."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.blob_putter", uri, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    killer = threading.Timer(after_s, process.kill)
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout.readline() == "open\n"
        killer.start()
        acknowledged = under_way = state
        for line in process.stdout:
            if line == "done\n":
                acknowledged = under_way
            elif line.endswith("\n"):
                under_way = changed(acknowledged, line.split())
        return acknowledged, under_way
    finally:
        watchdog.cancel()
        killer.cancel()
        process.kill()
        process.wait(TIMEOUT_S)
        process.stdout.close()


async def blobs_of(uri: str) -> State:
    async with dlog.open_namespace(uri) as namespace:
        return {blob.name: await namespace.blobs.get(blob.name) for blob in await namespace.blobs.list()}


async def sweep(uri: str) -> int:
    """Sweep, and check that the ledgers that are left are those of the blobs."""
    async with dlog.open_namespace(uri) as namespace:
        swept = await namespace.blobs.sweep()
        assert swept.live == 0
        named = [piece.ledger_id for blob in await namespace.blobs.list() for piece in blob.pieces]
        assert await namespace.context.client.ledger_ids() == sorted(named)
        return swept.ledgers


@pytest.mark.parametrize("seed", sampled([1, 2], 1))
async def test_a_service_killed_at_any_moment_leaves_whole_blobs_and_nothing_else(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    uri = (tmp_path / "log").as_uri()
    state: State = {}
    left = 0
    for kill in range(KILLS):
        with trio.fail_after(TIMEOUT_S):
            acknowledged, under_way = await trio.to_thread.run_sync(
                run_and_kill, uri, 100 * seed + kill, state, rng.uniform(0.01, 0.6)
            )
            state = await blobs_of(uri)
            assert state in (acknowledged, under_way)
            left += await sweep(uri)
            assert await blobs_of(uri) == state
    assert left > 0, "no kill hit an upload"


async def test_a_program_killed_on_three_bookies_is_swept_when_its_session_has_ended(tmp_path: Path) -> None:
    config = dlog.NamespaceConfig(create=True)
    with trio.fail_after(2 * TIMEOUT_S):
        async with open_local_cluster(
            tmp_path / "cluster", bookie_count=3, session_timeout_ms=3000
        ) as cluster:
            async with dlog.open_namespace(cluster.uri, config=config) as namespace:
                kept = await namespace.blobs.put("kept", content_of(7, 3_000_000))
            acknowledged, under_way = await trio.to_thread.run_sync(
                run_and_kill, cluster.uri, 5, {"kept": content_of(7, 3_000_000)}, 1.0
            )
            assert await blobs_of(cluster.uri) in (acknowledged, under_way)
            async with dlog.open_namespace(cluster.uri) as namespace:
                while (await namespace.blobs.sweep()).live:  # noqa: ASYNC110 - until the session ends
                    await trio.sleep(0.2)
                blobs = await namespace.blobs.list()
                named = sorted(piece.ledger_id for blob in blobs for piece in blob.pieces)
                assert await namespace.context.client.ledger_ids() == named
                assert await namespace.blobs.describe("kept") == kept
            assert await blobs_of(cluster.uri) in (acknowledged, under_way)
