"""Listening for clients."""

from __future__ import annotations

import socket

import pytest
import trio

from bookie.listening import bind, listen


@pytest.mark.parametrize("keepalive", [True, False])
async def test_accepted_sockets_ask_idle_peers_as_the_configuration_says(keepalive: bool) -> None:
    (bound,) = await bind("127.0.0.1", 0)
    with bound:
        listen(bound, keepalive=keepalive)
        async with await trio.open_tcp_stream(*bound.getsockname()[:2]):
            accepted, _ = await bound.accept()
            with accepted:
                assert bool(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is keepalive
