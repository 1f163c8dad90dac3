"""The stream over a socket obeys trio's rules, and what it sends at once stays in order."""

# covers: ledger/transport/socket_stream.py

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from bookie.server.reply_queue import ReplyQueue
from bookie.server.shared_memory import SharedMemory
from ledger.transport import socket_stream
from ledger.transport.dial import Address
from ledger.transport.socket_stream import SEND_NOW_BYTES_MAX, SEND_NOW_PAUSE_S, SocketStream
from ledger.transport.transport import open_transport
from tests.fakes.scripted_bookies import B1, RecordingSink, resolve
from tests.fakes.stream_checks import check_half_closeable_stream

Ends = tuple[SocketStream, SocketStream]


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def socket_pair(clock: Clock) -> tuple[SocketStream, SocketStream]:
    left, right = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
    return SocketStream(left, clock=clock), SocketStream(right, clock=clock)


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ends(clock: Clock) -> AsyncIterator[tuple[SocketStream, SocketStream]]:
    left, right = socket_pair(clock)
    async with left, right:
        yield left, right


def fill(stream: SocketStream, clock: Clock) -> bytes:
    """Send at once until the system takes no more; return what was sent."""
    sent = b""
    for number in range(1000):
        clock.now_s += 1
        piece = bytes([number % 256]) * SEND_NOW_BYTES_MAX
        count = stream.send_now(piece)
        sent += piece[:count]
        if count < len(piece):
            return sent
    raise AssertionError("the socket never became full")


async def received(stream: SocketStream, size_bytes: int) -> bytes:
    taken = b""
    while len(taken) < size_bytes:
        chunk = await stream.receive_some()
        assert chunk
        taken += chunk
    return taken


async def test_a_socket_passes_the_stream_checks_of_trio() -> None:
    async def make() -> tuple[SocketStream, SocketStream]:
        return socket_pair(Clock())

    async def make_full() -> tuple[SocketStream, SocketStream]:
        clock = Clock()
        left, right = socket_pair(clock)
        for stream in (left, right):
            fill(stream, clock)
        return left, right

    await check_half_closeable_stream(make, make_full)


async def test_bytes_sent_at_once_and_by_a_task_arrive_in_the_order_of_the_calls(
    ends: Ends, clock: Clock
) -> None:
    left, right = ends
    assert left.can_send(3)
    assert left.send_now(b"one") == 3
    await left.send_all(b"two")
    clock.now_s += SEND_NOW_PAUSE_S
    assert left.send_now(b"six") == 3
    assert await received(right, 9) == b"onetwosix"


async def test_frames_that_follow_each_other_fast_are_left_to_the_sending_task(
    ends: Ends, clock: Clock
) -> None:
    left, _ = ends
    assert left.can_send(3)
    left.send_now(b"one")
    clock.now_s += SEND_NOW_PAUSE_S / 2
    assert not left.can_send(3)
    clock.now_s += SEND_NOW_PAUSE_S / 2
    assert left.can_send(3)
    assert not left.can_send(SEND_NOW_BYTES_MAX + 1)


async def test_nothing_is_sent_at_once_while_a_task_sends(
    ends: Ends, clock: Clock, nursery: trio.Nursery
) -> None:
    left, right = ends
    sent = fill(left, clock)
    nursery.start_soon(left.send_all, b"waits")
    await trio.testing.wait_all_tasks_blocked()
    clock.now_s += 1
    assert not left.can_send(1), "it would be ahead of the task's bytes"
    assert await received(right, len(sent) + 5) == sent + b"waits"


async def test_a_broken_socket_sends_nothing_at_once_and_raises_in_the_task(ends: Ends, clock: Clock) -> None:
    left, right = ends
    await right.aclose()
    clock.now_s += 1
    assert left.send_now(b"lost") == 0
    with pytest.raises(trio.BrokenResourceError):
        await left.send_all(b"lost")
    await left.aclose()
    assert left.send_now(b"lost") == 0


async def test_an_end_that_was_sent_is_behind_all_bytes(ends: Ends, clock: Clock) -> None:
    left, right = ends
    await left.send_eof()
    assert left.send_now(b"late") == 0
    assert await right.receive_some() == b""


async def test_a_reply_that_a_socket_takes_in_part_is_sent_whole_and_before_the_next(
    ends: Ends, clock: Clock, nursery: trio.Nursery
) -> None:
    left, right = ends
    reply_queue = ReplyQueue(1 << 30, SharedMemory(1 << 30, 10))
    reply_queue.direct = left

    async def send() -> None:
        while True:
            for piece in await reply_queue.take():
                await left.send_all(piece)
                reply_queue.sent(len(piece))

    nursery.start_soon(send)
    await trio.testing.wait_all_tasks_blocked()
    replies = [bytes([number]) * 50_001 for number in range(40)]
    for reply in replies:
        clock.now_s += 1
        reply_queue.put(reply)
    assert reply_queue.queued_bytes % 50_001, "the socket took a part of a reply"
    assert await received(right, 40 * 50_001) == b"".join(replies)
    await reply_queue.wait_sent()
    assert reply_queue.sent_bytes == 40 * 50_001


async def test_adds_that_a_socket_takes_in_part_reach_the_bookie_whole_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_stream, "SEND_NOW_PAUSE_S", 0.0)
    ours, theirs = (trio.socket.from_stdlib_socket(end) for end in socket.socketpair())

    async def dial(_address: Address) -> trio.abc.Stream:
        return trio.SocketStream(ours)

    # The first byte behind the length tells the version, which chooses the connection.
    frames = [bytes([0, 0, 0, 0, 2]) + bytes([number]) * 50_001 for number in range(40)]
    whole = b"".join(frames)
    async with trio.SocketStream(theirs) as bookie, open_transport(dial, resolve) as transport:
        sink = RecordingSink()
        transport.post_adds(B1, 1, [frames[0]], [0], sink)
        await trio.testing.wait_all_tasks_blocked()  # connected
        for entry_id, frame in enumerate(frames[1:], 1):
            transport.post_adds(B1, 1, [frame], [entry_id], sink)
        arrived = b""
        with trio.move_on_after(20):
            while len(arrived) < len(whole):
                arrived += await bookie.receive_some()
        assert arrived == whole
