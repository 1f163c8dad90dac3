"""Payloads as callers give them: bytes, or another buffer that is copied.

Always: an entry holds the bytes that the buffer had when it was given. Its length is counted in bytes, which
``len`` does not do for a buffer of larger elements.
"""

from __future__ import annotations

from collections.abc import Iterable


def as_payload(payload: object) -> bytes:
    """The payload as bytes; any other buffer is copied, since its owner may reuse it.

    Raises:
        TypeError: It is no buffer. A number would otherwise give as many zeros.
    """
    if type(payload) is bytes:
        return payload
    try:
        return bytes(memoryview(payload))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a payload is bytes or another buffer, not {type(payload).__name__}") from None


def as_payloads(payloads: Iterable[bytes | bytearray | memoryview]) -> list[bytes]:
    """Some payloads, which the caller consumes here; see ``as_payload``."""
    return list(map(as_payload, payloads))
