"""Sinks of one ledger take turns, missing replies are noticed, and frames leave whole and in order."""

# covers: ledger/transport/queues.py

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.codes import Code
from ledger.errors import WireError
from ledger.transport.queues import (
    SEND_ALONE_BYTES_MIN,
    SEND_BYTES_MAX,
    SILENT_TICKS,
    AddQueues,
    SendQueue,
)


class Sink:
    def on_add_replies(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        raise AssertionError("AddQueues must not call sinks")

    def on_bookie_lost(self, bookie: str, cause: Exception) -> None:
        raise AssertionError("AddQueues must not call sinks")


def make_queues() -> tuple[AddQueues, SendQueue]:
    send_queue = SendQueue()
    return AddQueues(send_queue), send_queue


def test_the_adds_of_a_second_sink_wait_until_the_first_has_all_replies() -> None:
    queues, send_queue = make_queues()
    first, second = Sink(), Sink()
    queues.post(1, [b"a0", b"a1"], [0, 1], first)
    queues.post(1, [b"b0"], [0], second)
    queues.post(1, [b"a2"], [2], first)  # after the second sink's turn, which would otherwise never come
    assert send_queue.take() == [b"a0a1"]
    assert queues.take_replies(1, Code.OK, [0]).queue.sink is first
    assert send_queue.take() == []
    assert queues.take_replies(1, Code.OK, [1]).queue.sink is first
    assert send_queue.take() == [b"b0"]
    assert queues.take_replies(1, Code.FENCED, [0]).queue.sink is second
    assert send_queue.take() == [b"a2"]
    assert queues.take_replies(1, Code.OK, [2]).queue.sink is first
    assert not queues.queues


def test_adds_of_another_ledger_do_not_wait() -> None:
    queues, send_queue = make_queues()
    queues.post(1, [b"a"], [0], Sink())
    queues.post(2, [b"b"], [0], Sink())
    assert send_queue.take() == [b"ab"]


def test_the_turn_of_a_forgotten_sink_lasts_until_all_replies_arrived() -> None:
    queues, send_queue = make_queues()
    first, second = Sink(), Sink()
    queues.post(1, [b"a"], [0], first)
    queues.forget(1, lambda sink: sink is first)
    queues.post(1, [b"b"], [0], second)
    assert send_queue.take() == [b"a"]
    assert queues.take_replies(1, Code.FENCED, [0]).queue.sink is None
    assert send_queue.take() == [b"b"]
    assert [queue.sink for queue in queues.close()] == [second]


def test_waiting_adds_of_a_forgotten_sink_are_never_sent() -> None:
    queues, send_queue = make_queues()
    queues.post(1, [b"a"], [0], Sink())
    queues.post(1, [b"b"], [0], waiting := Sink())
    queues.forget(1, lambda sink: sink is waiting)
    queues.take_replies(1, Code.OK, [0])
    assert send_queue.take() == [b"a"]
    assert not queues.queues


def test_a_sink_forgotten_during_notification_gets_no_more_replies() -> None:
    queues, _ = make_queues()
    queues.post(1, [b"a"], [0], Sink())
    replies = queues.take_replies(1, Code.OK, [0])
    queues.forget(1, lambda _sink: True)
    assert replies.queue.sink is None


def test_more_replies_than_adds_raise_and_count_nothing() -> None:
    queues, _ = make_queues()
    queues.post(1, [b"a"], [0], Sink())
    for ledger_id, entry_ids in [(1, [0, 0]), (2, [0])]:
        with pytest.raises(WireError, match=f"ledger {ledger_id}"):
            queues.take_replies(ledger_id, Code.OK, entry_ids)
    assert queues.replies_due == 1


def test_closing_returns_each_sink_once_for_each_of_its_ledgers() -> None:
    queues, _ = make_queues()
    first, second = Sink(), Sink()
    for sink in (first, second, first):
        queues.post(1, [b"a"], [0], sink)
    queues.post(2, [b"a"], [0], first)
    lost = queues.close()
    assert [(queue.ledger_id, queue.sink) for queue in lost] == [(1, first), (1, second), (2, first)]
    assert not queues.queues


def test_missing_replies_are_noticed_after_silent_ticks_and_not_before() -> None:
    queues, _ = make_queues()
    queues.post(1, [b"abc"], [0, 1, 2], Sink())
    assert queues.tick() is None  # the first mark: three replies are due
    queues.take_replies(1, Code.OK, [1])
    assert [queues.tick() for _ in range(SILENT_TICKS - 1)] == [None] * (SILENT_TICKS - 1)
    assert queues.tick() == "2 adds of ledger 1 have no reply"


def test_replies_to_one_ledger_do_not_hide_silence_about_another() -> None:
    queues, _ = make_queues()
    queues.post(1, [b"a"], [0], Sink())
    overdue = None
    for entry_id in range(2 * SILENT_TICKS):
        queues.post(2, [b"b"], [entry_id], Sink())
        queues.take_replies(2, Code.OK, [entry_id])
        overdue = overdue or queues.tick()
    assert overdue == "1 adds of ledger 1 have no reply"


def test_a_bookie_that_is_always_a_little_late_is_not_silent() -> None:
    queues, _ = make_queues()
    sink = Sink()
    queues.post(1, [b"ab"], [0, 1], sink)
    for entry_id in range(10 * SILENT_TICKS):
        queues.post(1, [b"c"], [entry_id + 2], sink)
        assert queues.tick() is None
        queues.take_replies(1, Code.OK, [entry_id])


# Sending


def put(send_queue: SendQueue, frames: list[bytes]) -> None:
    send_queue.put(frames, sum(map(len, frames)))


@given(st.lists(st.lists(st.sampled_from([1, 28, 1000, 65_535, 65_536, 200_000]), max_size=30), max_size=3))
def test_the_frames_put_are_taken_in_pieces_of_bounded_size(sizes: list[list[int]]) -> None:
    send_queue = SendQueue()
    frames = [bytes([n % 251]) * size for n, size in enumerate(size for some in sizes for size in some)]
    rest = list(frames)
    for some in sizes:
        put(send_queue, rest[: len(some)])
        del rest[: len(some)]
    pieces = send_queue.take()
    assert b"".join(pieces) == b"".join(frames)
    assert all(len(piece) <= SEND_BYTES_MAX for piece in pieces)
    # No two neighbours were small enough to be joined.
    for left, right in itertools.pairwise(pieces):
        assert max(len(left), len(right)) >= SEND_ALONE_BYTES_MIN
    assert send_queue.take() == []


def test_small_frames_become_one_piece_and_a_large_one_is_not_copied() -> None:
    send_queue = SendQueue()
    large = bytes(SEND_ALONE_BYTES_MIN)
    put(send_queue, [b"a", b"b", large, b"c"])
    assert [len(piece) for piece in send_queue.take()] == [2, len(large), 1]
    put(send_queue, [large])
    assert send_queue.take()[0] is large


def test_bytes_count_as_queued_until_they_are_reported_as_sent() -> None:
    send_queue = SendQueue()
    put(send_queue, [b"abc"])
    send_queue.take()
    put(send_queue, [b"de"])
    assert send_queue.queued_bytes == 5
    send_queue.sent(3)
    assert send_queue.queued_bytes == 2
    with pytest.raises(AssertionError):
        send_queue.sent(1)  # more than was taken
    send_queue.clear()
    assert (send_queue.queued_bytes, send_queue.take()) == (0, [])
