"""The connections of a bookie, all together.

Inside: accepting, the memory and the requests in progress that all connections share, the sweeps that close
connections of silent strangers, an orderly end.
Not inside: one connection (``connection``), which connection is closed (``connections``), what a request
means (``session``), how much memory a connection may hold (``reply_queue``, ``shared_memory``).
Always: all connections together hold bounded bytes and bounded descriptors; a shortage of descriptors ends
neither the server nor the storage.

Source: BookKeeper, BookieNettyServer.java; docs/protocol.md 1 and 9.9.
"""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Callable, Sequence

import trio

from bookie.errors import BookieConfigError, ListenError
from bookie.requests.in_progress import InProgress
from bookie.requests.session import BookieService
from bookie.requests.turns import Turns
from bookie.server.config import ServerConfig
from bookie.server.connection import CONNECTION, Connection, note_fault
from bookie.server.connections import Connections
from bookie.server.peer_warnings import PeerEvent, PeerWarnings
from bookie.server.server_parts import ServerParts, Signal
from bookie.server.shared_memory import SharedMemory
from ledger.runtime.clock import wall_ms
from ledger.runtime.tasks.failure_domain import failure_domain

_SWEEP_S = 1.0
_SWEEP_STEP = 1000  # connections checked in one step of the loop
_CLOSE_STEP = 32  # connections closed in one step by a sweep
_WATCH_STEP = 256  # watching tasks begun in one step when memory becomes tight
_SHED_STEP = 16  # connections closed for one call that found no descriptor
_ACCEPT_PAUSE_S = 0.05
_CANNOT_ACCEPT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
        self.service = service
        self._config = config = config or ServerConfig()
        self._connections: dict[Connection, None] = {}
        self._has_connections = trio.Event()
        self._sweep_s = min(_SWEEP_S, config.first_frame_timeout_s / 4, config.frame_timeout_s / 4)
        self.admitted = Connections(
            config.connections_max,
            first_frame_sweeps=math.ceil(config.first_frame_timeout_s / self._sweep_s),
            frame_sweeps=math.ceil(config.frame_timeout_s / self._sweep_s),
        )
        self._warnings = PeerWarnings()
        self._turns = Turns()
        service.watches.long_polls_max = config.all_long_polls_max
        self._unwatched: dict[Connection, None] = {}  # connections without a running ``_watch_peer``
        self._capacity = Signal()
        self.memory = SharedMemory(
            config.total_bytes_max,
            config.share_bytes_min,
            on_available=self._capacity.send,
            on_tight=self._watch_peers,
        )
        service.in_progress = InProgress(
            config.adds_in_progress_max,
            config.reads_in_progress_max,
            on_less=self._capacity.send,
            clock=trio.current_time,
        )
        self._parts = ServerParts(
            service=service,
            config=config,
            memory=self.memory,
            capacity=self._capacity,
            connections=self.admitted,
            warnings=self._warnings,
            turns=self._turns,
            wall_ms=wall_ms,
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
        connections: trio.Nursery | None = None,
        task_status: trio.TaskStatus[list[trio.abc.Listener[trio.abc.Stream]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until cancelled. Then every connection is closed at once (see ``drain``).

        A listener that finds no descriptor closes connections that have sent no whole frame, and continues.

        Args:
            connections: Where the connections' tasks run; None: they end with this call.
        """
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery if connections is None else connections)
            task_status.started(list(listeners))

    async def _accept(self, listener: trio.abc.Listener[trio.abc.Stream], connections: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except trio.ClosedResourceError as exc:
                    raise ListenError(f"a listening socket was closed: {exc}") from exc
                except Exception as exc:
                    if isinstance(exc, OSError) and exc.errno in _CANNOT_ACCEPT:
                        self._warnings.note(PeerEvent.NO_DESCRIPTOR, str(exc), trio.current_time())
                        self.shed_connections()
                    else:
                        note_fault(self._warnings, "accept", "", exc)
                    await trio.sleep(_ACCEPT_PAUSE_S)  # the connection stays in the backlog
                else:
                    connections.start_soon(self.serve_stream, stream)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one peer until it disconnects or breaks the protocol. An error ends it, and is not raised."""
        try:
            await self._serve_peer(stream)
        except* Exception as fault:
            note_fault(self._warnings, CONNECTION, "", fault)
            with trio.CancelScope(shield=True), contextlib.suppress(Exception):
                await trio.aclose_forcefully(stream)

    async def _serve_peer(self, stream: trio.abc.Stream) -> None:
        connection = Connection(stream, self._parts, self._unwatched)
        peer = connection.peer
        is_full = self.admitted.is_full
        is_admitted = self.admitted.admit(peer)
        if is_full:
            self._warnings.note(PeerEvent.NO_PLACE, f"peer {peer.address} connected", trio.current_time())
        if not is_admitted:
            await trio.aclose_forcefully(stream)
            return
        self._connections[connection] = None
        self.memory.count_connections(len(self._connections))
        self._has_connections.set()
        try:
            await connection.run()
        finally:
            self._connections.pop(connection, None)
            self.admitted.leave(peer)
            self.memory.count_connections(len(self._connections))

    def shed_connections(self) -> None:
        """Close some connections that have sent no whole frame: descriptors are short. On the loop."""
        self.admitted.shed(_SHED_STEP)

    async def sweep(self, on_sweep: Callable[[], None] = lambda: None) -> None:
        """Close connections whose peers send no whole frame in time. Run it beside ``serve``; never returns.

        Args:
            on_sweep: Called at each sweep, about once a second while there are connections.
        """
        while True:
            if not self._connections:
                self._has_connections = trio.Event()
                await self._has_connections.wait()
            await trio.sleep(self._sweep_s)
            with failure_domain("sweep of connections"):
                on_sweep()
                await self._sweep()
                self._warnings.flush(trio.current_time())

    async def _sweep(self) -> None:
        self.admitted.begin_sweep()
        closed = 0
        for at, peer in enumerate(self.admitted.peers, 1):
            if self.admitted.check(peer):
                closed += 1
                self._warnings.note(
                    PeerEvent.OVERDUE,
                    f"peer {peer.address}, {peer.held_bytes} bytes held",
                    trio.current_time(),
                )
            if closed >= _CLOSE_STEP or not at % _SWEEP_STEP:
                closed = 0
                await trio.lowlevel.checkpoint()

    async def drain(self, *, timeout_s: float) -> bool:
        """Receive no more requests. Return once the received ones are durable and their replies are sent.

        Returns:
            False after ``timeout_s``: the rest is lost with its connections, unacknowledged.
        """
        for connection in self._connections:
            connection.stop_receiving()
        with trio.move_on_after(timeout_s) as scope:
            settled = trio.Event()
            storage = self.service.storage
            storage.submit(storage.new_batch(), lambda error: settled.set())
            await settled.wait()
            for connection in list(self._connections):
                await connection.wait_sent()
        return not scope.cancelled_caught

    def _watch_peers(self) -> None:
        for _ in range(min(len(self._unwatched), _WATCH_STEP)):
            connection = next(iter(self._unwatched))
            del self._unwatched[connection]
            connection.watch()
        if self._unwatched:
            trio.lowlevel.current_trio_token().run_sync_soon(self._watch_peers, idempotent=True)
