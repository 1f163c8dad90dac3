"""The sockets of the programs, by name in the directory of the service."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import trio


@contextlib.contextmanager
def _address(directory: str, name: str) -> Iterator[str]:
    # By a descriptor: a socket's path has at most 108 bytes.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


async def listen(directory: str, name: str) -> trio.SocketListener:
    """Listen for one peer."""
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _address(directory, name) as address:
        await listener.bind(address)
    listener.listen(1)
    return trio.SocketListener(listener)


async def connect(directory: str, name: str) -> trio.SocketStream:
    """Connect to a peer that listens.

    Raises:
        OSError: None does.
    """
    with _address(directory, name) as address:
        return await trio.open_unix_socket(address)
