from __future__ import annotations

import struct
import tracemalloc

import pytest

from ledger.errors import WireError
from ledger.wire.frame import FRAME_BYTES_MAX, FrameBuffer


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def test_a_chunk_of_whole_frames_is_not_copied() -> None:
    chunk = frame(b"one") + frame(b"three")
    data, spans = FrameBuffer().feed(chunk)
    assert data is chunk
    assert [data[start:end] for start, end in spans] == [b"one", b"three"]


def test_an_incomplete_frame_is_kept_until_it_is_complete() -> None:
    buffer = FrameBuffer()
    chunk = frame(b"one") + frame(b"three")[:6]
    data, spans = buffer.feed(chunk)
    assert data is chunk
    assert spans == [(4, 7)]
    assert buffer.feed(b"r") == (b"", [])
    data, spans = buffer.feed(b"ee")
    assert [data[start:end] for start, end in spans] == [b"three"]
    assert buffer.feed(frame(b"next"))[1] == [(4, 8)]


@pytest.mark.parametrize("length", [0, FRAME_BYTES_MAX - 3, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_its_payload(length: int) -> None:
    buffer = FrameBuffer()
    with pytest.raises(WireError, match=str(length)):
        buffer.feed(struct.pack(">I", length))


def test_the_limit_counts_the_prefix() -> None:
    buffer = FrameBuffer(frame_bytes_max=10)
    assert buffer.feed(frame(b"sixsix"))[1] == [(4, 10)]
    with pytest.raises(WireError):
        buffer.feed(frame(b"7777777"))


def test_each_call_after_a_bad_length_raises() -> None:
    buffer = FrameBuffer()
    with pytest.raises(WireError):
        buffer.feed(b"\xff\xff\xff\xff" + frame(b"looks good"))
    with pytest.raises(WireError):
        buffer.feed(frame(b"looks good"))


def test_a_length_uses_no_memory_before_its_bytes_arrive() -> None:
    buffer = FrameBuffer()
    tracemalloc.start()
    try:
        buffer.feed(struct.pack(">I", FRAME_BYTES_MAX - 4))
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


def test_pieces_of_a_large_frame_are_joined_once_when_the_last_arrives() -> None:
    payload = bytes(FRAME_BYTES_MAX - 4)
    stream = frame(payload)
    buffer = FrameBuffer()
    pieces = [stream[at : at + 65536] for at in range(0, len(stream), 65536)]
    tracemalloc.start()
    try:
        assert buffer.feed(pieces[0]) == (pieces[0], [])
        for piece in pieces[1:-1]:
            assert buffer.feed(piece) == (b"", [])
        data, spans = buffer.feed(pieces[-1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert data == stream
    assert spans == [(4, FRAME_BYTES_MAX)]
    assert peak < 1.5 * FRAME_BYTES_MAX


@pytest.mark.slow
def test_a_frame_in_tiny_pieces_takes_not_much_more_memory_than_its_bytes() -> None:
    size = 100_000
    buffer = FrameBuffer()
    tracemalloc.start()
    try:
        buffer.feed(struct.pack(">I", size))
        for _ in range(size // 2 - 1):
            assert buffer.feed(bytes((1, 2))) == (b"", [])
        assert buffer.missing_bytes == 2
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()
    assert buffer.feed(b"\x01\x02") == (struct.pack(">I", size) + b"\x01\x02" * (size // 2), [(4, 4 + size)])
    assert buffer.missing_bytes == 0


def test_the_repr_shows_the_missing_bytes() -> None:
    buffer = FrameBuffer()
    buffer.feed(frame(b"three")[:6])
    assert repr(buffer) == "<FrameBuffer holding 6 of at least 9 bytes>"
