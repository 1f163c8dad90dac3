"""A dialled stream is a TCP connection with options for small frames."""

# covers: ledger/transport/dial.py

from __future__ import annotations

import pytest
import trio

from ledger.transport.dial import Address, dial_tcp


async def test_a_dialled_stream_sends_small_frames_at_once_and_notices_dead_peers() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        accepted: list[trio.SocketStream] = []

        async def accept() -> None:
            accepted.append(await listener.accept())

        nursery.start_soon(accept)
        stream = await dial_tcp(Address("127.0.0.1", port))
        assert isinstance(stream, trio.SocketStream)
        assert stream.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY)
        assert stream.getsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE)
    await stream.send_all(b"x")
    assert await accepted[0].receive_some() == b"x"
    for closable in (stream, accepted[0], listener):
        await closable.aclose()


async def test_a_closed_port_is_an_os_error() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with pytest.raises(OSError, match=str(port)):
        await dial_tcp(Address("127.0.0.1", port))


def test_the_text_of_an_address_is_host_and_port() -> None:
    assert str(Address("b1", 3181)) == "b1:3181"
    assert str(Address("::1", 3181)) == "[::1]:3181"
