"""The sockets at which a bookie listens: bound early, listening late.

Inside: binding, listening, their errors. Not inside: the choice of the address (``identity.address``),
accepting (``server``).

Source: BookieNettyServer.java.
"""

from __future__ import annotations

import errno
import socket

import trio

from bookie.errors import ListenError

_BACKLOG = 1024


async def bind(host: str | None, port: int) -> list[trio.socket.SocketType]:
    """Bind the port without listening: a port in use shows at once, and no client connects too early.

    Args:
        host: None for all addresses of IPv4 and IPv6.

    Raises:
        ListenError: The port is in use, or the address is not one of this machine's.
    """
    if host is None and port != 0:
        addresses = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]
    else:
        addresses = [(socket.AF_INET, host or "0.0.0.0")]
    bound: list[trio.socket.SocketType] = []
    try:
        for family, address in addresses:
            try:
                one = trio.socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                if bound:
                    continue  # this machine has no IPv6
                raise
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                await one.bind((address, port))
            except OSError as exc:
                if family == socket.AF_INET6 and exc.errno == errno.EADDRNOTAVAIL:
                    bound.pop().close()
                    continue
                raise _listen_error(address, port, exc) from exc
    except BaseException:
        for one in bound:
            one.close()
        raise
    return bound


def listen(bound: trio.socket.SocketType, *, keepalive: bool) -> None:
    """Let clients connect. Raises ``ListenError``.

    Args:
        keepalive: The system asks an idle peer whether it is still there (``SO_KEEPALIVE``).
    """
    try:
        # An accepted socket has the options of the listening one.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, keepalive)
        bound.listen(_BACKLOG)
    except OSError as exc:
        address, port = bound.getsockname()[:2]
        raise _listen_error(address, port, exc) from exc


def _listen_error(address: str, port: int, exc: OSError) -> ListenError:
    if exc.errno == errno.EADDRINUSE:
        return ListenError(
            f"port {port} at {address} is in use: another bookie or another program listens there. Stop it,"
            " or set bookiePort"
        )
    return ListenError(f"cannot listen at {address} port {port}: {exc.strerror or exc}")
