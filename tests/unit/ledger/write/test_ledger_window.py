"""The bound of a writer's memory while one replica does not reply: the writer waits."""

# covers: ledger/config.py

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.config import ClientConfig
from ledger.transport.transport import TransportConfig
from tests.fakes.dict_bookies import DictCluster

PATIENT = TransportConfig(add_timeout_s=1e6)  # a silent bookie is not given up


@pytest.mark.parametrize(
    "config",
    [
        ClientConfig(transport=PATIENT, entries_in_flight_max=5),
        ClientConfig(transport=PATIENT, bytes_in_flight_max=5 * 1100 - 1000),
    ],
    ids=["entries", "bytes"],
)
async def test_append_many_waits_for_the_slowest_replica_although_all_is_confirmed(
    cluster: DictCluster, autojump_clock: MockClock, config: ClientConfig
) -> None:
    cluster.bookies["b3:1"].is_silent = True
    async with cluster.client(config) as client:
        writer = await client.create()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.append_many, [b"x" * 1000] * 20)
            await trio.sleep(10)
            assert (writer.last_pushed, writer.lac) == (4, 4)
            await cluster.stop("b3:1")  # its connection is lost: no entry waits for it any more
        assert writer.lac == 19


async def test_append_waits_for_the_slowest_replica(cluster: DictCluster, autojump_clock: MockClock) -> None:
    cluster.bookies["b3:1"].is_silent = True
    async with cluster.client(ClientConfig(transport=PATIENT, entries_in_flight_max=5)) as client:
        writer = await client.create()

        async def append_four() -> None:
            for _ in range(4):
                await writer.append(b"x")

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(append_four)
            await trio.sleep(10)
            assert (writer.last_pushed, writer.lac) == (4, 4)
            await cluster.stop("b3:1")
        assert writer.lac == 19


async def test_a_caller_waits_for_a_lower_limit_although_all_is_confirmed(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    cluster.bookies["b3:1"].is_silent = True
    async with cluster.client(ClientConfig(transport=PATIENT)) as client:
        writer = await client.create()
        await writer.append_many([b"x" * 1000] * 20)
        await writer.wait_bytes_in_flight_below(writer.bytes_in_flight + 1)
        is_below = trio.Event()

        async def wait() -> None:
            await writer.wait_bytes_in_flight_below(writer.bytes_in_flight)
            is_below.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert writer.lac == 19
            assert not is_below.is_set()
            await cluster.stop("b3:1")
            await is_below.wait()
        writer.abandon()
        await writer.wait_bytes_in_flight_below(0)


async def test_bytes_in_flight_are_bounded_by_default(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    cluster.bookies["b3:1"].is_silent = True
    async with cluster.client(ClientConfig(transport=PATIENT)) as client:
        writer = await client.create()
        with trio.move_on_after(10) as scope:
            await writer.append_many([b"x" * 1_000_000] * 50)
        assert scope.cancelled_caught
        assert 30_000_000 < writer.bytes_in_flight < 36_000_000


@pytest.mark.slow
async def test_entries_in_flight_are_bounded_by_default(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    cluster.bookies["b3:1"].is_silent = True
    async with cluster.client(ClientConfig(transport=PATIENT)) as client:
        writer = await client.create()
        with trio.move_on_after(10) as scope:
            await writer.append_many([b""] * 20_000)
        assert scope.cancelled_caught
        assert writer.last_pushed + 1 == ClientConfig().entries_in_flight_max < 20_000


@pytest.fixture
def slow_metadata_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of the newest metadata takes a second."""
    real = LedgerCatalog.get_newest

    async def slow(self: LedgerCatalog, ledger_id: int) -> Versioned:
        await trio.sleep(1)
        return await real(self, ledger_id)

    monkeypatch.setattr(LedgerCatalog, "get_newest", slow)


@pytest.mark.parametrize("entries_max", [1, 2, 5, 19])
@pytest.mark.usefixtures("slow_metadata_reads")
async def test_acknowledgements_held_for_a_read_of_the_metadata_free_capacity(
    cluster: DictCluster, autojump_clock: MockClock, entries_max: int
) -> None:
    """A new writer's connections are all new, so its first window is acknowledged before anything counts."""
    async with cluster.client(ClientConfig(entries_in_flight_max=entries_max)) as client:
        writer = await client.create()
        with trio.fail_after(100):
            await writer.append_many([b"x"] * 20)
        assert writer.lac == 19


async def test_an_ensemble_change_that_lets_entries_be_confirmed_frees_capacity(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start("b4:1")
    await cluster.start("b5:1")
    real = LedgerCatalog.put

    async def slow_put(self: LedgerCatalog, *arguments: Any, **keywords: Any) -> Versioned:
        await trio.sleep(3)
        return await real(self, *arguments, **keywords)

    async with cluster.client(ClientConfig(transport=PATIENT, entries_in_flight_max=1)) as client:
        writer = await client.create(ensemble_size=4, write_quorum=2, ack_quorum=1)
        for _ in range(2):
            await writer.append(b"x")
        await trio.sleep(1)
        monkeypatch.setattr(LedgerCatalog, "put", slow_put)
        third = writer.metadata.last_ensemble.bookies[2]
        cluster.bookies[
            third
        ].is_silent = True  # from entry 2 on, which the fourth bookie has too; entry 3 is on others
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.append_many, [b"x"] * 18)
            await trio.sleep(1)
            assert (writer.last_pushed, writer.lac) == (2, 2)
            for bookie in cluster.bookies.values():
                bookie.delay_s = 0.5  # so entry 3 is acknowledged after the change has begun
            await cluster.stop(third)
            await trio.sleep(1)
            assert (writer.last_pushed, writer.lac) == (3, 2)  # acknowledged, but the change is on its way
            await trio.sleep(100)
            assert writer.lac == 19
            nursery.cancel_scope.cancel()
