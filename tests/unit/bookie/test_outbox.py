"""What connections hold: shares of a common whole, taken and given back to the byte."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from bookie.in_progress import InProgress
from bookie.outbox import Outbox
from bookie.shared_memory import SharedMemory


@given(
    bytes_max=st.integers(100, 10_000),
    share_min=st.integers(1, 100),
    piece=st.integers(1, 50),
    who=st.lists(st.integers(0, 30), max_size=600),
)
def test_the_greedy_together_never_hold_more_than_the_whole_and_a_least_share_each(
    bytes_max: int, share_min: int, piece: int, who: list[int]
) -> None:
    memory = SharedMemory(bytes_max, share_min)
    held: dict[int, int] = {}
    for one in who:
        # Everybody takes another piece whenever he holds no more than his share, and gives nothing back.
        if held.get(one, 0) <= memory.share_bytes:
            held[one] = held.get(one, 0) + piece
            memory.take(piece)
        assert memory.used_bytes == sum(held.values())
        assert memory.used_bytes <= bytes_max + (share_min + piece) * len(held)
    assert memory.share_bytes >= share_min
    newcomer = 0
    assert newcomer <= memory.share_bytes, "who holds nothing is never kept waiting"


def test_one_alone_may_hold_a_third_and_many_less() -> None:
    memory = SharedMemory(3000, 1)
    held = 0
    while held < memory.share_bytes:
        memory.take(10)
        held += 10
    assert held == 1000
    assert not memory.is_tight
    memory.take(2000)
    assert memory.is_tight
    assert not memory.is_exhausted
    assert "3000 of 3000" in repr(memory)


def test_room_is_told_when_the_whole_is_no_longer_exceeded() -> None:
    rung: list[int] = []
    memory = SharedMemory(100, 1, on_room=lambda: rung.append(memory.used_bytes))
    memory.take(150)
    memory.give_back(20)
    assert rung == []
    memory.give_back(50)
    memory.give_back(50)
    assert rung == [80]
    assert memory.used_bytes_peak == 150
    with pytest.raises(AssertionError):
        memory.give_back(31)


def test_it_is_told_each_time_that_memory_has_become_tight() -> None:
    told: list[int] = []
    memory = SharedMemory(800, 1, on_tight=lambda: told.append(memory.used_bytes))
    memory.take(700)
    assert not memory.is_tight
    memory.take(1)
    memory.take(1)
    assert told == [701]
    memory.give_back(2)
    memory.take(100)
    assert told == [701, 800]


async def test_an_outbox_gives_back_what_was_sent_and_at_its_end_all_of_it() -> None:
    memory = SharedMemory(1000, 10)
    outbox = Outbox(300, memory)
    outbox.put(bytes(100))
    outbox.put(bytes(50))
    outbox.reserve(20)
    outbox.received(70)
    outbox.received(30)
    assert memory.used_bytes == 200
    assert outbox.room_bytes == 300 - 170
    frames = await outbox.take()
    assert len(frames) == 150
    outbox.sent(150)
    assert (memory.used_bytes, outbox.sent_bytes, outbox.queued_bytes) == (50, 150, 0)
    outbox.put(bytes(40))
    outbox.close()
    assert memory.used_bytes == 0
    outbox.put(bytes(40))  # the answer to an add that was durable too late
    outbox.close()
    assert memory.used_bytes == 0
    await outbox.wait_sent()
    assert "0 bytes queued" in repr(outbox)


async def test_whoever_makes_answers_waits_while_his_share_is_used_up(nursery: trio.Nursery) -> None:
    memory = SharedMemory(1000, 10)
    outbox, other = Outbox(300, memory), Outbox(300, memory)
    passed: list[str] = []

    async def wait() -> None:
        await outbox.wait_room()
        passed.append("room")

    outbox.put(bytes(290))
    outbox.reserve(20)
    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    assert passed == []
    outbox.release(20)
    await wait_all_tasks_blocked()
    assert passed == ["room"]
    other.put(bytes(600))  # the others' use makes one's own share smaller
    assert outbox.is_full
    assert outbox.room_bytes == 0
    outbox.sent(280)
    assert not outbox.is_full


async def test_everybody_who_waits_for_room_gets_it(nursery: trio.Nursery) -> None:
    outbox = Outbox(300, SharedMemory(1000, 10))
    passed: list[str] = []

    async def wait(name: str, until: Callable[[], Awaitable[None]]) -> None:
        await until()
        passed.append(name)

    outbox.put(bytes(300))
    await outbox.take()
    for name in "ab":
        nursery.start_soon(wait, name, outbox.wait_room)
    nursery.start_soon(wait, "taken", outbox.wait_taken_sent)
    await wait_all_tasks_blocked()
    outbox.put(bytes(20))  # more is queued behind: all that was taken is sent, and there is no room
    outbox.reserve(280)
    outbox.sent(300)
    await wait_all_tasks_blocked()
    assert passed == ["taken"]
    nursery.start_soon(wait, "sent", outbox.wait_sent)
    await wait_all_tasks_blocked()
    outbox.release(280)
    await wait_all_tasks_blocked()
    assert sorted(passed) == ["a", "b", "taken"]
    await outbox.take()
    nursery.start_soon(wait, "taken", outbox.wait_taken_sent)
    await wait_all_tasks_blocked()
    outbox.close()
    await wait_all_tasks_blocked()
    assert sorted(passed[3:]) == ["sent", "taken"]


async def test_a_sender_takes_what_is_there_at_once_and_waits_for_what_is_not(nursery: trio.Nursery) -> None:
    outbox = Outbox(300, SharedMemory(1000, 10))
    taken: list[bytes] = []

    async def send() -> None:
        while True:
            taken.append(await outbox.take())
            outbox.sent(len(taken[-1]))

    outbox.put(b"a")
    outbox.put(b"b")
    with trio.CancelScope() as scope:
        scope.cancel()
        taken.append(await outbox.take())  # no turn of the loop: nothing could be lost in it
    assert taken == [b"ab"]
    outbox.sent(2)
    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    assert taken == [b"ab"]
    outbox.put(b"c")
    outbox.put(b"d")
    await wait_all_tasks_blocked()
    outbox.put(b"e")
    await wait_all_tasks_blocked()
    assert taken == [b"ab", b"cd", b"e"]


async def test_a_sender_that_was_cancelled_is_not_woken_any_more(nursery: trio.Nursery) -> None:
    outbox = Outbox(300, SharedMemory(1000, 10))
    scope = trio.CancelScope()

    async def send() -> None:
        with scope:
            await outbox.take()
        await trio.sleep_forever()

    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    scope.cancel()
    outbox.put(b"a")  # before the sender has run again
    await wait_all_tasks_blocked()
    outbox.put(b"b")  # and after
    assert await outbox.take() == b"ab"
    nursery.cancel_scope.cancel()


async def test_while_it_is_held_the_sender_gets_nothing(nursery: trio.Nursery) -> None:
    memory = SharedMemory(1000, 10)
    outbox = Outbox(300, memory)
    taken: list[bytes] = []

    async def send() -> None:
        while True:
            taken.append(await outbox.take())
            outbox.sent(len(taken[-1]))

    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    outbox.put(b"a")  # it is woken for this, and finds it gone
    assert outbox.hold(b"z") == b"az"
    outbox.put(b"b")
    await wait_all_tasks_blocked()
    assert (taken, outbox.queued_bytes) == ([], 1)
    outbox.unhold()
    await wait_all_tasks_blocked()
    assert taken == [b"b"]
    assert memory.used_bytes == 0
    nursery.cancel_scope.cancel()


def test_requests_in_progress_are_counted_by_kind() -> None:
    less: list[int] = []
    counts = InProgress(2, 3, on_less=lambda: less.append(1))
    counts.count_adds(2)
    counts.count_reads(2)
    assert counts.is_full(adds=True, reads=False)
    assert not counts.is_full(adds=False, reads=True)
    counts.count_reads(1)
    assert counts.is_full(adds=False, reads=True)
    counts.count_adds(-1)
    counts.count_reads(-3)
    assert not counts.is_full(adds=True, reads=True)
    assert less == [1, 1]
    assert not InProgress().is_full(adds=True, reads=True)
    assert "1 adds" in repr(counts)
