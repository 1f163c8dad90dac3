"""Frames leave whole, once and in order, in as few pieces as is worth while."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.outbox import SEND_ALONE_BYTES_MIN, SEND_BYTES_MAX, Outbox


def put(outbox: Outbox, frames: list[bytes]) -> None:
    outbox.put(frames, sum(map(len, frames)))


@given(st.lists(st.lists(st.sampled_from([1, 28, 1000, 65_535, 65_536, 200_000]), max_size=30), max_size=3))
def test_what_is_taken_is_what_was_put_in_pieces_of_bounded_size(sizes: list[list[int]]) -> None:
    outbox = Outbox()
    frames = [bytes([n % 251]) * size for n, size in enumerate(size for some in sizes for size in some)]
    rest = list(frames)
    for some in sizes:
        put(outbox, rest[: len(some)])
        del rest[: len(some)]
    pieces = outbox.take()
    assert b"".join(pieces) == b"".join(frames)
    assert all(len(piece) <= SEND_BYTES_MAX for piece in pieces)
    # Two neighbours that could have been joined were joined.
    for left, right in itertools.pairwise(pieces):
        assert max(len(left), len(right)) >= SEND_ALONE_BYTES_MIN
    assert outbox.take() == []


def test_small_frames_become_one_piece_and_a_large_one_is_not_copied() -> None:
    outbox = Outbox()
    large = bytes(SEND_ALONE_BYTES_MIN)
    put(outbox, [b"a", b"b", large, b"c"])
    assert [len(piece) for piece in outbox.take()] == [2, len(large), 1]
    put(outbox, [large])
    assert outbox.take()[0] is large


def test_bytes_count_as_queued_until_they_are_reported_as_sent() -> None:
    outbox = Outbox()
    put(outbox, [b"abc"])
    outbox.take()
    put(outbox, [b"de"])
    assert outbox.queued_bytes == 5
    outbox.sent(3)
    assert outbox.queued_bytes == 2
    with pytest.raises(AssertionError):
        outbox.sent(1)  # of what was never taken
    outbox.clear()
    assert (outbox.queued_bytes, outbox.take()) == (0, [])
