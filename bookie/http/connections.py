"""The connections of the HTTP port: few, short, and closed for newcomers.

Inside: accepting, the limit on connections and on their time. Not inside: HTTP (``admin``), the main port
(``bookie.server``).
Always: at most ``connections_max`` descriptors are in use; a newcomer is served, also if strangers hold all
places; no error of a connection, and no shortage of descriptors, ends the listener.

Source: docs/security.md, "The HTTP port".
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable

import trio

from bookie.disk.descriptor_limit import ADMIN_CONNECTIONS_MAX

LIFETIME_S = 60.0  # of one connection; a request takes less than a second
_ACCEPT_PAUSE_S = 0.05
_CANNOT_ACCEPT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger(__name__)


class AdminConnections:
    """See the module. On the loop."""

    def __init__(
        self,
        handle: Callable[[trio.SocketStream], Awaitable[None]],
        *,
        connections_max: int = ADMIN_CONNECTIONS_MAX,
        lifetime_s: float = LIFETIME_S,
    ) -> None:
        """
        Args:
            handle: Serves one connection; it ends soon after the connection was closed under it.
            lifetime_s: A connection is closed after so long, whatever its peer does.
        """
        self._handle = handle
        self._connections_max = connections_max
        self._lifetime_s = lifetime_s
        self._held: dict[trio.SocketStream, None] = {}  # oldest first

    def __repr__(self) -> str:
        return f"<AdminConnections, {len(self._held)} of {self._connections_max}>"

    async def serve(self, listener: trio.abc.Listener[trio.SocketStream]) -> None:
        """Accept until cancelled. A newcomer takes the place of the oldest connection if all are taken."""
        async with listener, trio.open_nursery() as connections:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as exc:
                    if exc.errno not in _CANNOT_ACCEPT:
                        raise
                    self._close_oldest()
                    await trio.sleep(_ACCEPT_PAUSE_S)  # the connection stays in the backlog
                    continue
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
