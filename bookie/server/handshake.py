"""TLS handshakes within the budget of a step of the loop.

Inside: the bookie's side of a handshake. Not inside: START_TLS, the time for a handshake (``connection``).
Always: a step computes a bounded number of signatures, however many peers send their first bytes at once. A
peer that goes silent in its handshake delays no other one.
"""

from __future__ import annotations

import ssl

import trio

from bookie.requests.turns import HANDSHAKE_UNITS, Turns
from ledger.errors import WireError
from ledger.runtime.tls_refusal import refusal_text
from ledger.transport import handshake


class HandshakeError(WireError):
    """The peer and this bookie do not accept each other in TLS, or the connection broke."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"TLS handshake failed: {refusal_text(cause)}")
        self.kind = str(
            getattr(cause, "verify_message", None) or getattr(cause, "reason", None) or type(cause).__name__
        )


class _TakesTurns(trio.abc.Stream):
    """A stream of a handshake: what it has received waits for a turn, since TLS computes with it at once."""

    def __init__(self, stream: trio.abc.Stream, turns: Turns) -> None:
        self._stream, self._turns = stream, turns

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        await self._turns.take(HANDSHAKE_UNITS)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def shake_hands(
    stream: trio.abc.Stream, context: ssl.SSLContext, turns: Turns, *, https_compatible: bool = False
) -> trio.SSLStream[trio.abc.Stream]:
    """The stream in TLS. If cancelled, the stream cannot be used any more.

    Args:
        https_compatible: See ``trio.SSLStream``.

    Raises:
        trio.BrokenResourceError: The handshake failed. If this side refused, the peer got the alert.
    """
    encrypted = trio.SSLStream[trio.abc.Stream](
        _TakesTurns(stream, turns), context, server_side=True, https_compatible=https_compatible
    )
    await handshake.shake_hands(encrypted, stream)
    encrypted.transport_stream = stream
    return encrypted
