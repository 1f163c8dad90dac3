"""Memory of a writer beside a replica that does not answer: it is bounded, and the writer waits."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ledger.catalog import LedgerCatalog, Versioned
from ledger.config import ClientConfig
from ledger.transport import TransportConfig

PATIENT = TransportConfig(add_timeout_s=1e6)  # a silent bookie is not given up


@pytest.mark.parametrize("bound", [{"entries_in_flight_max": 5}, {"bytes_in_flight_max": 5 * 1100 - 1000}])
async def test_append_many_waits_for_the_last_replica_though_all_is_confirmed(
    cluster: Any, autojump_clock: Any, bound: dict[str, int]
) -> None:
    cluster.bookies["b3:1"].is_silent = True
    async with cluster.client(ClientConfig(transport=PATIENT, **bound)) as client:
        writer = await client.create()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.append_many, [b"x" * 1000] * 20)
            await trio.sleep(10)
            assert (writer.last_pushed, writer.lac) == (4, 4)
            await cluster.stop("b3:1")  # its connection is lost: nobody waits for it any more
        assert writer.lac == 19


async def test_append_waits_too(cluster: Any, autojump_clock: Any) -> None:
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


async def test_it_is_so_by_default(cluster: Any, autojump_clock: Any) -> None:
    cluster.bookies["b3:1"].is_silent = True
    async with cluster.client(ClientConfig(transport=PATIENT)) as client:
        writer = await client.create()
        with trio.move_on_after(10) as scope:
            await writer.append_many([b"x" * 1_000_000] * 50)
        assert scope.cancelled_caught
        assert 30_000_000 < writer.bytes_in_flight < 36_000_000


async def test_small_entries_are_bounded_by_their_number_by_default(
    cluster: Any, autojump_clock: Any
) -> None:
    cluster.bookies["b3:1"].is_silent = True
    async with cluster.client(ClientConfig(transport=PATIENT)) as client:
        writer = await client.create()
        with trio.move_on_after(10) as scope:
            await writer.append_many([b""] * 20_000)
        assert scope.cancelled_caught
        assert writer.last_pushed + 1 == ClientConfig().entries_in_flight_max < 20_000


@pytest.fixture
def slow_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the metadata takes a second."""
    real = LedgerCatalog.get_newest

    async def slow(self: LedgerCatalog, ledger_id: int) -> Versioned:
        await trio.sleep(1)
        return await real(self, ledger_id)

    monkeypatch.setattr(LedgerCatalog, "get_newest", slow)


@pytest.mark.parametrize("entries_max", [1, 2, 5, 19])
@pytest.mark.usefixtures("slow_looks")
async def test_acknowledgements_that_waited_for_a_look_at_the_metadata_make_room(
    cluster: Any, autojump_clock: Any, entries_max: int
) -> None:
    """A new writer's connections are all new, so its first window is acknowledged before anything counts."""
    async with cluster.client(ClientConfig(entries_in_flight_max=entries_max)) as client:
        writer = await client.create()
        with trio.fail_after(100):
            await writer.append_many([b"x"] * 20)
        assert writer.lac == 19


async def test_an_ensemble_change_that_lets_entries_be_confirmed_makes_room(
    cluster: Any, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
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
        cluster.bookies[third].is_silent = True  # from entry 2 on, which the fourth has too; 3 is on others
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.append_many, [b"x"] * 18)
            await trio.sleep(1)
            assert (writer.last_pushed, writer.lac) == (2, 2)
            await cluster.stop(third)
            await trio.sleep(1)
            assert (writer.last_pushed, writer.lac) == (3, 2)  # acknowledged, but the change is on its way
            await trio.sleep(100)
            assert writer.lac == 19
            nursery.cancel_scope.cancel()
