"""Checks that a bookie replies to a request. An open port alone does not show that the bookie serves.

Source: BookieProtocol v3, GET_BOOKIE_INFO; a bookie replies to it without any ledger.
"""

from __future__ import annotations

import trio

from ledger.errors import WireError
from ledger.wire import v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest


async def bookie_info(host: str, port: int, *, timeout_s: float) -> BookieInfoReply | None:
    """Request a bookie's disk space; return None without a valid reply in time."""
    with trio.move_on_after(timeout_s):
        try:
            return await _request_info(host, port)
        except (OSError, trio.BrokenResourceError, WireError):
            return None
    return None


async def _request_info(host: str, port: int) -> BookieInfoReply | None:
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        await stream.send_all(v3.encode_request(BookieInfoRequest(), transaction_id=1))
        frames = FrameBuffer()
        while chunk := await stream.receive_some():
            data, found = frames.feed(chunk)
            for start, end in found:
                reply = v3.decode_reply(data, start, end).reply
                return reply if isinstance(reply, BookieInfoReply) else None
    return None
