"""The connections of the HTTP port: few, short, and closed for newcomers.

Inside: accepting, the limit on connections and on their time, where their errors end. Not inside: HTTP
(``exchange``), the main port (``bookie.server``).
Always: at most ``connections_max`` descriptors are in use; a newcomer is served, also if strangers hold all
places; no error of a connection ends another one or the listener; no error of accepting ends the listener.

Source: docs/security.md, "The HTTP port".
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import trio

from bookie.disk.descriptor_limit import ADMIN_CONNECTIONS_MAX
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import failure_domain

LIFETIME_S = 60.0  # of one connection; a request takes less than a second
RETRY_S = 1.0
_ACCEPT_PAUSE_S = 0.05
_CANNOT_ACCEPT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = get_logger(__name__)


class AdminConnections:
    """See the module. On the loop."""

    def __init__(
        self,
        handle: Callable[[trio.SocketStream], Awaitable[None]],
        *,
        connections_max: int = ADMIN_CONNECTIONS_MAX,
        lifetime_s: float = LIFETIME_S,
        retry_s: float = RETRY_S,
    ) -> None:
        """
        Args:
            handle: Serves one connection; it ends soon after the connection was closed under it.
            lifetime_s: A connection is closed after this long, whatever its peer does.
            retry_s: The listener accepts again this long after an error that it did not expect.
        """
        self._handle = handle
        self._connections_max = connections_max
        self._lifetime_s = lifetime_s
        self._retry_s = retry_s
        self._held: dict[trio.SocketStream, None] = {}  # oldest first

    def __repr__(self) -> str:
        return f"<AdminConnections, {len(self._held)} of {self._connections_max}>"

    async def serve(self, listener: trio.abc.Listener[trio.SocketStream]) -> None:
        """Accept until cancelled. A newcomer takes the place of the oldest connection if all are taken."""
        async with listener, trio.open_nursery() as connections:
            while True:
                with failure_domain("HTTP listener") as accepting:
                    await self._accept(listener, connections)
                if accepting.error is not None:
                    await trio.sleep(self._retry_s)

    async def _accept(
        self, listener: trio.abc.Listener[trio.SocketStream], connections: trio.Nursery
    ) -> None:
        try:
            stream = await listener.accept()
        except OSError as exc:
            if exc.errno not in _CANNOT_ACCEPT:
                raise
            self._close_oldest()
            await trio.sleep(_ACCEPT_PAUSE_S)  # the connection stays in the backlog
            return
        if len(self._held) >= self._connections_max:
            self._close_oldest()
        self._held[stream] = None
        connections.start_soon(self._serve_one, stream)

    def close_all(self) -> None:
        """Close the connections; later ones are served."""
        while self._held:
            self._close_oldest()

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        try:
            with failure_domain("HTTP connection", peer=peer_of(stream)):
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._close_later, stream)
                        await self._handle(stream)
                        nursery.cancel_scope.cancel()
                except* (OSError, trio.ClosedResourceError, trio.BrokenResourceError) as lost:
                    log.debug("HTTP connection lost: %s", lost.exceptions[0])
        finally:
            self._close(stream)

    async def _close_later(self, stream: trio.SocketStream) -> None:
        await trio.sleep(self._lifetime_s)
        self._close(stream)

    def _close_oldest(self) -> None:
        if self._held:
            self._close(next(iter(self._held)))

    def _close(self, stream: trio.SocketStream) -> None:
        self._held.pop(stream, None)
        stream.socket.close()  # at once: the caller needs the descriptor


def peer_of(stream: trio.SocketStream) -> str:
    """The address of the other side; empty if the system has none any more."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""
