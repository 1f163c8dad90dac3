"""Bookies that die, refuse, return and are replaced while a writer uses them."""

# covers: ledger/write/handle.py
# covers: ledger/write/repair_steps.py

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledger.catalog.catalog import open_catalog
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import (
    AccessDeniedError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerWriteError,
)
from ledger.metadata import LedgerState
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, open_memory_store
from ledger.wire.messages import AddRequest
from ledger.write.handle import WriteHandle
from tests.fakes.dict_bookies import DictCluster

IMPATIENT = ClientConfig(unavailable_timeout_s=3.0)


async def test_a_dead_bookie_is_replaced_by_a_spare_one(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    await cluster.start("b4:1")
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"%d" % number for number in range(10)])
        dead = writer.metadata.last_ensemble.bookies[1]
        await cluster.stop(dead)
        assert await writer.append_many([b"%d" % number for number in range(10, 20)]) == range(10, 20)
        await trio.testing.wait_all_tasks_blocked()
        ensembles = (await client.metadata(writer.ledger_id)).ensembles
        assert dead not in ensembles[-1].bookies
        assert ensembles[0].first_entry_id == 0
        spare = next(bookie for bookie in ensembles[-1].bookies if bookie not in ensembles[0].bookies)
        await writer.append(b"20")
        await trio.testing.wait_all_tasks_blocked()
        held = cluster.bookies[spare].ledgers[writer.ledger_id].entries
        assert sorted(held) == list(range(ensembles[-1].first_entry_id, 21))
        await writer.close()
        async with await client.open(writer.ledger_id) as reader:
            assert [int(entry.payload) for entry in await reader.read(0, 20)] == list(range(21))


async def test_without_a_spare_the_writer_goes_on_with_two_bookies_of_three(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(IMPATIENT) as client:
        writer = await client.create()
        await writer.append(b"0")
        await cluster.stop("b2:1")
        await writer.append_many([b"x"] * 50)
        await trio.sleep(60)
        await writer.append_many([b"x"] * 50)
        assert len((await client.metadata(writer.ledger_id)).ensembles) == 1
        await cluster.start("b2:1")
        await trio.sleep(10)
        await writer.append(b"again on all three")
        await trio.testing.wait_all_tasks_blocked()
        assert writer.lac in cluster.bookies["b2:1"].ledgers[writer.ledger_id].entries
        await writer.close()
        async with await client.open(writer.ledger_id) as reader:
            assert len(await reader.read(0, 101)) == 102


async def test_without_an_ack_quorum_entries_wait_and_are_confirmed_when_a_bookie_returns(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(IMPATIENT) as client:
        writer = await client.create()
        await writer.append(b"0")
        await cluster.stop("b1:1", registered=True)
        await cluster.stop("b2:1", registered=True)
        entry_id = writer.submit(b"1")
        with trio.move_on_after(2) as scope:
            await writer.wait_confirmed(entry_id)
        assert scope.cancelled_caught
        assert writer.lac == 0
        cluster.revive("b2:1")
        await writer.wait_confirmed(entry_id)
        assert entry_id in cluster.bookies["b2:1"].ledgers[writer.ledger_id].entries


async def test_when_the_retry_timeout_is_over_the_error_names_bookies_and_causes(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(IMPATIENT) as client:
        writer = await client.create()
        await writer.append(b"0")
        errors: list[BaseException | None] = []
        writer.on_confirmed(lambda lac, error: errors.append(error))
        await cluster.stop("b1:1")
        await cluster.stop("b2:1")
        with pytest.raises(LedgerWriteError, match=r"no ack quorum for entry 1 in 3 s: .*b\d:1.*refuses"):
            await writer.append(b"1")
        assert isinstance(errors[-1], LedgerWriteError)
        with pytest.raises(LedgerWriteError):
            writer.submit(b"2")
        # The ledger can still be closed at the last confirmed entry. The callers of later ones got the error.
        await writer.close()
        metadata = await client.metadata(writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id, metadata.length_bytes) == (LedgerState.CLOSED, 0, 1)


async def test_close_raises_if_it_leaves_pending_entries_out(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(IMPATIENT) as client:
        writer = await client.create()
        await writer.append(b"0")
        await cluster.stop("b1:1")
        await cluster.stop("b2:1")
        writer.submit(b"never confirmed")
        with pytest.raises(LedgerWriteError, match="no ack quorum for entry 1"):
            await writer.close()
        assert (await client.metadata(writer.ledger_id)).last_entry_id == 0
        await writer.close()


async def test_the_only_bookie_may_be_restarted(cluster: DictCluster, autojump_clock: MockClock) -> None:
    async with cluster.client() as client:
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"0")
        (bookie,) = writer.metadata.last_ensemble.bookies
        for name in {"b1:1", "b2:1", "b3:1"} - {bookie}:
            await cluster.stop(name)
        await cluster.stop(bookie)
        pending = [writer.submit(b"%d" % number) for number in range(1, 5)]
        await trio.sleep(1.0)
        assert writer.lac == 0
        await cluster.start(bookie)
        await writer.wait_confirmed(pending[-1])
        assert sorted(cluster.bookies[bookie].ledgers[writer.ledger_id].entries) == list(range(5))


async def test_a_read_only_bookie_is_replaced(cluster: DictCluster, autojump_clock: MockClock) -> None:
    await cluster.start("b4:1")
    async with cluster.client() as client:
        writer = await client.create()
        full = cluster.bookies[writer.metadata.last_ensemble.bookies[0]]
        full.refuse = lambda request: Code.READ_ONLY if isinstance(request, AddRequest) else None
        await writer.append_many([b"x"] * 10)
        await trio.testing.wait_all_tasks_blocked()
        assert full.name not in (await client.metadata(writer.ledger_id)).last_ensemble.bookies


async def test_a_silent_bookie_is_given_up_and_its_entries_leave_memory(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        cluster.bookies["b3:1"].is_silent = True
        await writer.append_many([b"x" * 1000] * 10)
        assert writer.bytes_in_flight >= 10_000  # the silent bookie has not replied yet
        await trio.sleep(30)
        assert writer.bytes_in_flight == 0


async def test_bytes_in_flight_are_bounded_by_a_silent_bookie(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    config = ClientConfig(bytes_in_flight_max=100_000)
    async with cluster.client(config) as client:
        writer = await client.create()
        cluster.bookies["b3:1"].is_silent = True
        with trio.move_on_after(1) as scope:
            while True:
                await writer.wait_capacity()
                writer.submit(b"x" * 1000)
        assert scope.cancelled_caught
        assert writer.bytes_in_flight <= 102_000
        with trio.fail_after(30):
            await writer.wait_capacity()  # the silent bookie is given up meanwhile
        assert writer.lac == writer.last_pushed


async def test_a_fenced_writer_stops_for_good(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        async with cluster.client() as other, await other.open(writer.ledger_id) as reader:
            assert (reader.is_closed, reader.last_confirmed) == (True, 0)
        with pytest.raises(LedgerFencedError, match="taken over"):
            await writer.append(b"1")
        with pytest.raises(LedgerFencedError):
            await writer.close()


async def test_a_writer_that_sees_only_the_closed_state_raises_that_it_was_taken_over(
    cluster: DictCluster,
) -> None:
    # The recovery was quick: the writer reads the metadata only after the second change.
    async with cluster.client() as client, open_memory_store(cluster.tree) as store:
        writer = await client.create()
        await writer.append(b"0")
        catalog = await open_catalog(store, "/ledgers")
        current = await catalog.get(writer.ledger_id)
        await catalog.put(writer.ledger_id, current.metadata.closed(0, 1), expected=current.version)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LedgerFencedError, match="another client closed it at entry 0"):
            writer.submit(b"1")
        with pytest.raises(LedgerFencedError):
            await writer.close()


async def test_a_fencing_bookie_ends_a_writer_that_has_not_read_the_metadata(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        await trio.testing.wait_all_tasks_blocked()
        for bookie in cluster.bookies.values():
            bookie.ledgers[writer.ledger_id].fenced = True
        with pytest.raises(LedgerFencedError, match="has fenced it"):
            await writer.append(b"1")
        with pytest.raises(LedgerFencedError):
            await writer.close()
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN


async def test_a_bookie_with_another_key_ends_the_writer(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create(password=b"mine")
        await writer.append(b"0")
        await trio.testing.wait_all_tasks_blocked()
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].ledgers[writer.ledger_id].key = b"x" * 20
        with pytest.raises(AccessDeniedError):
            await writer.append(b"1")


async def test_an_idle_writer_notices_in_the_metadata_that_its_ledger_was_recovered(
    cluster: DictCluster,
) -> None:
    # apache/bookkeeper#4812: all bookies replaced at their addresses know of no fence.
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        async with cluster.client() as other:
            await other.open(writer.ledger_id)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LedgerFencedError):
            writer.submit(b"1")


async def test_acknowledgements_of_replaced_bookies_count_only_if_the_ledger_is_still_the_writers(
    cluster: DictCluster, autojump_clock: MockClock, writers_without_watch: None
) -> None:
    # apache/bookkeeper#4812 again, without the watch on the metadata: the last line of defence.
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        for name in list(cluster.bookies):
            await cluster.stop(name, registered=True)
        entry_id = writer.submit(b"acknowledged by bookies that know of no fence")
        await trio.sleep(0.5)
        async with cluster.client() as other:
            for name in cluster.bookies:
                cluster.revive(name)
            assert (await other.open(writer.ledger_id)).last_confirmed == 0
            for name in list(cluster.bookies):
                cluster.wipe(name)
        with pytest.raises(LedgerFencedError):
            await writer.wait_confirmed(entry_id)
        assert writer.lac == 0


@pytest.fixture
def writers_without_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers that do not notice when their metadata change."""

    async def follow_nothing(self: WriteHandle) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(WriteHandle, "_follow_metadata", follow_nothing)


@pytest.mark.usefixtures("writers_without_watch")
async def test_a_writer_does_not_close_a_ledger_that_is_being_recovered(cluster: DictCluster) -> None:
    async with cluster.client() as client, open_memory_store(cluster.tree) as store:
        catalog = await open_catalog(store, "/ledgers")
        writer = await client.create()
        await writer.append(b"0")
        found = await catalog.get(writer.ledger_id)
        await catalog.put(writer.ledger_id, found.metadata.in_recovery(), expected=found.version)
        with pytest.raises(LedgerFencedError, match="in recovery"):
            await writer.close()
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY


@pytest.mark.usefixtures("writers_without_watch")
@pytest.mark.parametrize(
    ("last", "length", "agrees"), [(1, 2, True), (2, 3, False), (1, 3, False), (-1, 0, False)]
)
async def test_a_close_by_another_client_is_success_only_at_the_same_end(
    cluster: DictCluster, last: int, length: int, agrees: bool
) -> None:
    async with cluster.client() as client, open_memory_store(cluster.tree) as store:
        catalog = await open_catalog(store, "/ledgers")
        writer = await client.create()
        await writer.append_many([b"0", b"1"])
        found = await catalog.get(writer.ledger_id)
        await catalog.put(writer.ledger_id, found.metadata.closed(last, length), expected=found.version)
        if agrees:
            await writer.close()
        else:
            with pytest.raises(LedgerFencedError, match=f"closed at entry {last} with {length} bytes"):
                await writer.close()


async def test_after_an_ensemble_change_of_unknown_outcome_nothing_is_confirmed(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start("b4:1")
    async with cluster.client(IMPATIENT) as client:
        writer = await client.create(ack_quorum=3)
        await writer.append(b"0")
        real = MemoryStore.put

        async def put_then_lose(self: MemoryStore, path: str, value: bytes, *, expected: int = -1) -> Any:
            await real(self, path, value, expected=expected)
            self.suspend()
            raise ConnectionLostError(path)

        monkeypatch.setattr(MemoryStore, "put", put_then_lose)
        await cluster.stop(writer.metadata.last_ensemble.bookies[0])
        with pytest.raises(LedgerWriteError, match="outcome of an ensemble change is unknown"):
            await writer.append(b"1")
        assert writer.lac == 0


async def test_an_ensemble_change_whose_reply_was_lost_is_found_in_the_store(
    cluster: DictCluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start("b4:1")
    async with cluster.client(IMPATIENT) as client:
        writer = await client.create()
        await writer.append(b"0")
        real = MemoryStore.put

        async def put_and_lose_the_reply(
            self: MemoryStore, path: str, value: bytes, *, expected: int = -1
        ) -> Any:
            await real(self, path, value, expected=expected)
            monkeypatch.setattr(MemoryStore, "put", real)
            raise ConnectionLostError(path)

        monkeypatch.setattr(MemoryStore, "put", put_and_lose_the_reply)
        dead = writer.metadata.last_ensemble.bookies[0]
        await cluster.stop(dead)
        await writer.append_many([b"x"] * 10)
        await trio.sleep(5)
        assert writer.metadata == await client.metadata(writer.ledger_id)
        assert dead not in writer.metadata.last_ensemble.bookies


async def test_leaving_the_block_by_an_exception_does_not_close_the_ledger(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        with pytest.raises(KeyError):
            await _fail_inside(writer)
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN
        with pytest.raises(LedgerClosedError, match="abandoned"):
            writer.submit(b"1")


async def _fail_inside(writer: Any) -> None:
    async with writer:
        await writer.append(b"0")
        raise KeyError("an error of the caller")


async def test_a_cancelled_append_leaves_the_handle_usable(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].is_silent = True
        with trio.move_on_after(1) as scope:
            await writer.append(b"perhaps")
        assert scope.cancelled_caught
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].is_silent = False
        assert await writer.append(b"certainly") == 1
        await writer.close()
        async with await client.open(writer.ledger_id) as reader:
            assert [entry.payload for entry in await reader.read(0, 1)] == [b"perhaps", b"certainly"]


async def test_ending_the_client_ends_its_writers_and_wakes_waiting_tasks(cluster: DictCluster) -> None:
    async with trio.open_nursery() as nursery, cluster.client() as client:
        writer = await client.create()
        for bookie in cluster.bookies.values():
            bookie.is_silent = True

        async def wait() -> None:
            with pytest.raises(LedgerClosedError):
                await writer.append(b"without a reply")

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
