"""Payloads as callers give them: an entry holds the bytes of the buffer, or the call is an error."""

# covers: ledger/payloads.py

from __future__ import annotations

import array

import pytest

from ledger.payloads import as_payload


def test_bytes_are_taken_as_they_are() -> None:
    payload = b"payload"
    assert as_payload(payload) is payload


@pytest.mark.parametrize(
    "buffer",
    [bytearray(b"abcd"), memoryview(b"abcd"), memoryview(b"abcd").cast("I"), array.array("B", b"abcd")],
    ids=["bytearray", "memoryview", "integers", "array"],
)
def test_a_buffer_is_copied_whole(buffer: object) -> None:
    taken = as_payload(buffer)
    assert (type(taken), taken) == (bytes, b"abcd")


def test_every_second_byte_of_a_buffer_is_a_buffer() -> None:
    assert as_payload(memoryview(b"abcdef")[::2]) == b"ace"


@pytest.mark.parametrize("value", ["text", 5, None, [b"x"], 1.5])
def test_what_is_no_buffer_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a payload is bytes or another buffer, not"):
        as_payload(value)
