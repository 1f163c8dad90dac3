"""What connections hold: shares of a common whole, taken and given back to the byte."""

# covers: bookie/server/shared_memory.py

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from bookie.errors import AccountingError
from bookie.requests.in_progress import InProgress
from bookie.server.reply_queue import ReplyQueue
from bookie.server.shared_memory import SharedMemory
from ledger.transport.pipe import stream_pair


@given(
    bytes_max=st.integers(100, 10_000),
    share_min=st.integers(1, 100),
    piece=st.integers(1, 50),
    takers=st.lists(st.integers(0, 30), max_size=600),
)
def test_the_greedy_together_never_hold_more_than_the_whole_and_a_least_share_each(
    bytes_max: int, share_min: int, piece: int, takers: list[int]
) -> None:
    memory = SharedMemory(bytes_max, share_min)
    held: dict[int, int] = {}
    for taker in takers:
        # A taker takes another piece while it holds no more than its share, and gives nothing back.
        if held.get(taker, 0) <= memory.share_bytes:
            held[taker] = held.get(taker, 0) + piece
            memory.take(piece)
        assert memory.used_bytes == sum(held.values())
        assert memory.used_bytes <= bytes_max + (share_min + piece) * len(held)
    assert memory.share_bytes >= share_min
    newcomer = 0
    assert newcomer <= memory.share_bytes, "a taker that holds nothing never waits"


def test_one_alone_may_hold_a_third_and_many_less() -> None:
    memory = SharedMemory(3000, 1)
    held = 0
    while held < memory.share_bytes:
        memory.take(10)
        held += 10
    assert (held, memory.is_tight) == (1000, False)
    memory.take(2000)
    assert memory.is_tight
    assert not memory.is_exhausted
    assert "3000 of 3000" in repr(memory)


def test_the_callback_comes_when_the_limit_is_no_longer_exceeded() -> None:
    used_bytes: list[int] = []
    memory = SharedMemory(100, 1, on_available=lambda: used_bytes.append(memory.used_bytes))
    memory.take(150)
    memory.give_back(20)
    assert used_bytes == []
    memory.give_back(50)
    memory.give_back(50)
    assert used_bytes == [80]
    assert memory.used_bytes_peak == 150
    with pytest.raises(AccountingError):
        memory.give_back(31)


def test_the_callback_comes_each_time_that_memory_becomes_tight() -> None:
    calls: list[int] = []
    memory = SharedMemory(800, 1, on_tight=lambda: calls.append(memory.used_bytes))
    memory.take(700)
    assert not memory.is_tight
    memory.take(1)
    memory.take(1)
    assert calls == [701]
    memory.give_back(2)
    memory.take(100)
    assert calls == [701, 800]


async def test_an_outbox_gives_back_what_was_sent_and_at_its_end_all_of_it() -> None:
    memory = SharedMemory(1000, 10)
    reply_queue = ReplyQueue(300, memory)
    reply_queue.put(bytes(100))
    reply_queue.put(bytes(50))
    reply_queue.reserve(20)
    reply_queue.received(70)
    reply_queue.received(30)
    assert memory.used_bytes == 200
    assert reply_queue.free_bytes == 300 - 170
    frames = b"".join(await reply_queue.take())
    assert len(frames) == 150
    reply_queue.sent(150)
    assert (memory.used_bytes, reply_queue.sent_bytes, reply_queue.queued_bytes) == (50, 150, 0)
    reply_queue.put(bytes(40))
    reply_queue.close()
    assert memory.used_bytes == 0
    reply_queue.put(bytes(40))  # the answer to an add that was durable too late
    reply_queue.close()
    assert memory.used_bytes == 0
    await reply_queue.wait_sent()
    assert "0 bytes queued" in repr(reply_queue)


async def test_replies_to_a_client_in_this_process_are_sent_at_once_and_in_order(
    nursery: trio.Nursery,
) -> None:
    memory = SharedMemory(1000, 10)
    reply_queue = ReplyQueue(300, memory)
    reply_queue.direct, client = stream_pair(100)
    reply_queue.put(b"1")
    assert memory.used_bytes == 1, "no sender waits for replies yet"
    taken: list[bytes] = []

    async def take() -> None:
        taken.append(b"".join(await reply_queue.take()))
        reply_queue.sent(len(taken[-1]))
        taken.append(b"".join(await reply_queue.take()))

    nursery.start_soon(take)
    await wait_all_tasks_blocked()
    reply_queue.put(b"2" * 90)
    assert (memory.used_bytes, reply_queue.sent_bytes) == (0, 91)
    reply_queue.put(b"3" * 90)
    assert memory.used_bytes == 90, "the pipe has no space: the sender waits for it"
    reply_queue.put(b"4")
    assert memory.used_bytes == 91, "there is space for this one, but a reply never passes an earlier one"
    await wait_all_tasks_blocked()
    assert taken == [b"1", b"3" * 90 + b"4"]
    assert await client.receive_some() == b"2" * 90


async def test_replies_in_this_process_wait_while_the_queue_is_held(nursery: trio.Nursery) -> None:
    reply_queue = ReplyQueue(300, SharedMemory(1000, 10))
    reply_queue.direct, _ = stream_pair(100)
    nursery.start_soon(reply_queue.take)
    await wait_all_tasks_blocked()
    assert reply_queue.hold(b"last") == b"last"
    reply_queue.put(b"later")
    assert reply_queue.sent_bytes == 0


async def test_whoever_makes_answers_waits_while_his_share_is_used_up(nursery: trio.Nursery) -> None:
    memory = SharedMemory(1000, 10)
    reply_queue, other = ReplyQueue(300, memory), ReplyQueue(300, memory)
    passed: list[str] = []

    async def wait() -> None:
        await reply_queue.wait_capacity()
        passed.append("room")

    reply_queue.put(bytes(290))
    reply_queue.reserve(20)
    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    assert passed == []
    reply_queue.release(20)
    await wait_all_tasks_blocked()
    assert passed == ["room"]
    other.put(bytes(600))  # the others' use makes one's own share smaller
    assert reply_queue.is_full
    assert reply_queue.free_bytes == 0
    reply_queue.sent(280)
    assert not reply_queue.is_full


async def test_everybody_who_waits_for_room_gets_it(nursery: trio.Nursery) -> None:
    reply_queue = ReplyQueue(300, SharedMemory(1000, 10))
    passed: list[str] = []

    async def wait(name: str, until: Callable[[], Awaitable[None]]) -> None:
        await until()
        passed.append(name)

    reply_queue.put(bytes(300))
    await reply_queue.take()
    for name in "ab":
        nursery.start_soon(wait, name, reply_queue.wait_capacity)
    nursery.start_soon(wait, "taken", reply_queue.wait_taken_sent)
    await wait_all_tasks_blocked()
    reply_queue.put(bytes(20))  # more is queued behind: all that was taken is sent, and there is no room
    reply_queue.reserve(280)
    reply_queue.sent(300)
    await wait_all_tasks_blocked()
    assert passed == ["taken"]
    nursery.start_soon(wait, "sent", reply_queue.wait_sent)
    await wait_all_tasks_blocked()
    reply_queue.release(280)
    await wait_all_tasks_blocked()
    assert sorted(passed) == ["a", "b", "taken"]
    await reply_queue.take()
    nursery.start_soon(wait, "taken", reply_queue.wait_taken_sent)
    await wait_all_tasks_blocked()
    reply_queue.close()
    await wait_all_tasks_blocked()
    assert sorted(passed[3:]) == ["sent", "taken"]


async def test_a_sender_takes_what_is_there_at_once_and_waits_for_what_is_not(nursery: trio.Nursery) -> None:
    reply_queue = ReplyQueue(300, SharedMemory(1000, 10))
    taken: list[bytes] = []

    async def send() -> None:
        while True:
            taken.append(b"".join(await reply_queue.take()))
            reply_queue.sent(len(taken[-1]))

    reply_queue.put(b"a")
    reply_queue.put(b"b")
    with trio.CancelScope() as scope:
        scope.cancel()
        taken.append(b"".join(await reply_queue.take()))  # no turn of the loop: nothing could be lost in it
    assert taken == [b"ab"]
    reply_queue.sent(2)
    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    assert taken == [b"ab"]
    reply_queue.put(b"c")
    reply_queue.put(b"d")
    await wait_all_tasks_blocked()
    reply_queue.put(b"e")
    await wait_all_tasks_blocked()
    assert taken == [b"ab", b"cd", b"e"]


async def test_a_sender_that_was_cancelled_is_not_woken_any_more(nursery: trio.Nursery) -> None:
    reply_queue = ReplyQueue(300, SharedMemory(1000, 10))
    scope = trio.CancelScope()

    async def send() -> None:
        with scope:
            await reply_queue.take()
        await trio.sleep_forever()

    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    scope.cancel()
    reply_queue.put(b"a")  # before the sender has run again
    await wait_all_tasks_blocked()
    reply_queue.put(b"b")  # and after
    assert b"".join(await reply_queue.take()) == b"ab"
    nursery.cancel_scope.cancel()


async def test_while_it_is_held_the_sender_gets_nothing(nursery: trio.Nursery) -> None:
    memory = SharedMemory(1000, 10)
    reply_queue = ReplyQueue(300, memory)
    taken: list[bytes] = []

    async def send() -> None:
        while True:
            taken.append(b"".join(await reply_queue.take()))
            reply_queue.sent(len(taken[-1]))

    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    reply_queue.put(b"a")  # it is woken for this, and finds it gone
    assert reply_queue.hold(b"z") == b"az"
    reply_queue.put(b"b")
    await wait_all_tasks_blocked()
    assert (taken, reply_queue.queued_bytes) == ([], 1)
    reply_queue.unhold()
    await wait_all_tasks_blocked()
    assert taken == [b"b"]
    assert memory.used_bytes == 0
    nursery.cancel_scope.cancel()


def test_requests_in_progress_are_counted_by_kind() -> None:
    less: list[int] = []
    counts = InProgress(2, 3, on_less=lambda: less.append(1))
    one, _other = counts.begin_batch(1, 0), counts.begin_batch(1, 0)
    counts.count_reads(2)
    assert counts.is_full(adds=True, reads=False)
    assert not counts.is_full(adds=False, reads=True)
    counts.count_reads(1)
    assert counts.is_full(adds=False, reads=True)
    counts.end_batch(one, None)
    counts.count_reads(-3)
    assert not counts.is_full(adds=True, reads=True)
    assert less == [1, 1]
    assert not InProgress().is_full(adds=True, reads=True)
    assert "1 adds" in repr(counts)
