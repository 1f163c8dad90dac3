"""Clear text that arrives between START_TLS and the TLS handshake.

Apache's client with SASL and TLS sends START_TLS and its first AUTH, both in clear text, without waiting for
a reply. Two threads of the client send them, so their order varies (``gate`` holds an AUTH that comes first).
The AUTH may come in the chunk of START_TLS, or just before the client's first TLS record.

Inside: cutting those frames off, the stream that returns the rest of the bytes first.
Not inside: which frames are allowed there (``gate``), TLS (``connection``).
Always: at most one chunk and one frame is held; the first byte of TLS ends the clear text for good.

Source: PerChannelBookieClient.java; docs/protocol.md 12.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from bookie.server.gate import FRAME_BYTES_MAX
from ledger.errors import WireError
from ledger.wire.frame import PREFIX_BYTES

_TLS_HANDSHAKE = b"\x16"  # the first byte of a client that begins TLS; a frame of this size begins with 0
_RECEIVE_BYTES = 16_384


class RestFirst(trio.abc.Stream):
    """A stream that returns ``rest`` before the bytes that the peer sends."""

    def __init__(self, stream: trio.abc.Stream, rest: bytes) -> None:
        self._stream, self._rest = stream, rest

    def __repr__(self) -> str:
        return f"<RestFirst {self._stream!r}>"

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See ``trio.abc.ReceiveStream``."""
        if not self._rest:
            return await self._stream.receive_some(max_bytes)
        size = len(self._rest) if max_bytes is None else max_bytes
        head, self._rest = self._rest[:size], self._rest[size:]
        return head

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See ``trio.abc.SendStream``."""
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See ``trio.abc.SendStream``."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """See ``trio.abc.AsyncResource``."""
        await self._stream.aclose()


async def receive_clear_text(
    stream: trio.abc.Stream, rest: bytes, handle: Callable[[bytes, Sequence[tuple[int, int]]], object]
) -> trio.abc.Stream:
    """Hand the frames in clear text to ``handle``; return the stream at the first byte of TLS.

    Args:
        rest: The bytes already received after START_TLS.

    Raises:
        WireError: The peer closed the connection or sent no frame, or ``handle`` raised it.
    """
    held = rest
    while True:
        if held[:1] == _TLS_HANDSHAKE:
            return RestFirst(stream, held)
        length = int.from_bytes(held[:PREFIX_BYTES], "big")
        if len(held) >= PREFIX_BYTES and not 0 < length <= FRAME_BYTES_MAX:
            raise WireError("neither TLS nor a frame follows START_TLS")
        end = PREFIX_BYTES + length
        if len(held) >= PREFIX_BYTES and len(held) >= end:
            handle(held, [(PREFIX_BYTES, end)])
            held = held[end:]
            continue
        chunk = await stream.receive_some(_RECEIVE_BYTES)
        if not chunk:
            raise WireError("the peer closed the connection after START_TLS")
        held += bytes(chunk)
