"""Sending large replies without copying them together.

Inside: one send for several pieces where the stream has a socket. Not inside: what is sent (``reply_queue``),
the end of a connection (``connection``).
Always: the bytes leave in order, each once; each send that the peer takes is reported at once, because it
frees memory and shows progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ledger.transport.socket_stream import SocketStream

SEND_BYTES_MAX = 256 << 10  # of a stream that says nothing before it has sent all
_VECTORED_BYTES_MAX = 1 << 20  # of one system call, which the other connections wait for


async def send_pieces(
    stream: trio.abc.Stream, pieces: Sequence[bytes | memoryview], on_sent: Callable[[int], None]
) -> None:
    """Send all pieces. A cancelled call may have sent some of the bytes.

    Raises:
        BrokenResourceError, ClosedResourceError: As ``send_all`` of the stream.
    """
    if isinstance(stream, SocketStream) and len(pieces) > 1:
        await _send_vectored(stream, [memoryview(piece) for piece in pieces], on_sent)
        return
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), SEND_BYTES_MAX):
            part = view[start : start + SEND_BYTES_MAX]
            await stream.send_all(part)
            on_sent(len(part))


async def _send_vectored(
    stream: SocketStream, left: list[memoryview], on_sent: Callable[[int], None]
) -> None:
    while left:
        now: list[memoryview] = []
        room = _VECTORED_BYTES_MAX
        for piece in left:
            now.append(piece[:room])
            room -= len(now[-1])
            if not room:
                break
        sent = await stream.send_some(now)
        on_sent(sent)
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]
