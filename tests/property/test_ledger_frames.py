"""The frames of a stream do not depend on how the network cuts it."""

from __future__ import annotations

import itertools
import struct

from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import WireError
from ledger.wire.frame import FrameBuffer

LIMIT = 300
payload_lists = st.lists(st.binary(min_size=1, max_size=LIMIT - 4), max_size=12)


def framed(payloads: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(position, len(stream)) for position in cuts} | {0, len(stream)})
    return [stream[start:stop] for start, stop in itertools.pairwise(at)]


def taken(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """The payloads found, and True if the stream was found not to consist of frames."""
    buffer = FrameBuffer(LIMIT)
    payloads: list[bytes] = []
    for piece in pieces:
        try:
            data, spans = buffer.feed(piece)
        except WireError:
            return payloads, True
        payloads += [data[start:end] for start, end in spans]
    return payloads, False


@given(payload_lists, st.binary(max_size=3), st.lists(st.integers(0, 4000), max_size=30))
def test_frames_do_not_depend_on_the_pieces(
    payloads: list[bytes], unfinished: bytes, cuts: list[int]
) -> None:
    stream = framed(payloads) + unfinished
    expected = (payloads, False)
    assert taken([stream]) == expected
    assert taken([stream[at : at + 1] for at in range(len(stream))]) == expected
    assert taken(cut(stream, cuts)) == expected


@given(
    payload_lists,
    st.just(0) | st.integers(LIMIT - 3, 2**32 - 1),
    st.binary(max_size=50),
    st.lists(st.integers(0, 4000), max_size=30),
)
def test_a_bad_length_is_found_however_it_arrives(
    payloads: list[bytes], length: int, after: bytes, cuts: list[int]
) -> None:
    stream = framed(payloads) + struct.pack(">I", length) + after
    for pieces in ([stream], [stream[at : at + 1] for at in range(len(stream))], cut(stream, cuts)):
        found, is_bad = taken(pieces)
        assert is_bad
        assert found == payloads[: len(found)]


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_any_bytes_are_frames_or_a_wire_error(pieces: list[bytes]) -> None:
    payloads, is_bad = taken(pieces)
    stream = b"".join(pieces)
    assert stream.startswith(framed(payloads))
    assert is_bad or len(stream) - len(framed(payloads)) < LIMIT
