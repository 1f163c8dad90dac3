"""Reading past replicas that are slow, damaged, overloaded or away."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from ledger.add_lanes import SILENT_TICKS
from ledger.config import ClientConfig
from ledger.errors import LedgerReadError, NoSuchEntryError
from ledger.reader import EntryRead, reading_order
from ledger.wire.codes import Code
from ledger.wire.messages import AddRequest, BatchReadRequest, ReadRequest


def timers_of_questions(transport: Any) -> int:
    """Running timers, but for the one that looks for silence."""
    tick_s = transport.config.add_timeout_s / SILENT_TICKS
    return sum(len(row) for seconds, row in transport.timers._rows.items() if seconds != tick_s)


async def written(client: Any, count: int, **arguments: Any) -> Any:
    async with await client.create(**arguments) as writer:
        await writer.append_many([b"%d" % number for number in range(count)])
    return await client.open(writer.ledger_id)


def reads(bookie: Any) -> int:
    return sum(isinstance(one, ReadRequest | BatchReadRequest) for one in bookie.requests)


@pytest.mark.parametrize("striped", [False, True])
async def test_a_slow_replica_is_not_waited_for_and_asked_last_afterwards(
    cluster: Any, autojump_clock: Any, striped: bool
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
        assert trio.current_time() - started < 5  # once, or twice: the first answers tell who is slow
        assert slow in client.membership.slow


async def test_without_speculation_a_slow_replica_is_waited_for(cluster: Any, autojump_clock: Any) -> None:
    async with cluster.client(ClientConfig(speculative_read_s=None)) as client:
        reader = await written(client, 3)
        await trio.testing.wait_all_tasks_blocked()
        for bookie in cluster.bookies.values():
            bookie.is_silent = True
        with pytest.raises(LedgerReadError, match="no answer to READ_ENTRY within 5 s"):
            await reader.read(0, 0)
        assert trio.current_time() >= 15


async def test_damage_is_read_elsewhere_counted_and_told_once_with_the_evidence(
    cluster: Any, caplog: pytest.LogCaptureFixture
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
        told = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
        assert 2 <= len(told) <= 3  # once for each bookie
        assert f"of ledger {reader.ledger_id}" in told[0]
        assert "digest" in told[0]


@pytest.mark.parametrize("knows_batch_read", [True, False])
async def test_bookies_without_batch_reads_are_heard_like_others_when_they_deny_an_entry(
    cluster: Any, knows_batch_read: bool
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 4)
        for bookie in cluster.bookies.values():
            bookie.knows_batch_read = knows_batch_read
            del bookie.ledgers[reader.ledger_id].entries[1]
        with pytest.raises(NoSuchEntryError, match="NO_ENTRY"):
            await reader.read(1, 3)
        assert not client.membership.suspects


@pytest.mark.parametrize("knows_batch_read", [True, False])
async def test_and_when_what_they_hold_is_damaged(cluster: Any, knows_batch_read: bool) -> None:
    async with cluster.client() as client:
        reader = await written(client, 4)
        for bookie in cluster.bookies.values():
            bookie.knows_batch_read = knows_batch_read
            entries = bookie.ledgers[reader.ledger_id].entries
            entries[1] = entries[1][:-1] + b"?"
        with pytest.raises(LedgerReadError, match="digest"):
            await reader.read(1, 3)
        assert reader.digest_mismatches == 3
        assert not client.membership.suspects


async def test_an_overloaded_replica_is_left_alone(cluster: Any) -> None:
    async with cluster.client() as client:
        reader = await written(client, 3)
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].refuse = lambda request: Code.TOO_MANY_REQUESTS
        assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]


async def test_sticky_reads_keep_to_one_replica_and_others_take_turns(cluster: Any) -> None:
    for sticky, most in ((True, 1), (False, 3)):
        async with cluster.client(ClientConfig(sticky_reads=sticky)) as client:
            reader = await written(client, 30)
            before = {name: reads(bookie) for name, bookie in cluster.bookies.items()}
            for entry_id in range(30):
                await reader.read(entry_id, entry_id)
            asked = [name for name, bookie in cluster.bookies.items() if reads(bookie) > before[name]]
            assert len(asked) == most


def test_the_order_goes_from_near_and_well_to_away() -> None:
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


async def test_a_read_that_is_cancelled_while_two_replicas_are_asked_leaves_the_handle_usable(
    cluster: Any, autojump_clock: Any
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


async def test_batches_are_asked_of_one_bookie_for_what_it_holds(cluster: Any) -> None:
    """Not where entries are striped, and not over the end of a segment."""
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
        asked = [
            (one.entry_id, one.entry_id + one.count_max)
            for each in cluster.bookies.values()
            for one in each.requests
            if isinstance(one, BatchReadRequest)
        ]
        assert (0, second.first_entry_id) in asked
        assert not any(first < second.first_entry_id < stop for first, stop in asked)


async def test_a_bookie_that_is_away_does_not_end_batch_reads(cluster: Any, autojump_clock: Any) -> None:
    """Only one that answers a plain read, and closes the connection on a batch read, is too old for them."""
    async with cluster.client() as client:
        reader = await written(client, 30)
        await trio.testing.wait_all_tasks_blocked()
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        await reader.read(0, 29)
        (first,) = (name for name, bookie in cluster.bookies.items() if reads(bookie))
        await cluster.stop(first, registered=True)  # the one that this reader asks first
        others = [bookie for name, bookie in cluster.bookies.items() if name != first]
        for _ in range(5):
            assert len(await reader.read(0, 29)) == 30
        asked = [type(one) for bookie in others for one in bookie.requests]
        assert set(asked) == {BatchReadRequest}


async def test_one_lost_connection_for_batches_ends_them_for_a_while_only(
    cluster: Any, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 30)
        for bookie in cluster.bookies.values():
            bookie.knows_batch_read = False
        assert len(await reader.read(0, 29)) == 30
        for bookie in cluster.bookies.values():
            bookie.knows_batch_read = True
            bookie.requests.clear()
        assert len(await reader.read(0, 29)) == 30
        asked = [type(one) for bookie in cluster.bookies.values() for one in bookie.requests]
        assert set(asked) == {ReadRequest}  # not a connection lost for every run
        await trio.sleep(120)
        for bookie in cluster.bookies.values():
            bookie.requests.clear()
        assert len(await reader.read(0, 29)) == 30
        asked = [type(one) for bookie in cluster.bookies.values() for one in bookie.requests]
        assert asked == [BatchReadRequest]


async def test_a_read_that_is_cancelled_takes_all_its_questions_back(
    cluster: Any, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 30)
        await trio.testing.wait_all_tasks_blocked()
        for bookie in cluster.bookies.values():
            bookie.is_silent = True
        for first, last in ((0, 0), (0, 29)):
            with trio.move_on_after(3):
                await reader.read(first, last)
            transport = reader._cluster.transport
            assert timers_of_questions(transport) == 0


async def test_a_fault_of_ours_in_reading_is_the_readers_and_costs_no_connection(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client:
        reader = await written(client, 3)
        losses = client._cluster.transport.losses
        with monkeypatch.context() as patch:
            patch.setattr(type(reader), "_unpack_entries", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await reader.read(0, 2)
        assert [int(entry.payload) for entry in await reader.read(0, 2)] == [0, 1, 2]
        assert client._cluster.transport.losses == losses


@pytest.mark.parametrize("where", ["a refusal", "a slow replica", "the first question"])
async def test_a_fault_of_ours_in_what_is_remembered_of_replicas_is_the_readers_too(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any, where: str
) -> None:
    async with cluster.client(ClientConfig(speculative_read_s=1.0)) as client:
        reader = await written(client, 1)
        await trio.testing.wait_all_tasks_blocked()
        losses = client._cluster.transport.losses
        next_bookie, asked = EntryRead.next_bookie, 0

        def failing(self: EntryRead) -> str | None:
            nonlocal asked
            asked += 1
            return next_bookie(self) if asked == 1 and where != "the first question" else str(1 / 0)

        with monkeypatch.context() as patch:
            patch.setattr(EntryRead, "next_bookie", failing)
            for bookie in cluster.bookies.values():
                bookie.is_silent = where == "a slow replica"
                bookie.refuse = lambda _request: Code.IO_ERROR if where == "a refusal" else None
            with pytest.raises(ZeroDivisionError):
                await reader.read(0, 0)
        assert timers_of_questions(client._cluster.transport) == 0
        assert client._cluster.transport.losses == losses


async def test_a_refusal_does_not_shorten_the_time_that_a_slow_replica_has(
    cluster: Any, autojump_clock: Any
) -> None:
    asked_at: list[float] = []
    async with cluster.client(ClientConfig(speculative_read_s=1.0)) as client:
        reader = await written(client, 1)
        await trio.testing.wait_all_tasks_blocked()
        await reader.read(0, 0)
        first = next(bookie for bookie in cluster.bookies.values() if reads(bookie))
        first.is_silent = True

        def refuse(_request: object) -> Code | None:
            asked_at.append(trio.current_time())
            return Code.IO_ERROR if len(asked_at) == 1 else None

        for bookie in cluster.bookies.values():
            bookie.refuse = refuse
        started = trio.current_time()
        (entry,) = await reader.read(0, 0)
        assert int(entry.payload) == 0
        assert [at - started for at in asked_at] == pytest.approx([1.0, 2.0], abs=0.1)


async def test_reading_with_a_client_that_was_closed_says_so(cluster: Any) -> None:
    async with cluster.client() as client:
        reader = await written(client, 3)
    with pytest.raises(LedgerReadError, match="the transport is closed"):
        await reader.read(0, 2)
