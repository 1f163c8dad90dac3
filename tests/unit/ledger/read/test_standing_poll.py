"""A long poll that goes on after its replies: what it saves, and that it never hides a growth of the LAC."""

# covers: ledger/read/handle.py

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledger.client import LedgerClient
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.read.handle import ReadHandle
from ledger.read.standing_poll import IDLE_WAIT_MAX_S, REPLIES_MAX
from ledger.wire.messages import ReadRequest
from ledger.write.handle import WriteHandle
from tests.fakes.dict_bookies import DictBookie, DictCluster

CODEC = EntryCodec(DigestType.CRC32C, b"")


@pytest.fixture
def cluster(cluster: DictCluster) -> DictCluster:
    for bookie in cluster.bookies.values():
        bookie.goes_on = True
    return cluster


@pytest.fixture
async def client(cluster: DictCluster) -> AsyncIterator[LedgerClient]:
    async with cluster.client() as client:
        yield client


def polls(cluster: DictCluster) -> dict[str, list[ReadRequest]]:
    """The long polls that each bookie got."""
    return {
        name: [
            each
            for each in bookie.requests
            if isinstance(each, ReadRequest) and each.previous_lac is not None
        ]
        for name, bookie in cluster.bookies.items()
    }


def poll_count(cluster: DictCluster) -> int:
    return sum(map(len, polls(cluster).values()))


def polled(cluster: DictCluster) -> DictBookie:
    """The bookie that has the standing poll."""
    (name,) = [name for name, got in polls(cluster).items() if got]
    return cluster.bookies[name]


async def opened(client: LedgerClient, count: int) -> tuple[WriteHandle, ReadHandle]:
    """A ledger, and a reader of it with a standing poll that has seen all but the last of its entries."""
    writer = await client.create()
    await writer.append(b"0")
    reader = await client.open(writer.ledger_id, recover=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(reader.wait_last_confirmed_beyond, count - 3, timeout_s=60))
        await trio.testing.wait_all_tasks_blocked()
        for number in range(1, count):
            await writer.append(b"%d" % number)
    assert reader.last_confirmed == count - 2
    assert reader._standing.bookie is not None
    return writer, reader


class Follower:
    """Reads a ledger to its end, again and again."""

    def __init__(self, reader: ReadHandle, nursery: trio.Nursery) -> None:
        self.reader = reader
        self.seen: list[bytes] = []
        self._has_read = trio.Event()
        nursery.start_soon(self._run)

    async def wait_seen(self, count: int) -> None:
        while len(self.seen) < count:
            self._has_read = trio.Event()
            await self._has_read.wait()

    async def _run(self) -> None:
        while True:
            last = await self.reader.wait_last_confirmed_beyond(len(self.seen) - 1, timeout_s=3600)
            while len(self.seen) <= last:
                self.seen += await self.reader.read_payloads(len(self.seen), last)
            self._has_read.set()


@pytest.mark.slow
async def test_one_long_poll_brings_many_entries(client: LedgerClient, cluster: DictCluster) -> None:
    writer, reader = await opened(client, 2)
    async with trio.open_nursery() as nursery:
        follower = Follower(reader, nursery)
        await trio.testing.wait_all_tasks_blocked()
        before = poll_count(cluster)
        for number in range(2, 2 + REPLIES_MAX - 2):
            await writer.append(b"%d" % number)
            await trio.testing.wait_all_tasks_blocked()
            assert len(follower.seen) >= number
        assert poll_count(cluster) == before
        for number in range(REPLIES_MAX, 3 * REPLIES_MAX):
            await writer.append(b"%d" % number)
            await trio.testing.wait_all_tasks_blocked()
        assert follower.seen == [b"%d" % number for number in range(len(follower.seen))]
        assert len(follower.seen) >= 3 * REPLIES_MAX - 1
        assert poll_count(cluster) <= before + 3
        nursery.cancel_scope.cancel()


async def test_what_comes_while_nothing_waits_is_known_to_the_next_wait(
    client: LedgerClient, cluster: DictCluster
) -> None:
    writer, reader = await opened(client, 3)
    before = poll_count(cluster)
    for number in range(3, 6):
        await writer.append(b"%d" % number)
        await trio.testing.wait_all_tasks_blocked()
    assert await reader.wait_last_confirmed_beyond(3, timeout_s=60) == 4
    assert poll_count(cluster) == before
    assert await reader.read_payloads(2, 4) == [b"2", b"3", b"4"]


async def test_a_growth_that_a_reply_does_not_prove_is_asked_for_again(
    client: LedgerClient, cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """The bookie has said its LAC and would not say it again; a digest does not cover the number."""
    writer, reader = await opened(client, 3)
    bookie = polled(cluster)
    await writer.append(b"3")
    await trio.testing.wait_all_tasks_blocked()
    assert reader.last_confirmed == 2
    ledger = bookie.ledgers[writer.ledger_id]
    ledger.raise_lac(3)  # its last entry says 2
    await trio.testing.wait_all_tasks_blocked()
    assert (reader.last_confirmed, reader._standing.bookie) == (2, None)
    ledger.lac_body = CODEC.pack_lac(writer.ledger_id, 3)
    for other in cluster.bookies.values():
        other.is_silent = other is not bookie
    assert await reader.wait_last_confirmed_beyond(2, timeout_s=60) == 3


async def test_a_damaged_reply_ends_the_poll_and_another_bookie_is_asked(
    client: LedgerClient, cluster: DictCluster, autojump_clock: MockClock
) -> None:
    writer, reader = await opened(client, 2)
    bookie = polled(cluster)
    real = bookie._read

    def damaged(request: ReadRequest) -> object:
        reply = real(request)
        return type(reply)(reply.code, reply.ledger_id, reply.entry_id, bytes(40), reply.max_lac)

    bookie._read = damaged  # type: ignore[method-assign, assignment]
    async with trio.open_nursery() as nursery:
        follower = Follower(reader, nursery)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(2, 9):
            await writer.append(b"%d" % number)
            await trio.sleep(1)
        assert follower.seen == [b"%d" % number for number in range(8)]
        nursery.cancel_scope.cancel()


async def test_a_damaged_reply_that_nothing_waits_for_hides_no_growth(
    client: LedgerClient, cluster: DictCluster, autojump_clock: MockClock
) -> None:
    writer, reader = await opened(client, 3)
    bookie = polled(cluster)
    ledger = bookie.ledgers[writer.ledger_id]
    await writer.append(b"3")
    await trio.testing.wait_all_tasks_blocked()
    assert reader.last_confirmed == 2
    real, ledger.entries[3] = ledger.entries[3], bytes(40)
    ledger.raise_lac(3)
    await trio.testing.wait_all_tasks_blocked()
    ledger.entries[3], ledger.lac_body = real, CODEC.pack_lac(writer.ledger_id, 3)
    for other in cluster.bookies.values():
        other.is_silent = other is not bookie
    with trio.fail_after(3.5):  # of virtual time: before a long poll ends by itself, after 4 s
        assert await reader.wait_last_confirmed_beyond(2, timeout_s=60) == 3


async def test_a_bookie_that_stops_answering_does_not_keep_the_reader_from_another(
    client: LedgerClient, cluster: DictCluster, autojump_clock: MockClock
) -> None:
    writer, reader = await opened(client, 2)
    polled(cluster).refuse = lambda request: Code.IO_ERROR if isinstance(request, ReadRequest) else None
    polled(cluster).goes_on = False
    async with trio.open_nursery() as nursery:
        follower = Follower(reader, nursery)
        for number in range(2, 9):
            await writer.append(b"%d" % number)
            await trio.sleep(10)
        assert follower.seen == [b"%d" % number for number in range(8)]
        nursery.cancel_scope.cancel()


async def test_closing_the_reader_or_the_ledger_ends_the_poll(
    client: LedgerClient, cluster: DictCluster
) -> None:
    for closed in ("reader", "ledger"):
        writer, reader = await opened(client, 2)
        await (reader if closed == "reader" else writer).close()
        await trio.testing.wait_all_tasks_blocked()
        assert reader.is_closed == (closed == "ledger")
        assert reader._standing.bookie is None
    assert all(not connection.protocol._calls for connection in client._context.transport._alive)


@pytest.mark.slow
async def test_two_waits_of_one_reader_both_end(client: LedgerClient, cluster: DictCluster) -> None:
    writer, reader = await opened(client, 2)
    results: list[int] = []

    async def wait() -> None:
        results.append(await reader.wait_last_confirmed_beyond(0, timeout_s=600))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await writer.append(b"2")
    assert len(results) == 2
    assert min(results) >= 1


@pytest.mark.slow
async def test_while_a_ledger_does_not_grow_its_long_polls_become_rare(
    client: LedgerClient, cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """A process may have thousands of readers of idle logs."""
    writer, reader = await opened(client, 2)
    for bookie in cluster.bookies.values():
        bookie.requests.clear()
    before_s = trio.current_time()
    assert await reader.wait_last_confirmed_beyond(0, timeout_s=1800) == 0
    assert trio.current_time() - before_s == pytest.approx(1800)
    standing = [each.timeout_ms for got in polls(cluster).values() for each in got if each.replies_max > 1]
    assert len(standing) <= 1800 / IDLE_WAIT_MAX_S + 5
    assert max(filter(None, standing)) == 1000 * IDLE_WAIT_MAX_S
    await writer.append(b"2")
    await writer.append(b"3")
    assert await reader.wait_last_confirmed_beyond(0, timeout_s=3600) >= 1
    assert reader._standing.wait_s == client._context.config.long_poll_max_s, "it has grown"


@pytest.mark.slow
@pytest.mark.parametrize("_again", range(4))  # the loop decides which bookie hangs, and at which moment
async def test_a_standing_poll_that_hangs_keeps_no_entry_from_the_reader(
    client: LedgerClient, cluster: DictCluster, autojump_clock: MockClock, _again: int
) -> None:
    """Its connection is dead and nothing says so. The others are asked again and again meanwhile."""
    writer, reader = await opened(client, 2)
    await reader.wait_last_confirmed_beyond(0, timeout_s=1000)  # by now polls are held for long
    names = {name for name, got in polls(cluster).items() if got}
    holder = cluster.bookies[reader._standing.bookie or min(names)]
    holder.is_silent = True
    delays_s: list[float] = []
    async with trio.open_nursery() as nursery:
        follower = Follower(reader, nursery)
        for number in range(2, 12):
            await trio.sleep(7 if number == 2 else 0.5)
            holder.ledgers[writer.ledger_id].changed = trio.Event()  # it sends nothing more
            writer.submit(b"%d" % number)
            sent_s = trio.current_time()
            await follower.wait_seen(number)
            delays_s.append(trio.current_time() - sent_s)
        nursery.cancel_scope.cancel()
    config = client._context.config
    assert max(delays_s) <= config.long_poll_max_s + config.speculative_poll_s
    # The poll after it may begin at the same bookie. Then it ends for good.
    assert max(delays_s[2:]) < config.speculative_poll_s / 2, "its poll has ended"


async def test_a_bookie_that_forgets_the_last_poll_that_is_left_hides_no_growth(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    """Two bookies have no entry of the ledger yet; the third one never answers (docs/known-bugs.md 43)."""
    async with cluster.client() as client, cluster.client() as other:
        writer = await client.create()
        reader = await other.open(writer.ledger_id, recover=False)
        forgetful = cluster.bookies[writer.metadata.last_ensemble.bookies[2]]  # the last to be polled
        forgetful.is_silent = True
        async with trio.open_nursery() as nursery:
            results: list[float] = []

            async def wait() -> None:
                assert await reader.wait_last_confirmed_beyond(-1, timeout_s=600) >= 0
                results.append(trio.current_time())

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert reader._standing.bookie == forgetful.name
            grown_s = trio.current_time()
            for number in range(3):
                await writer.append(b"%d" % number)
        assert results[0] - grown_s <= 2 * other._context.config.long_poll_max_s


async def test_a_bookie_without_the_ledger_lengthens_no_later_poll(
    cluster: DictCluster, autojump_clock: MockClock
) -> None:
    async with cluster.client() as client, cluster.client() as other:
        writer = await client.create()
        reader = await other.open(writer.ledger_id, recover=False)
        assert await reader.wait_last_confirmed_beyond(-1, timeout_s=60) == -1
        assert poll_count(cluster) > 10
        assert reader._standing.wait_s == other._context.config.long_poll_max_s
