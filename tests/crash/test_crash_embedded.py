"""SIGKILL for processes on one directory: every acknowledged record is read once and in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from tests.crash.crash_appender import check_log, open_appender

pytestmark = pytest.mark.slow
ROUND_TIMEOUT_S = 120
LOG = "crash"


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_writer_killed_again_and_again_loses_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    uri = (tmp_path / "log").as_uri()
    acknowledged = 0
    for _ in range(5):
        with trio.fail_after(ROUND_TIMEOUT_S):
            async with open_appender(uri, LOG) as appender:
                await appender.wait_open()
                assert appender.opened_behind is not None
                assert appender.opened_behind >= acknowledged, "recovery lost an acknowledged record"
                await appender.wait_acknowledged(appender.opened_behind + rng.randint(1, 600))
                acknowledged = await appender.kill()
    await check_log(uri, LOG, acknowledged)


async def test_a_writer_killed_while_it_opens_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(3)
    uri = (tmp_path / "log").as_uri()
    async with open_appender(uri, LOG) as appender:
        with trio.fail_after(ROUND_TIMEOUT_S):
            await appender.wait_acknowledged(200)
            acknowledged = await appender.kill()
    for _ in range(6):
        async with open_appender(uri, LOG) as appender:
            # The kill hits a random moment: start, replay, or recovery of the last segment.
            with trio.move_on_after(rng.uniform(0.1, 0.8)):
                await appender.wait_acknowledged(10**9)
            acknowledged = max(acknowledged, await appender.kill())
    with trio.fail_after(ROUND_TIMEOUT_S):
        await check_log(uri, LOG, acknowledged)


async def test_an_attached_writer_survives_the_death_of_its_host(tmp_path: Path) -> None:
    uri = (tmp_path / "log").as_uri()
    with trio.fail_after(2 * ROUND_TIMEOUT_S):
        async with open_appender(uri, "first") as host:
            await host.wait_acknowledged(100)
            async with open_appender(uri, "second") as attached:
                await attached.wait_acknowledged(100)
                first = await host.kill()
                # These records need a new host process.
                await attached.wait_acknowledged(attached.acknowledged + 500)
                async with open_appender(uri, "first") as successor:
                    await successor.wait_open()
                    assert successor.opened_behind is not None
                    assert successor.opened_behind >= first
                    await successor.wait_acknowledged(successor.opened_behind + 200)
                    second = await attached.kill()
                    await successor.wait_acknowledged(successor.acknowledged + 200)
                    first = await successor.kill()
        await check_log(uri, "first", first)
        await check_log(uri, "second", second)
