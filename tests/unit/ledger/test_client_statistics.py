"""The counters of a client after known work with three bookies."""

# covers: ledger/runtime/statistics/names.py
# covers: ledger/write/timed_handle.py

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledger.config import ClientConfig
from ledger.errors import BookieError
from ledger.runtime.statistics import names
from ledger.transport.config import TransportConfig
from ledger.write.handle import WriteHandle
from tests.fakes.dict_bookies import DictCluster


async def test_the_counters_are_those_of_the_work_done(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append_many([b"12345"] * 20)
        await writer.append(b"")
        await writer.close()
        await trio.testing.wait_all_tasks_blocked()
        async with await client.open(writer.ledger_id) as reader:
            await reader.read(0, 20)
        await client.delete(writer.ledger_id)
        seen = client.statistics()
    happened = {name: value for name, value in seen.counters.items() if value}
    assert happened.pop(names.CONNECTIONS_STARTED) >= 3
    assert happened == {
        names.LEDGERS_CREATED: 1,
        names.LEDGERS_OPENED: 1,
        names.LEDGERS_DELETED: 1,
        names.ENTRIES_SUBMITTED: 21,
        names.ENTRIES_CONFIRMED: 21,
        names.BYTES_SUBMITTED: 100,
        names.READS: 1,
        names.ENTRIES_READ: 21,
    }
    assert set(seen.counters) == set(names.COUNTERS)
    assert set(seen.gauges) == set(names.GAUGES)
    assert seen.histograms == {}


async def test_a_writer_at_work_is_counted_too(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        writer = await client.create()
        await writer.append(b"0")
        writer.submit(b"1")
        seen = client.statistics()
        assert seen.counters[names.ENTRIES_SUBMITTED] == 2
        assert seen.counters[names.ENTRIES_CONFIRMED] == 1
        assert seen.gauges[names.PENDING_ADDS] == 1
        assert seen.gauges[names.WRITERS_OPEN] == 1
        assert seen.gauges[names.CONNECTIONS_OPEN] >= 3
        assert type(writer) is WriteHandle  # the one that measures nothing


async def test_a_dead_bookie_shows_in_connections_and_in_ensemble_changes(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    await cluster.start("b4:1")
    async with cluster.client(ClientConfig(statistics=True)) as client:
        writer = await client.create()
        await writer.append(b"0")
        before = client.statistics().counters
        await cluster.stop(writer.metadata.last_ensemble.bookies[1])
        await writer.append(b"1")
        await trio.testing.wait_all_tasks_blocked()
        seen = client.statistics()
    assert seen.counters[names.ENSEMBLE_CHANGES] == 1
    assert seen.histograms[names.ENSEMBLE_CHANGE].count == 1
    assert seen.counters[names.CONNECTIONS_LOST] > before[names.CONNECTIONS_LOST] == 0


async def test_a_connection_that_fails_is_counted(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        await cluster.stop("b1:1", registered=True)
        with pytest.raises(BookieError):
            await client.bookie_space("b1:1")
        assert client.statistics().counters[names.CONNECTIONS_FAILED] == 1


async def test_a_recovery_is_counted_and_measured(cluster: DictCluster) -> None:
    async with cluster.client(ClientConfig(statistics=True)) as client:
        writer = await client.create()
        await writer.append(b"0")
        writer.abandon()
        async with await client.open(writer.ledger_id):
            pass
        seen = client.statistics()
    assert seen.counters[names.LEDGERS_RECOVERED] == 1
    assert seen.histograms[names.LEDGER_RECOVER].count == 1
    assert seen.histograms[names.LEDGER_OPEN].count == 1


async def test_each_entry_is_measured_once_from_its_sending_to_its_confirmation(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(ClientConfig(statistics=True)) as client:
        writer = await client.create()
        for bookie in cluster.bookies.values():
            bookie.delay_s = 0.25  # before each reply, so the tenth comes after 2.5 s
        await writer.append_many([b"x"] * 10)
        await writer.append(b"y")
        found = client.statistics().histograms[names.ADD_ENTRY]
    assert found.count == 11
    assert found.max_s == pytest.approx(2.5)
    assert found.sum_s == pytest.approx(0.25 * (sum(range(11)) + 1))


async def test_entries_that_are_confirmed_together_are_each_measured(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(ClientConfig(statistics=True)) as client:
        writer = await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
        slow = cluster.bookies[writer.metadata.last_ensemble.bookies[0]]
        slow.delay_s = 0.25  # it has entries 0, 2, 3, 5; entries 1 and 4 wait for the one before them
        await writer.append_many([b"x"] * 6)
        found = client.statistics().histograms[names.ADD_ENTRY]
    assert found.count == 6
    assert found.sum_s == pytest.approx(0.25 * (1 + 1 + 2 + 3 + 3 + 4))


async def test_a_read_from_a_slow_replica_is_overtaken_and_counted(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(ClientConfig(speculative_read_s=0.5)) as client:
        writer = await client.create()
        await writer.append(b"0")
        await writer.close()
        async with await client.open(writer.ledger_id) as reader:
            for bookie in cluster.bookies.values():
                bookie.delay_s = 0.75
            assert len(await reader.read(0, 0)) == 1
        assert client.statistics().counters[names.SPECULATIVE_READS] == 1


async def test_a_request_without_a_reply_is_counted(cluster: DictCluster, autojump_clock: MockClock) -> None:
    config = ClientConfig(transport=TransportConfig(request_timeout_s=1.0))
    async with cluster.client(config) as client:
        cluster.bookies["b1:1"].is_silent = True
        with pytest.raises(BookieError):
            await client.bookie_space("b1:1")
        assert client.statistics().counters[names.REQUEST_TIMEOUTS] == 1


async def test_a_caller_that_waits_for_capacity_is_counted_once(cluster: DictCluster) -> None:
    async with cluster.client(ClientConfig(entries_in_flight_max=2)) as client:
        writer = await client.create()
        await writer.append_many([b"x"] * 3)
        assert client.statistics().counters[names.CAPACITY_WAITS] == 1


async def test_a_wait_for_a_ledger_to_grow_is_counted_once(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(ClientConfig(statistics=True)) as client:
        writer = await client.create()
        await writer.append_many([b"0", b"1"])
        async with await client.open(writer.ledger_id, recover=False) as reader:
            await reader.wait_last_confirmed_beyond(reader.last_confirmed, timeout_s=5.0)
        seen = client.statistics()
    assert seen.counters[names.LAC_WAITS] == 1
    assert seen.histograms[names.LAC_WAIT].max_s == pytest.approx(5.0)
