"""Bookies over capacity: the writer waits for them, but not for ever."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import LedgerWriteError
from ledger.wire.messages import AddRequest
from tests.fakes.dict_bookies import DictCluster


def refusing(code: Code) -> Any:
    return lambda request: code if isinstance(request, AddRequest) else None


async def test_a_bookie_over_capacity_is_replaced_only_after_the_overload_timeout(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    await cluster.start("b4:1")
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        busy = writer.metadata.last_ensemble.bookies[0]
        cluster.bookies[busy].refuse = refusing(Code.TOO_MANY_REQUESTS)
        await writer.append_many([b"x"] * 10)
        await trio.sleep(2)
        cluster.bookies[busy].refuse = lambda request: None
        await trio.sleep(3)
        await writer.append(b"taken again")
        await trio.testing.wait_all_tasks_blocked()
        assert writer.lac in cluster.bookies[busy].ledgers[writer.ledger_id].entries
        assert len((await client.metadata(writer.ledger_id)).ensembles) == 1
        cluster.bookies[busy].refuse = refusing(Code.TOO_MANY_REQUESTS)
        await writer.append(b"again and for long")
        await trio.sleep(20)
        assert busy not in (await client.metadata(writer.ledger_id)).last_ensemble.bookies


@pytest.mark.parametrize("dies", [True, False])
async def test_a_bookie_over_capacity_that_dies_or_falls_silent_is_replaced_like_any_other(
    cluster: DictCluster, autojump_clock: MockClock, dies: bool
) -> None:
    """Also if the overload timeout is longer than the writer's retry timeout."""
    await cluster.start("b4:1")
    config = ClientConfig(overload_timeout_s=3600.0, unavailable_timeout_s=10.0)
    async with cluster.client(config) as client:
        writer = await client.create(ack_quorum=3)
        await writer.append(b"0")
        busy = writer.metadata.last_ensemble.bookies[0]
        cluster.bookies[busy].refuse = refusing(Code.TOO_MANY_REQUESTS)
        writer.submit(b"1")
        await trio.sleep(2)
        if dies:
            await cluster.stop(busy)
        else:
            cluster.bookies[busy].is_silent = True
        assert await writer.append(b"2") == 2
        assert busy not in writer.metadata.last_ensemble.bookies


async def test_a_bookie_over_capacity_is_replaced_before_the_retry_timeout_ends_the_writer(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    await cluster.start("b4:1")
    config = ClientConfig(overload_timeout_s=60.0, unavailable_timeout_s=10.0)
    async with cluster.client(config) as client:
        writer = await client.create()
        await writer.append(b"0")
        busy, other, _ = writer.metadata.last_ensemble.bookies
        cluster.bookies[busy].refuse = refusing(Code.TOO_MANY_REQUESTS)
        await writer.append(b"1")
        await trio.sleep(30)
        await writer.append(b"2")
        assert busy in writer.metadata.last_ensemble.bookies  # no entry waits for it
        cluster.bookies[other].refuse = refusing(Code.TOO_MANY_REQUESTS)
        await writer.append(b"3")
        assert len(writer.metadata.ensembles) == 2


@pytest.mark.parametrize("spares", [0, 2])
async def test_a_bookie_over_capacity_and_a_dead_one_do_not_block_entries_for_ever(
    cluster: DictCluster, autojump_clock: MockClock, spares: int
) -> None:
    """It answers probes and refuses each add, so it alternates between failing and not failing."""
    for number in range(spares):
        await cluster.start(f"b{4 + number}:1")
    config = ClientConfig(delay_ensemble_change=True, overload_timeout_s=3600.0)
    async with cluster.client(config) as client:
        writer = await client.create()
        await writer.append(b"0")
        dead, busy, _ = writer.metadata.last_ensemble.bookies
        await cluster.stop(dead)
        await writer.append(b"1")
        cluster.bookies[busy].refuse = refusing(Code.TOO_MANY_REQUESTS)
        if spares:
            assert await writer.append(b"2") == 2
            assert dead not in writer.metadata.last_ensemble.bookies
        else:
            with pytest.raises(LedgerWriteError, match=r"no ack quorum for entry 2 in 10 s: .*TOO_MANY"):
                await writer.append(b"2")
