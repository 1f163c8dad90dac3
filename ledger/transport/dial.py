"""Opening a TCP stream to a bookie.

Inside: the address, the type of a dialler, socket options. Not inside: TLS, frames, deadlines. Tests and
embedded bookies pass another ``Dial``.
Always: a returned stream is connected and sends small frames without delay.

Source: PerChannelBookieClient.java (its Netty options: TCP_NODELAY and keep-alive on).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

KEEPALIVE_IDLE_S = 30  # a dead peer is noticed after about a minute, also in a long poll or when idle
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
UNSENT_BYTES_MAX = 262_144  # trio's 16 KiB would wake the sender for every sixteen entries of 1 KiB


@attrs.frozen
class Address:
    """The host and port at which a bookie listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Dial = Callable[[Address], Awaitable[trio.abc.Stream]]


async def dial_tcp(address: Address) -> trio.abc.Stream:
    """Connect to ``address``; the caller closes the stream.

    If cancelled, nothing stays open. The deadline is the caller's.

    Raises:
        OSError: The host does not exist, refuses the connection or is unreachable.
    """
    stream = await trio.open_tcp_stream(address.host, address.port)
    try:
        set_options(stream)
    except OSError:
        await trio.aclose_forcefully(stream)  # the peer has already closed the connection
        raise
    return stream


def set_options(stream: trio.SocketStream) -> None:
    """Let a connection send small frames without delay, and notice a dead peer.

    Raises:
        OSError: The peer has already closed it.
    """
    # An option that the system lacks is left out.
    options = [
        (trio.socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (trio.socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (trio.socket.IPPROTO_TCP, "TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        (trio.socket.IPPROTO_TCP, "TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        (trio.socket.IPPROTO_TCP, "TCP_KEEPCNT", KEEPALIVE_PROBES),
        (trio.socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", UNSENT_BYTES_MAX),
    ]
    for level, name, value in options:
        option = getattr(trio.socket, name, None)
        if option is not None:
            stream.setsockopt(level, option, value)
