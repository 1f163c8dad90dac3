"""Options of a writer: quorum timeout, delayed changes, idle LAC, deferred sync, chosen ids."""

# covers: ledger/transport/bookie_requests.py
# covers: ledger/write/adv_handle.py
# covers: ledger/write/deferred_sync.py

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.catalog import LedgerCatalog
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import (
    DuplicateEntryIdError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerWriteError,
)
from ledger.metadata import LedgerState
from ledger.transport.transport import TransportConfig
from ledger.wire.messages import AddRequest, ForceLedgerRequest, WriteLacRequest
from ledger.write.deferred_sync import Durable, pack_with_durable_lac
from ledger.write.explicit_lac import IdleLac
from tests.fakes.dict_bookies import DictCluster


def refusing(code: Code) -> Any:
    return lambda request: code if isinstance(request, AddRequest) else None


def refusing_force(request: object) -> Code | None:
    return Code.IO_ERROR if isinstance(request, ForceLedgerRequest) else None


async def test_an_entry_not_confirmed_in_time_ends_the_writer_and_the_ledger_is_closed_before_it(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    config = ClientConfig(add_quorum_timeout_s=2.0, transport=TransportConfig(add_timeout_s=60.0))
    async with cluster.client(config) as client:
        writer = await client.create()
        await writer.append(b"0")
        await trio.sleep(10)  # idle writers are not overdue
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].is_silent = True
        started = trio.current_time()
        with pytest.raises(
            LedgerWriteError, match=r"entry 1 was not confirmed within 2 s \(add_quorum_timeout_s"
        ):
            await writer.append(b"1")
        assert 2.0 <= trio.current_time() - started <= 2.5
        await trio.sleep(1)
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)
        await writer.close()


async def test_after_a_quorum_timeout_a_ledger_in_recovery_is_left_to_the_recovery(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    config = ClientConfig(add_quorum_timeout_s=2.0, transport=TransportConfig(add_timeout_s=60.0))
    async with cluster.client(config) as client, cluster.client() as other:
        writer = await client.create()
        await writer.append(b"0")
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].is_silent = True
        writer.submit(b"1")
        with trio.move_on_after(0.1):
            await other.open(writer.ledger_id)
        await trio.sleep(5)
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY


async def test_a_delayed_change_waits_until_a_quorum_is_in_danger(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    for name in ("b4:1", "b5:1"):
        await cluster.start(name)
    async with cluster.client(ClientConfig(delay_ensemble_change=True)) as client:
        writer = await client.create()
        await writer.append(b"0")
        first, second, _ = writer.metadata.last_ensemble.bookies
        await cluster.stop(first)
        await writer.append_many([b"x"] * 10)
        await trio.sleep(30)
        assert len((await client.metadata(writer.ledger_id)).ensembles) == 1
        await cluster.stop(second)
        await writer.append_many([b"x"] * 10)
        await trio.sleep(30)
        (_, changed) = (await client.metadata(writer.ledger_id)).ensembles
        assert not {first, second} & set(changed.bookies)
        await writer.close()
        async with await client.open(writer.ledger_id) as reader:
            assert len(await reader.read(0, 20)) == 21


async def test_a_delayed_change_does_not_wait_for_a_read_only_bookie(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    await cluster.start("b4:1")
    async with cluster.client(ClientConfig(delay_ensemble_change=True)) as client:
        writer = await client.create()
        full = writer.metadata.last_ensemble.bookies[0]
        cluster.bookies[full].refuse = refusing(Code.READ_ONLY)
        await writer.append_many([b"x"] * 3)
        await trio.sleep(1)
        assert full not in writer.metadata.last_ensemble.bookies


async def test_bookies_that_all_fail_do_not_replace_each_other_without_a_pause(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    for name in ("b4:1", "b5:1"):
        await cluster.start(name)
    async with cluster.client(ClientConfig(unavailable_timeout_s=10.0)) as client:
        writer = await client.create()
        await writer.append(b"0")
        for name in cluster.bookies:
            await cluster.stop(name, registered=True)
        with pytest.raises(LedgerWriteError, match="no ack quorum for entry 1"):
            await writer.append(b"1")
        ensembles = (await client.metadata(writer.ledger_id)).ensembles
        assert len(ensembles) == 2  # all changes begin at entry 1
        async with cluster.client() as reader:
            version = await _version(cluster, writer.ledger_id)
            assert version < 20, reader


async def _version(cluster: DictCluster, ledger_id: int) -> int:
    from ledger.catalog.catalog import open_catalog
    from ledger.metadata_store.memory import open_memory_store

    async with open_memory_store(cluster.tree) as store:
        return (await (await open_catalog(store, "/ledgers")).get(ledger_id)).version


async def test_the_number_of_ensemble_changes_may_be_limited(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    for name in ("b4:1", "b5:1"):
        await cluster.start(name)
    async with cluster.client(ClientConfig(ensemble_changes_max=1)) as client:
        writer = await client.create()
        await writer.append(b"0")
        await cluster.stop(writer.metadata.last_ensemble.bookies[0])
        await writer.append_many([b"x"] * 5)
        await trio.sleep(1)
        await cluster.stop(writer.metadata.last_ensemble.bookies[1])
        await writer.append(b"x")
        await trio.sleep(1)
        with pytest.raises(LedgerWriteError, match="changed 1 times, which is the limit"):
            await writer.append(b"x")


def test_an_idle_lac_is_written_once_and_a_busy_one_not() -> None:
    idle = IdleLac()
    assert not idle.is_due(-1, -1)
    assert not idle.is_due(0, 1)
    assert not idle.is_due(1, 2)
    assert idle.is_due(2, 2)
    assert idle.is_due(2, 2)  # it could not be written
    idle.on_written(2)
    assert not idle.is_due(2, 2)
    assert not idle.is_due(3, 3)
    assert idle.is_due(3, 3)


async def test_an_idle_writers_lac_reaches_readers_by_itself(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(ClientConfig(explicit_lac_interval_s=0.5)) as client:
        writer = await client.create()
        await writer.append_many([b"0", b"1", b"2"])
        reader = await client.open(writer.ledger_id, recover=False)
        assert await reader.wait_last_confirmed_beyond(1, timeout_s=5) == 2
        written = sum(isinstance(one, WriteLacRequest) for one in cluster.bookies["b1:1"].requests)
        await trio.sleep(60)
        assert (
            written == sum(isinstance(one, WriteLacRequest) for one in cluster.bookies["b1:1"].requests) == 1
        )
        await writer.close()


@pytest.mark.parametrize("version", [2, 3])
async def test_with_deferred_sync_only_force_moves_the_lac(cluster: DictCluster, version: Any) -> None:
    async with cluster.client(ClientConfig(transport=TransportConfig(add_version=version))) as client:
        writer = await client.create(deferred_sync=True)
        reported: list[int] = []
        writer.on_confirmed(lambda lac, error: reported.append(lac))
        await writer.force()  # no entry was acknowledged: nothing to do
        for entry_id in range(3):
            assert await writer.append(b"%d" % entry_id) == entry_id
        assert (writer.lac, reported) == (-1, [])
        await writer.force()
        assert (writer.lac, reported) == (2, [2])
        assert all(bookie.synced == [writer.ledger_id] for bookie in cluster.bookies.values())
        await writer.append(b"3")
        adds = [one for one in cluster.bookies["b1:1"].requests if isinstance(one, AddRequest)]
        assert all(add.deferred_sync for add in adds)
        assert [int.from_bytes(add.body[16:24], "big", signed=True) for add in adds] == [-1, -1, -1, 2]
        await writer.close()  # which forces
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.last_entry_id, metadata.length_bytes) == (3, 4)
        async with await client.open(writer.ledger_id) as reader:
            assert len(await reader.read(0, 3)) == 4


def test_the_durable_position_never_goes_back() -> None:
    durable = Durable()
    durable.forced(5, 50)
    durable.forced(3, 30)  # a call that began earlier and ended later
    assert (durable.lac, durable.length_bytes) == (5, 50)


def test_no_entry_says_that_more_is_durable_than_is_confirmed() -> None:
    durable = Durable()
    durable.forced(5, 50)
    with pytest.raises(AssertionError, match="entries up to 5 are durable, but only 4 is confirmed"):
        pack_with_durable_lac(lambda *entry: b"", durable)(6, 4, 60, b"payload")


async def test_force_makes_exactly_the_entries_acknowledged_before_it_durable(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create(deferred_sync=True)
        await writer.append_many([b"a", b"bc"])
        cluster.bookies["b2:1"].delay_s = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.force)
            await trio.sleep(0.5)
            await writer.append(b"def")  # acknowledged by the other two while the force is on its way
            assert writer.lac == -1
        assert writer.lac == 1
        cluster.bookies["b2:1"].refuse = refusing_force
        with pytest.raises(LedgerWriteError, match="entries after 1 are not synced"):
            await writer.force()
        await writer.close()
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.last_entry_id, metadata.length_bytes) == (1, 3)


@pytest.mark.parametrize("version", [2, 3])
async def test_a_force_goes_over_the_connection_of_the_adds(cluster: DictCluster, version: Any) -> None:
    """Over another connection, a bookie that was restarted in between would sync only what it still has."""
    async with cluster.client(ClientConfig(transport=TransportConfig(add_version=version))) as client:
        writer = await client.create(deferred_sync=True)
        await writer.append(b"0")
        await writer.force()
        for bookie in cluster.bookies.values():
            by = {
                stream
                for stream, request in zip(bookie.request_streams, bookie.requests, strict=True)
                if isinstance(request, AddRequest | ForceLedgerRequest)
            }
            assert len(by) == 1


async def test_one_bookie_that_does_not_sync_ends_a_deferred_writer_at_its_lac(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create(deferred_sync=True)
        await writer.append(b"0")
        await writer.force()
        await writer.append(b"1")
        cluster.bookies["b2:1"].refuse = refusing_force
        with pytest.raises(LedgerWriteError, match=r"entries after 0 are not synced and may be lost: .*b2:1"):
            await writer.force()
        with pytest.raises(LedgerWriteError):
            writer.submit(b"2")
        await writer.close()
        assert (await client.metadata(writer.ledger_id)).last_entry_id == 0


async def test_any_failing_bookie_ends_a_deferred_writer(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    await cluster.start("b4:1")
    async with cluster.client() as client:
        writer = await client.create(deferred_sync=True)
        await writer.append(b"0")
        refused = writer.metadata.last_ensemble.bookies[1]
        cluster.bookies[refused].refuse = refusing(Code.READ_ONLY)
        writer.submit(b"1")
        await trio.sleep(1)
        with pytest.raises(LedgerWriteError, match="not synced"):
            writer.submit(b"2")
        assert len(writer.metadata.ensembles) == 1


async def test_a_bookie_restarted_before_force_ends_the_writer(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """It syncs the entries that it has, and it lost some that it acknowledged."""
    async with cluster.client() as client:
        writer = await client.create(deferred_sync=True)
        await writer.append(b"0")
        await trio.testing.wait_all_tasks_blocked()
        await cluster.stop("b2:1")
        cluster.wipe("b2:1")
        await cluster.start("b2:1")
        await trio.sleep(1)
        with pytest.raises(
            LedgerWriteError, match=r"not synced and may be lost: .*b2:1: the connection was lost"
        ):
            await writer.force()
        assert writer.lac == -1


async def test_a_bookie_restarted_during_a_read_of_the_metadata_ends_the_writer(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read is for another bookie's acknowledgements. After it the writer notices the lost connection."""
    slow = cluster.bookies["b3:1"]
    slow.delay_s = 5.0
    async with cluster.client() as client:
        writer = await client.create(deferred_sync=True)
        await writer.append(b"0")
        real = LedgerCatalog.get_newest

        async def slowly(self: LedgerCatalog, ledger_id: int) -> Any:
            await trio.sleep(5)
            return await real(self, ledger_id)

        monkeypatch.setattr(LedgerCatalog, "get_newest", slowly)
        await trio.sleep(6)  # the third bookie has replied, over a connection that is not trusted
        slow.delay_s = 0.0
        await cluster.stop("b1:1")
        cluster.wipe("b1:1")
        await cluster.start("b1:1")
        await trio.sleep(6)
        with pytest.raises(
            LedgerWriteError, match=r"not synced and may be lost: .*b1:1: the connection was lost"
        ):
            await writer.force()
        assert writer.lac == -1


async def test_force_on_an_ordinary_ledger_asks_every_bookie_and_does_not_end_the_writer(
    cluster: DictCluster,
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        await writer.force()
        cluster.bookies["b1:1"].refuse = lambda request: (
            Code.IO_ERROR if isinstance(request, ForceLedgerRequest) else None
        )
        with pytest.raises(LedgerWriteError, match="not every bookie has synced"):
            await writer.force()
        assert await writer.append(b"1") == 1
        await writer.close()
        with pytest.raises(LedgerClosedError):
            await writer.force()


async def test_entries_with_chosen_ids_are_confirmed_when_there_is_no_gap_before_them(
    cluster: DictCluster,
) -> None:
    async with cluster.client() as client:
        writer = await client.create_adv(ledger_id=77)
        assert writer.ledger_id == 77
        order = [2, 0, 3, 1]
        confirmed: list[int] = []

        async def append(entry_id: int) -> None:
            await writer.append(entry_id, b"%d" % entry_id)
            confirmed.append(entry_id)

        async with trio.open_nursery() as nursery:
            for entry_id in order[:-1]:
                nursery.start_soon(append, entry_id)
                await trio.testing.wait_all_tasks_blocked()
            assert (confirmed, writer.lac, writer.next_id) == ([0], 0, 1)
            assert "2 waiting for entry 1" in repr(writer)
            nursery.start_soon(append, order[-1])
        assert writer.lac == 3
        await writer.close()
        async with await client.open(77) as reader:
            entries = await reader.read(0, 3)
            assert [int(entry.payload) for entry in entries] == [0, 1, 2, 3]
            assert [entry.length_bytes for entry in entries] == [1, 2, 3, 4]


async def test_an_id_is_accepted_once(cluster: DictCluster) -> None:
    async with cluster.client() as client, await client.create_adv() as writer:
        await writer.append(0, b"0")
        writer.submit(5, b"5")
        for entry_id in (0, 5):
            with pytest.raises(DuplicateEntryIdError, match=f"entry {entry_id} was submitted before"):
                writer.submit(entry_id, b"again")
        with pytest.raises(ValueError, match="begin at 0"):
            writer.submit(-1, b"")
        with pytest.raises(EntryTooLargeError):
            writer.submit(1, b"x" * 6_000_000)
        writer.submit(1, b"1")  # the id of a refused entry is free
        await writer.wait_confirmed(1)


async def test_closing_ends_the_ledger_before_the_gap_and_fails_the_entries_behind_it(
    cluster: DictCluster,
) -> None:
    async with cluster.client() as client:
        writer = await client.create_adv()
        await writer.append(0, b"0")
        failed: list[int] = []

        async def wait(entry_id: int) -> None:
            with pytest.raises(LedgerClosedError, match="closed at entry 0"):
                await writer.append(entry_id, b"behind the gap")
            failed.append(entry_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, 2)
            nursery.start_soon(wait, 3)
            await trio.testing.wait_all_tasks_blocked()
            await writer.close()
        assert sorted(failed) == [2, 3]
        assert (await client.metadata(writer.ledger_id)).last_entry_id == 0


async def test_entries_behind_a_gap_are_bounded_and_the_gap_can_always_be_filled(
    cluster: DictCluster,
) -> None:
    async with cluster.client(ClientConfig(bytes_in_flight_max=10_000)) as client:
        writer = await client.create_adv()
        for entry_id in range(1, 11):
            await writer.wait_capacity(entry_id)
            writer.submit(entry_id, b"x" * 1000)
        with trio.move_on_after(0.01) as scope:
            await writer.wait_capacity(11)
        assert scope.cancelled_caught
        await writer.append(0, b"")
        await writer.wait_capacity(11)
        await writer.append(11, b"x")
        assert writer.lac == 11
        await writer.close()


async def test_a_fenced_writer_with_chosen_ids_wakes_tasks_that_wait_for_capacity(
    cluster: DictCluster,
) -> None:
    async with cluster.client(ClientConfig(bytes_in_flight_max=1000)) as client, cluster.client() as other:
        writer = await client.create_adv()
        writer.submit(1, b"x" * 2000)

        async def wait() -> None:
            with pytest.raises((LedgerFencedError, LedgerClosedError)):
                await writer.append(2, b"")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await other.open(writer.ledger_id)
