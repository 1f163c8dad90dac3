"""What connections hold: shares of a common whole, taken and given back to the byte."""

from __future__ import annotations

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
