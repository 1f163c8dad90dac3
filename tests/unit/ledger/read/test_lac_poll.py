"""Long polls of a reader at the end of a ledger: their cost, their limits, and what they may not believe."""

# covers: ledger/read/lac_query.py

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledger.client import LedgerClient
from ledger.codes import Code
from ledger.digest import EntryCodec
from ledger.errors import EntryBeyondLacError, LedgerReadError
from ledger.read.handle import ReadHandle
from ledger.wire.messages import BatchReadRequest, ReadLacRequest, ReadRequest
from ledger.write.handle import WriteHandle
from tests.fakes.dict_bookies import DictCluster


def reads(cluster: DictCluster) -> int:
    """How many reads of entries the bookies got: long polls are none."""
    return sum(
        isinstance(request, BatchReadRequest)
        or (isinstance(request, ReadRequest) and request.previous_lac is None)
        for bookie in cluster.bookies.values()
        for request in bookie.requests
    )


def polls(cluster: DictCluster, *names: str) -> int:
    return sum(
        isinstance(request, ReadRequest) and request.previous_lac is not None
        for name in names or cluster.bookies
        for request in cluster.bookies[name].requests
    )


async def followed(client: LedgerClient, count: int) -> tuple[WriteHandle, ReadHandle]:
    """A ledger with some entries, and a reader of it that has read all confirmed ones that it can see."""
    writer = await client.create()
    for number in range(count):
        await writer.append(b"%d" % number)
    reader = await client.open(writer.ledger_id, recover=False)
    return writer, reader


async def test_an_entry_that_came_with_a_long_poll_is_not_read_again(cluster: DictCluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer = await client.create()
        await writer.append_many([b"0", b"1"])
        reader = await other.open(writer.ledger_id, recover=False)
        seen: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                while len(seen) < 40:
                    last = await reader.wait_last_confirmed_beyond(len(seen) - 1, timeout_s=60)
                    while len(seen) <= last:
                        seen.extend(await reader.read_payloads(len(seen), last))

            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(2, 42):
                await writer.append(b"%d" % number)
                await trio.testing.wait_all_tasks_blocked()
        assert seen[:40] == [b"%d" % number for number in range(40)]
        assert reads(cluster) <= 2  # of the entries before the first long poll


async def test_an_entry_that_is_not_confirmed_is_not_returned(cluster: DictCluster) -> None:
    """The long poll brings the bookie's last entry, which is confirmed only when a later one says so."""
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 3)
        async with await other.open(writer.ledger_id, recover=False) as reader:
            assert await reader.wait_last_confirmed_beyond(-1, timeout_s=60) == 1
            assert repr(reader._recent) in ("<RecentEntries [2]>", "<RecentEntries []>")
            assert await reader.read_payloads(1, 1) == [b"1"]
            with pytest.raises(EntryBeyondLacError):
                await reader.read_payloads(2, 2)
            assert await reader.read_payloads(0, 1) in ([b"0"], [b"0", b"1"])


async def test_a_damaged_last_entry_is_neither_kept_nor_believed(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer, reader = await followed(client, 2)
        assert reader.last_confirmed <= 0
        for bookie in cluster.bookies.values():
            body = bytearray(bookie.ledgers[writer.ledger_id].entries[1])
            body[23], body[-1] = 9, ord("x")  # its LAC, and its payload
            bookie.ledgers[writer.ledger_id].entries[1] = bytes(body)
            bookie.ledgers[writer.ledger_id].raise_lac(9)
        assert await reader.wait_last_confirmed_beyond(0, timeout_s=30) == 0
        assert repr(reader._recent) == "<RecentEntries []>"


async def test_a_bookie_that_promises_a_greater_lac_in_vain_does_not_keep_others_from_being_polled(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 2)
        reader = await other.open(writer.ledger_id, recover=False)
        liar = cluster.bookies[writer.metadata.last_ensemble.bookies[1]]  # the first to be polled
        liar.ledgers[writer.ledger_id].lac = 1000
        async with trio.open_nursery() as nursery:
            results: list[int] = []

            async def wait() -> None:
                results.append(await reader.wait_last_confirmed_beyond(0, timeout_s=600))

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            liar.refuse = lambda request: Code.IO_ERROR
            await writer.append(b"2")
            await trio.sleep(5)
            assert results == [1]
            assert any(isinstance(request, ReadLacRequest) for request in liar.requests)
            assert polls(cluster, *(set(cluster.bookies) - {liar.name})) >= 1


async def test_a_slow_bookie_is_not_waited_for(cluster: DictCluster, autojump_clock: MockClock) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 2)
        reader = await other.open(writer.ledger_id, recover=False)
        slow = cluster.bookies[writer.metadata.last_ensemble.bookies[1]]
        slow.is_silent = True
        async with trio.open_nursery() as nursery:

            async def append_later() -> None:
                await trio.sleep(1)
                writer.submit(b"2")
                await trio.sleep(1)
                writer.submit(b"3")

            nursery.start_soon(append_later)
            assert await reader.wait_last_confirmed_beyond(0, timeout_s=600) >= 1


@pytest.mark.parametrize("stop", ["cancel", "time"])
async def test_a_wait_that_ends_leaves_no_request_and_no_timer(
    cluster: DictCluster, autojump_clock: MockClock, stop: str
) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 2)
        reader = await other.open(writer.ledger_id, recover=False)
        transport = other._context.transport
        with trio.move_on_after(2 if stop == "cancel" else 1000):
            await reader.wait_last_confirmed_beyond(0, timeout_s=1000 if stop == "cancel" else 2)
        assert polls(cluster) >= 2  # the second bookie was polled too
        await trio.sleep(60)  # the transport looks for silent bookies for a while
        assert repr(transport.timers) == "<Timers, 0 running>"
        assert all(not connection.protocol._calls for connection in transport._alive)


async def test_an_error_in_a_poll_ends_the_wait_and_not_the_connection(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 2)
        reader = await other.open(writer.ledger_id, recover=False)
        real: Callable[..., object] = EntryCodec.unpack

        def unpack(*_: object) -> object:
            raise RuntimeError("a bug")

        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(RuntimeError, match="a bug"):
                    await reader.wait_last_confirmed_beyond(0, timeout_s=60)

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr(EntryCodec, "unpack", unpack)
            await writer.append(b"2")
        monkeypatch.setattr(EntryCodec, "unpack", real)
        losses = other._context.transport.losses
        assert await reader.wait_last_confirmed_beyond(0, timeout_s=60) == 1
        assert other._context.transport.losses == losses


async def test_a_wait_ends_at_once_when_all_bookies_refuse_the_reader_and_not_when_one_is_left(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        _, reader = await followed(client, 1)
        names = sorted(cluster.bookies)
        for name in names[:2]:
            cluster.bookies[name].refuse = lambda _request: Code.UNAUTHORIZED
        with trio.move_on_after(30) as scope:
            await reader.wait_last_confirmed_beyond(5, timeout_s=60)
        assert scope.cancelled_caught
        cluster.bookies[names[2]].refuse = lambda _request: Code.UNAUTHORIZED
        with trio.fail_after(30), pytest.raises(LedgerReadError) as caught:
            await reader.wait_last_confirmed_beyond(5, timeout_s=60)
        assert sorted(caught.value.reasons) == names


async def test_ended_waits_return_what_is_known_and_later_waits_go_on(cluster: DictCluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 2)
        reader = await other.open(writer.ledger_id, recover=False)
        results: list[int] = []

        async def wait() -> None:
            results.append(await reader.wait_last_confirmed_beyond(0, timeout_s=600))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                reader.end_waits()
            assert results == [0, 0]
            await writer.append(b"2")
            assert await reader.wait_last_confirmed_beyond(0, timeout_s=600) == 1


async def test_a_wait_ends_at_its_deadline_also_if_its_client_was_closed(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client:
        writer, _ = await followed(client, 2)
        async with trio.open_nursery() as nursery, cluster.client() as other:
            reader = await other.open(writer.ledger_id, recover=False)
            began_s = trio.current_time()

            async def wait() -> None:
                assert await reader.wait_last_confirmed_beyond(0, timeout_s=100) == 0
                assert trio.current_time() - began_s == pytest.approx(100, abs=1)

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()


async def test_a_wait_after_a_change_of_the_metadata_polls_the_new_ensemble(cluster: DictCluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 2)
        reader = await other.open(writer.ledger_id, recover=False)
        await writer.append(b"2")
        assert await reader.wait_last_confirmed_beyond(0, timeout_s=60) == 1
        first = reader._idle_poll
        await writer.append(b"3")
        assert await reader.wait_last_confirmed_beyond(1, timeout_s=60) == 2
        assert reader._idle_poll is first is not None, "a wait takes the poll of the wait before it"
        reader._current = attrs.evolve(reader._current)
        await writer.append(b"4")
        assert await reader.wait_last_confirmed_beyond(2, timeout_s=60) == 3
        assert reader._idle_poll is not first


async def test_many_waits_leave_one_queue_of_timers(cluster: DictCluster) -> None:
    """Timers of one duration share a queue. One queue for each wait would fill the memory."""
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 2)
        reader = await other.open(writer.ledger_id, recover=False)
        queues = other._context.transport.timers._queues
        for number in range(2, 22):
            await writer.append(b"%d" % number)
            assert await reader.wait_last_confirmed_beyond(number - 2, timeout_s=60) == number - 1
        assert len(queues) <= 5


async def test_a_wait_without_time_lets_other_tasks_run_and_asks_no_bookie(cluster: DictCluster) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer, _ = await followed(client, 2)
        reader = await other.open(writer.ledger_id, recover=False)
        with trio.testing.assert_checkpoints():
            assert await reader.wait_last_confirmed_beyond(0, timeout_s=0) == 0
        assert polls(cluster) == 0
