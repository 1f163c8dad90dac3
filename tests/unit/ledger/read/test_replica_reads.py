"""Reads that continue when replicas are slow, damaged, over capacity or down."""

# covers: ledger/read/speculative_read.py

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import dlog
from dlog.errors import as_dlog_error
from ledger.client import LedgerClient
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import LedgerReadError, NoSuchEntryError
from ledger.read.replica_rules import EntryRead, reading_order
from ledger.wire.messages import AddRequest, BatchReadRequest, ReadRequest
from tests.fakes.dict_bookies import DictBookie, DictCluster
from tests.fakes.scripted_bookies import request_timers


async def written(client: LedgerClient, count: int, **arguments: Any) -> Any:
    async with await client.create(**arguments) as writer:
        await writer.append_many([b"%d" % number for number in range(count)])
    return await client.open(writer.ledger_id)


def reads(bookie: DictBookie) -> int:
    return sum(isinstance(one, ReadRequest | BatchReadRequest) for one in bookie.requests)


@pytest.mark.slow
@pytest.mark.parametrize("striped", [False, True])
async def test_a_slow_replica_is_overtaken_and_tried_last_afterwards(
    cluster: DictCluster, autojump_clock: MockClock, striped: bool
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 30, write_quorum=2 if striped else 3, ack_quorum=2)
        await trio.testing.wait_all_tasks_blocked()
        await reader.read(0, 0)
        slow = next(name for name, bookie in cluster.bookies.items() if reads(bookie))
        cluster.bookies[slow].is_silent = True
        started = trio.current_time()
        for entry_id in range(30):
            assert [int(entry.payload) for entry in await reader.read(entry_id, entry_id)] == [entry_id]
            assert [int(entry.payload) for entry in await reader.read(0, 29)] == list(range(30))
        assert trio.current_time() - started < 5  # at most two waits: then the slow replica is known
        assert slow in client.membership.slow


async def test_without_speculation_a_slow_replica_is_waited_for(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client(ClientConfig(speculative_read_s=None)) as client:
        reader = await written(client, 3)
        await trio.testing.wait_all_tasks_blocked()
        for bookie in cluster.bookies.values():
            bookie.is_silent = True
        with pytest.raises(LedgerReadError, match="no reply to READ_ENTRY within 5 s"):
            await reader.read(0, 0)
        assert trio.current_time() >= 15


async def test_a_damaged_entry_is_read_from_another_replica_counted_and_logged_once(
    cluster: DictCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 50)
        await trio.testing.wait_all_tasks_blocked()
        for number, bookie in enumerate(cluster.bookies.values()):
            entries = bookie.ledgers[reader.ledger_id].entries
            for entry_id in range(number, 50, 3):
                entries[entry_id] = entries[entry_id][:-1] + b"!"
        with caplog.at_level(logging.WARNING):
            assert [int(entry.payload) for entry in await reader.read(0, 49)] == list(range(50))
            for entry_id in range(50):
                await reader.read(entry_id, entry_id)
        assert reader.digest_mismatches >= 10
        logged = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
        assert 2 <= len(logged) <= 3  # once for each bookie
        assert f"of ledger {reader.ledger_id}" in logged[0]
        assert "digest" in logged[0]


@pytest.mark.parametrize("has_batch_reads", [True, False])
async def test_denials_count_with_and_without_batch_reads(
    cluster: DictCluster, has_batch_reads: bool
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 4)
        for bookie in cluster.bookies.values():
            bookie.has_batch_reads = has_batch_reads
            del bookie.ledgers[reader.ledger_id].entries[1]
        with pytest.raises(NoSuchEntryError, match="NO_ENTRY"):
            await reader.read(1, 3)
        assert not client.membership.suspects


@pytest.mark.parametrize("has_batch_reads", [True, False])
async def test_damage_counts_with_and_without_batch_reads(
    cluster: DictCluster, has_batch_reads: bool
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 4)
        for bookie in cluster.bookies.values():
            bookie.has_batch_reads = has_batch_reads
            entries = bookie.ledgers[reader.ledger_id].entries
            entries[1] = entries[1][:-1] + b"?"
        with pytest.raises(LedgerReadError, match="digest"):
            await reader.read(1, 3)
        assert reader.digest_mismatches == 3
        assert not client.membership.suspects


async def test_the_next_replica_is_tried_if_one_is_over_capacity(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        reader = await written(client, 3)
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].refuse = lambda request: Code.TOO_MANY_REQUESTS
        assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]


async def test_sticky_reads_use_one_replica_and_others_take_turns(cluster: DictCluster) -> None:
    for sticky, most in ((True, 1), (False, 3)):
        async with cluster.client(ClientConfig(sticky_reads=sticky)) as client:
            reader = await written(client, 30)
            before = {name: reads(bookie) for name, bookie in cluster.bookies.items()}
            for entry_id in range(30):
                await reader.read(entry_id, entry_id)
            requested = [name for name, bookie in cluster.bookies.items() if reads(bookie) > before[name]]
            assert len(requested) == most


def test_the_reading_order_begins_with_near_replicas_and_ends_with_unregistered_ones() -> None:
    order = reading_order(
        ["away", "slow", "failed", "readonly", "far", "near"],
        start=0,
        suspects={"failed"},
        slow={"slow"},
        readonly={"readonly"},
        writable={"near", "far", "failed", "slow"},
        distance=lambda bookie: 0 if bookie == "near" else 1,
    )
    assert order == ["near", "far", "readonly", "slow", "failed", "away"]


async def test_a_read_cancelled_with_two_requests_in_flight_leaves_the_handle_usable(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 3)
        await trio.testing.wait_all_tasks_blocked()
        for bookie in cluster.bookies.values():
            bookie.is_silent = True
        with trio.move_on_after(3) as scope:
            await reader.read(0, 2)
        assert scope.cancelled_caught
        for bookie in cluster.bookies.values():
            bookie.is_silent = False
        assert len(await reader.read(0, 2)) == 3
        assert not any(isinstance(one, AddRequest) and one.recovery for one in bookie.requests)


async def test_a_batch_read_stays_within_one_segment_and_is_not_used_with_striping(
    cluster: DictCluster,
) -> None:
    async with cluster.client() as client:
        striped = await written(client, 9, write_quorum=2, ack_quorum=2)
        assert [int(entry.payload) for entry in await striped.read(0, 8)] == list(range(9))
        assert not any(
            isinstance(one, BatchReadRequest) for each in cluster.bookies.values() for one in each.requests
        )
        await cluster.start("b4:1")
        writer = await client.create()
        await writer.append_many([b"%d" % number for number in range(5)])
        cluster.bookies[writer.metadata.last_ensemble.bookies[0]].refuse = lambda request: (
            Code.READ_ONLY if isinstance(request, AddRequest) else None
        )
        await writer.append_many([b"%d" % number for number in range(5, 10)])
        await writer.append(b"10")
        await writer.close()
        reader = await client.open(writer.ledger_id)
        _, (second) = reader.metadata.ensembles
        assert [int(entry.payload) for entry in await reader.read(0, 10)] == list(range(11))
        requested = [
            (one.entry_id, one.entry_id + one.count_max)
            for each in cluster.bookies.values()
            for one in each.requests
            if isinstance(one, BatchReadRequest)
        ]
        assert (0, second.first_entry_id) in requested
        assert not any(first < second.first_entry_id < stop for first, stop in requested)


async def test_a_bookie_that_is_down_does_not_end_batch_reads(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """A bookie is too old for them only if it replies to a plain read and closes the connection on a batch
    read."""
    async with cluster.client() as client:
        reader = await written(client, 30)
        await trio.testing.wait_all_tasks_blocked()
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        await reader.read(0, 29)
        (first,) = (name for name, bookie in cluster.bookies.items() if reads(bookie))
        await cluster.stop(first, registered=True)  # this reader's first choice
        others = [bookie for name, bookie in cluster.bookies.items() if name != first]
        for _ in range(5):
            assert len(await reader.read(0, 29)) == 30
        requested = [type(one) for bookie in others for one in bookie.requests]
        assert set(requested) == {BatchReadRequest}


async def test_a_connection_lost_by_a_batch_read_ends_batch_reads_for_a_time(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 30)
        for bookie in cluster.bookies.values():
            bookie.has_batch_reads = False
        assert len(await reader.read(0, 29)) == 30
        for bookie in cluster.bookies.values():
            bookie.has_batch_reads = True
            bookie.requests.clear()
        assert len(await reader.read(0, 29)) == 30
        requested = [type(one) for bookie in cluster.bookies.values() for one in bookie.requests]
        assert set(requested) == {ReadRequest}  # no connection is lost for each read
        await trio.sleep(120)
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        assert len(await reader.read(0, 29)) == 30
        requested = [type(one) for bookie in cluster.bookies.values() for one in bookie.requests]
        assert requested == [BatchReadRequest]


async def test_a_cancelled_read_forgets_all_its_requests(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 30)
        await trio.testing.wait_all_tasks_blocked()
        for bookie in cluster.bookies.values():
            bookie.is_silent = True
        for first, last in ((0, 0), (0, 29)):
            with trio.move_on_after(3):
                await reader.read(first, last)
            transport = reader._context.transport
            assert request_timers(transport) == 0


async def test_an_internal_error_in_a_read_is_raised_and_no_connection_is_lost(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 3)
        losses = client._context.transport.losses
        with monkeypatch.context() as patch:
            patch.setattr(type(reader), "_unpack_entries", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await reader.read(0, 2)
        assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]
        assert client._context.transport.losses == losses


@pytest.mark.parametrize("where", ["a refusal", "a slow replica", "the first request"])
async def test_an_internal_error_in_a_callback_of_a_read_is_raised_and_no_connection_is_lost(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, where: str
) -> None:
    async with cluster.client(ClientConfig(speculative_read_s=1.0)) as client:
        reader = await written(client, 1)
        await trio.testing.wait_all_tasks_blocked()
        losses = client._context.transport.losses
        next_bookie, requested = EntryRead.next_bookie, 0

        def failing(self: EntryRead) -> str | None:
            nonlocal requested
            requested += 1
            return next_bookie(self) if requested == 1 and where != "the first request" else str(1 / 0)

        with monkeypatch.context() as patch:
            patch.setattr(EntryRead, "next_bookie", failing)
            for bookie in cluster.bookies.values():
                bookie.is_silent = where == "a slow replica"
                bookie.refuse = lambda _request: Code.IO_ERROR if where == "a refusal" else None
            with pytest.raises(ZeroDivisionError):
                await reader.read(0, 0)
        assert request_timers(client._context.transport) == 0
        assert client._context.transport.losses == losses


async def test_a_refusal_does_not_shorten_the_time_of_a_slow_replica(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    requested_at: list[float] = []
    async with cluster.client(ClientConfig(speculative_read_s=1.0)) as client:
        reader = await written(client, 1)
        await trio.testing.wait_all_tasks_blocked()
        await reader.read(0, 0)
        first = next(bookie for bookie in cluster.bookies.values() if reads(bookie))
        first.is_silent = True

        def refuse(_request: object) -> Code | None:
            requested_at.append(trio.current_time())
            return Code.IO_ERROR if len(requested_at) == 1 else None

        for bookie in cluster.bookies.values():
            bookie.refuse = refuse
        started = trio.current_time()
        (entry,) = await reader.read(0, 0)
        assert int(entry.payload) == 0
        assert [at - started for at in requested_at] == pytest.approx([1.0, 2.0], abs=0.1)


async def test_a_read_after_the_client_was_closed_raises(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        reader = await written(client, 3)
    with pytest.raises(LedgerReadError, match="the transport is closed"):
        await reader.read(0, 2)


async def test_a_read_that_all_bookies_deny_names_the_missing_right(cluster: DictCluster) -> None:
    async with cluster.client() as client:
        reader = await written(client, 1)
        for bookie in cluster.bookies.values():
            bookie.refuse = lambda _request: Code.UNAUTHORIZED
        with pytest.raises(LedgerReadError, match="lacks the right") as denied:
            await reader.read(0, 0)
        assert denied.value.is_denied
        error = as_dlog_error(denied.value, "orders", "reading")
        assert isinstance(error, dlog.AccessDeniedError)  # a retry would not help
        cluster.bookies["b1:1"].refuse = lambda _request: Code.IO_ERROR
        with pytest.raises(LedgerReadError) as failed:
            await reader.read(0, 0)
        assert not failed.value.is_denied
