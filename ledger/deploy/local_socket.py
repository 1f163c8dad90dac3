"""A Unix socket that serves processes of the same user only.

Inside: the user of a peer, and a listener that closes connections of strangers. Not inside: where the socket
is (``directory``), what is served (``host``).
Always: a connection of another user is closed before a byte of it is read; root is trusted, because it can
read and change every file anyway.

Source: unix(7), SO_PEERCRED: the system fills in the user, so a peer cannot lie about it.
"""

from __future__ import annotations

import logging
import os
import socket
import struct

import trio

from ledger.runtime.events import event

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_ROOT = 0

logger = logging.getLogger(__name__)


def peer_uid(sock: trio.socket.SocketType) -> int:
    """The user of the process at the other end: the one that called ``connect`` or ``listen``."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(found)[1]
    return uid


def is_trusted(uid: int) -> bool:
    """True for this process's user and for root."""
    return uid in (os.geteuid(), _ROOT)


class LocalListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts connections of this user and of root. Others are closed; the first of each user is logged."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        """``sock`` listens already."""
        self.socket = sock
        self._refused: set[int] = set()

    async def accept(self) -> trio.SocketStream:
        """The next connection of a trusted user."""
        while True:
            sock, _ = await self.socket.accept()
            try:
                uid = peer_uid(sock)
                if is_trusted(uid):
                    return trio.SocketStream(sock)
            except OSError:
                sock.close()  # the peer is gone
                continue
            sock.close()
            if uid not in self._refused:
                self._refused.add(uid)
                logger.warning(
                    "a process of user %d connected to this namespace and was refused",
                    uid,
                    extra=event("directory.peer_refused", user_id=uid),
                )

    async def aclose(self) -> None:
        """Close the socket."""
        self.socket.close()
        await trio.lowlevel.checkpoint()
