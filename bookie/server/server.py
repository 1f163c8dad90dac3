"""The connections of a bookie, all together.

Inside: accepting, the memory and the requests in progress that all connections share, an orderly end.
Not inside: one connection (``connection``), what a request means (``service``), how much memory a connection
may hold (``reply_queue``, ``shared_memory``).
Always: all connections together hold bounded bytes.

Source: BookKeeper, BookieNettyServer.java; docs/protocol.md 1 and 9.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from bookie.errors import BookieConfigError
from bookie.server.config import ServerConfig
from bookie.server.connection import Connection, Signal
from bookie.server.in_progress import InProgress
from bookie.server.service import BookieService
from bookie.server.shared_memory import SharedMemory
from namespace.clock import wall_ms


class Server:
    """The network side of one bookie. Call ``serve``, or ``serve_stream`` for each peer."""

    def __init__(
        self,
        service: BookieService,
        config: ServerConfig | None = None,
        *,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """``wall_ms``: the date that replies to long polls carry."""
        self._service = service
        self._config = config = config or ServerConfig()
        self._wall_ms = wall_ms
        self._connections: dict[Connection, None] = {}
        self._unwatched: dict[Connection, None] = {}  # connections without a running ``_watch_peer``
        self._capacity = Signal()
        self.memory = SharedMemory(
            config.total_bytes_max,
            config.share_bytes_min,
            on_available=self._capacity.send,
            on_tight=self._watch_peers,
        )
        service.in_progress = InProgress(
            config.adds_in_progress_max, config.reads_in_progress_max, on_less=self._capacity.send
        )
        service.has_tls = config.tls is not None
        needs_tls = config.tls_required or (config.auth is not None and config.auth.needs_tls)
        if needs_tls and config.tls is None:
            raise BookieConfigError(
                "TLS is required, but there is no certificate: set tlsProviderFactoryClass and tlsKeyStore"
            )

    def __repr__(self) -> str:
        return f"<bookie.Server with {len(self._connections)} connections>"

    @property
    def connections_count(self) -> int:
        return len(self._connections)

    async def serve(
        self,
        listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
        *,
        task_status: trio.TaskStatus[list[trio.abc.Listener[trio.abc.Stream]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until cancelled. Then every connection is closed at once (see ``drain``)."""
        await trio.serve_listeners(self.serve_stream, list(listeners), task_status=task_status)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one peer until it disconnects or breaks the protocol. An error of the peer is not raised."""
        connection = Connection(
            self._service, self._config, stream, self._wall_ms, self.memory, self._capacity, self._unwatched
        )
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]

    async def drain(self, *, timeout_s: float) -> bool:
        """Receive no more requests. Return once the received ones are durable and their replies are sent.

        Returns:
            False after ``timeout_s``: the rest is lost with its connections, unacknowledged.
        """
        for connection in self._connections:
            connection.stop_receiving()
        with trio.move_on_after(timeout_s) as scope:
            settled = trio.Event()
            storage = self._service.storage
            storage.submit(storage.new_batch(), lambda error: settled.set())
            await settled.wait()
            for connection in list(self._connections):
                await connection.wait_sent()
        return not scope.cancelled_caught

    def _watch_peers(self) -> None:
        for connection in self._unwatched:
            connection.watch()
        self._unwatched.clear()
