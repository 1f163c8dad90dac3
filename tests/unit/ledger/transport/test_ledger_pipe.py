"""The in-process stream obeys the rules of trio's streams, passes objects on and bounds unread bytes."""

# covers: ledger/transport/pipe.py

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledger.transport.pipe import JOIN_BYTES_MAX, PipeStream, stream_pair
from tests.fakes.stream_checks import check_half_closeable_stream


async def test_a_pipe_passes_the_stream_checks_of_trio() -> None:
    async def make() -> tuple[PipeStream, PipeStream]:
        return stream_pair()

    async def make_full() -> tuple[PipeStream, PipeStream]:
        left, right = stream_pair(100)
        for stream in (left, right):
            await stream.send_all(bytes(100))
        return left, right

    await check_half_closeable_stream(make, make_full)


async def test_a_large_chunk_is_received_as_the_same_object() -> None:
    left, right = stream_pair()
    chunk = bytes(JOIN_BYTES_MAX + 1)
    await left.send_all(chunk)
    await left.send_all(b"small")
    assert await right.receive_some() is chunk


async def test_a_mutable_buffer_is_copied() -> None:
    left, right = stream_pair()
    buffer = bytearray(b"before")
    await left.send_all(buffer)
    buffer[:] = b"after!"
    assert await right.receive_some() == b"before"


async def test_small_chunks_arrive_joined_and_in_order() -> None:
    left, right = stream_pair()
    for chunk in (b"a", b"b", b"c"):
        await left.send_all(chunk)
    assert await right.receive_some() == b"abc"


async def test_small_chunks_are_joined_up_to_the_bytes_that_are_requested() -> None:
    left, right = stream_pair()
    for chunk in (b"ab", b"cd", b"ef", b"g"):
        await left.send_all(chunk)
    assert [await right.receive_some(5), await right.receive_some(1)] == [b"abcd", b"e"]
    assert await right.receive_some(100) == b"fg"


async def test_bytes_beyond_the_requested_ones_are_received_later() -> None:
    left, right = stream_pair()
    await left.send_all(b"abcdef")
    assert [await right.receive_some(4), await right.receive_some(4)] == [b"abcd", b"ef"]


async def test_a_sender_waits_until_the_buffer_has_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    left, right = stream_pair(10)
    await left.send_all(bytes(8))
    with trio.move_on_after(1) as waited:
        await left.send_all(bytes(3))
    assert waited.cancelled_caught
    assert len(await right.receive_some()) == 8, "a cancelled send leaves nothing behind"
    await left.send_all(bytes(3))
    assert len(await right.receive_some()) == 3


async def test_a_chunk_larger_than_the_buffer_is_sent_alone() -> None:
    left, right = stream_pair(10)
    await left.send_all(bytes(1000))
    assert len(await right.receive_some()) == 1000


async def test_bytes_sent_before_closing_are_received_and_then_the_end() -> None:
    left, right = stream_pair()
    await left.send_all(b"last words")
    await left.aclose()
    assert await right.receive_some() == b"last words"
    assert await right.receive_some() == b""
    with pytest.raises(trio.BrokenResourceError):
        await right.send_all(b"too late")


async def test_the_repr_shows_the_bytes_in_each_direction() -> None:
    left, _ = stream_pair()
    await left.send_all(b"four")
    assert "4 bytes in flight" in repr(left)
    await left.aclose()
    assert "closed" in repr(left)


async def test_sending_at_once_needs_space_and_an_open_pipe_without_another_sender(
    autojump_clock: trio.testing.MockClock,
) -> None:
    left, right = stream_pair(10)
    assert left.can_send(10)
    left.send_now(bytes(8))
    assert not left.can_send(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.send_all, bytes(3))
        await trio.testing.wait_all_tasks_blocked()
        assert not left.can_send(1), "another task sends: its bytes come first"
        assert await right.receive_some() == bytes(8)
    assert await right.receive_some() == bytes(3)
    assert left.can_send(10)
    await left.send_eof()
    assert not left.can_send(1)
    await left.aclose()
    assert not right.can_send(1)


async def test_bytes_are_on_their_way_before_other_tasks_get_their_turn() -> None:
    left, right = stream_pair()
    order: list[str] = []

    async def receive() -> None:
        order.append((await right.receive_some()).decode())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await left.send_all(b"received")
        order.append("sent")
    assert sorted(order) == ["received", "sent"]


async def test_a_cancelled_send_sends_nothing() -> None:
    left, right = stream_pair()
    with trio.CancelScope() as scope:
        scope.cancel()
        await left.send_all(b"lost")
    assert scope.cancelled_caught
    await left.send_all(b"sent")
    assert await right.receive_some() == b"sent"


async def test_chunks_are_handed_over_in_the_step_of_the_sender_after_those_that_are_unread() -> None:
    left, right = stream_pair()
    delivered: list[bytes] = []

    def deliver(chunk: bytes) -> bool:
        delivered.append(chunk)
        return chunk != b"the last one"

    await left.send_all(b"unread")
    right.deliver_to(deliver)
    assert left.send_now(b"behind it") == 9
    assert delivered == []
    assert await right.receive_some() == b"unreadbehind it"
    chunk = bytes(JOIN_BYTES_MAX + 1)
    left.send_now(chunk)
    assert delivered[0] is chunk
    await left.send_all(b"the last one")
    await left.send_all(b"later")
    assert delivered == [chunk, b"the last one"]
    assert await right.receive_some() == b"later"


async def test_nothing_is_handed_over_after_the_end_of_the_receiver() -> None:
    left, right = stream_pair()
    delivered: list[bytes] = []

    def deliver(chunk: bytes) -> bool:
        delivered.append(chunk)
        return True

    right.deliver_to(deliver)
    await right.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await left.send_all(b"late")
    assert delivered == []
