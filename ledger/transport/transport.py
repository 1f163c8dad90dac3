"""Connections to bookies: dialled on demand, kept open, replaced when they fail.

A bookie has up to three connections:
- DATA: adds and reads.
- CONTROL, version 3: requests that may take long, and requests that version 2 does not have.
- BATCH, version 2: batch reads. Their large replies would delay acknowledgements, and an old bookie closes
  the connection when it receives one, which would cost a writer its adds.

Inside: the connection for each request, deadlines of requests, noticing silent bookies.
Not inside: a single connection (``bookie_connection``, ``connection_protocol``), the choice of a replica
(``read.replica_rules``, ``write.writer``).
Always: each request completes exactly once, with a reply or an error, unless its caller forgets it first;
after a loss the next request dials again; the transport never sends a request a second time, since only the
caller knows whether that is safe.

Source: PerChannelBookieClient.java, DefaultPerChannelBookieClientPool.java; docs/protocol.md 1.3, 5.13.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from ledger.auth.auth import ClientAuth
from ledger.errors import BookieError, BookieUnavailableError
from ledger.runtime.tasks.background import open_background
from ledger.runtime.tasks.timers import Timers
from ledger.transport.bookie_connection import (
    BookieConnection,
    OnReply,
    PendingRequest,
    Resolve,
    SingleAdds,
)
from ledger.transport.config import TransportConfig
from ledger.transport.dial import Address, Dial
from ledger.transport.queues import SILENT_TICKS, AddSink
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    ReadRequest,
    Reply,
    Request,
    WriteLacRequest,
)

__all__ = [
    "AddSink",
    "Address",
    "ClientAuth",
    "Dial",
    "Transport",
    "TransportConfig",
    "open_transport",
]


HINT_QUEUE_BYTES_MAX = 65_536  # with more to send, a hint is dropped
SAY_S = 60.0  # between two lines about a bookie that cannot be reached


class _Purpose(enum.Enum):
    DATA = "data"
    CONTROL = "control"
    BATCH = "batch"


def _purpose_of(request: Request, add_version: int) -> _Purpose:
    match request:
        case ReadRequest(previous_lac=None) | AddRequest(deferred_sync=False):
            return _Purpose.DATA
        case AddRequest() | ForceLedgerRequest():
            # Adds with deferred sync and their FORCE need one connection. Over another one, FORCE could reach
            # a bookie that was restarted since: it would report success and have lost acknowledged entries.
            return _Purpose.DATA if add_version == 3 else _Purpose.CONTROL
        case BatchReadRequest():
            return _Purpose.BATCH
        case _:
            return _Purpose.CONTROL


class Transport:
    """All connections of one client to bookies. Made by ``open_transport``."""

    def __init__(
        self,
        dial: Dial,
        resolve: Resolve,
        config: TransportConfig,
        nursery: trio.Nursery,
    ) -> None:
        self.config = config
        self._dial = dial
        self._resolve = resolve
        self._nursery = nursery
        self._connections: dict[_Purpose, dict[str, BookieConnection]] = {purpose: {} for purpose in _Purpose}
        self._data_connections = self._connections[_Purpose.DATA]
        self._alive: dict[BookieConnection, int] = {}  # each with its number, until its loss is reported
        self._connections_started = 0
        self.losses = 0  # connections lost so far; if it did not change, no connection was lost
        self.request_timeouts = self.connections_failed = self.speculative_reads = 0  # for statistics
        self._said_at: dict[str, float] = {}  # of each bookie that cannot be reached
        self._is_closed = False
        self._is_v3 = config.add_version == 3
        self._refused_adds: set[tuple[str, int]] = set()
        self._is_ticking = False
        self.timers = Timers()  # deadlines of requests; readers and recoveries use it too

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._alive)} connections"
        return f"<Transport {state}>"

    @property
    def connections_started(self) -> int:
        """The number of connections begun so far."""
        return self._connections_started

    @property
    def connections_open(self) -> int:
        """The number of connections, those included that are still connecting."""
        return len(self._alive)

    def post_adds(
        self, bookie: str, ledger_id: int, frames: list[bytes], entry_ids: Sequence[int], sink: AddSink
    ) -> None:
        """Send adds. Returns at once; ``sink`` receives the replies, or the loss of the connection once.

        Adds are sent once and in order, but adds of different sinks to one ledger take turns. A sink may call
        this from inside its callbacks. If the transport is closed, ``sink.on_bookie_lost`` is called at once,
        but only the first time for each bookie and ledger.

        Args:
            frames: Together the adds of ``entry_ids``, made by the ``AddEncoder`` of ``config.add_version``,
                or of version 3 for deferred sync. An element holds one or more whole frames.
        """
        # The first byte of a payload is the version up to 2, and above 7 in version 3.
        purpose = _Purpose.DATA if (frames[0][4] > 7) is self._is_v3 else _Purpose.CONTROL
        connection = self._connections[purpose].get(bookie)
        if connection is None:
            if self._is_closed:
                self._refuse_adds(bookie, ledger_id, sink)
                return
            connection = self._start_connection(bookie, purpose)
        connection.protocol.post_adds(ledger_id, frames, entry_ids, sink)
        connection.wake_sender()
        if not self._is_ticking:
            self._start_ticking()

    async def call(
        self,
        bookie: str,
        request: Request,
        *,
        high_priority: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request; return the bookie's reply, with whatever code. A refusal is a reply.

        If cancelled, or if it raises, the bookie may or may not have done what was requested.

        Args:
            timeout_s: From now to the reply, connecting included. The default is ``request_timeout_s``; for a
                long poll the time that the bookie may hold it is added.

        Raises:
            BookieUnavailableError: The bookie cannot be reached, or the connection was lost.
            BookieSecurityError: TLS or authentication failed.
            BookieTimeoutError: No reply in time, or the connection was given up because the bookie is silent.
            UnsupportedInVersionError: The protocol version of the connection has no such request.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()
        result: Reply | BookieError | None = None

        def on_reply(reply: Reply | BookieError) -> None:
            nonlocal result
            result = reply
            trio.lowlevel.reschedule(task)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            pending.forget()
            return trio.lowlevel.Abort.SUCCEEDED

        pending = self.send(bookie, request, on_reply, high_priority=high_priority, timeout_s=timeout_s)
        await trio.lowlevel.wait_task_rescheduled(abort)
        if isinstance(result, BookieError):
            try:
                raise result
            finally:
                result = None  # breaks the reference cycle between the exception and this frame
        assert result is not None  # on_reply set it before it rescheduled the task
        return result

    def send(
        self,
        bookie: str,
        request: Request,
        on_reply: OnReply,
        *,
        high_priority: bool = False,
        timeout_s: float | None = None,
    ) -> PendingRequest:
        """Send a request without waiting; ``on_reply`` is called once, unless ``forget`` comes first.

        A long poll that asks for several replies gets one call for each; ``more_follow`` is False in the
        last. The time limit then holds for each of them.

        ``on_reply`` is never called before this returns. Arguments are those of ``call``.

        Raises:
            BookieUnavailableError: The transport is closed.
            UnsupportedInVersionError: The protocol version of the connection has no such request.
        """
        if self._is_closed:
            raise BookieUnavailableError(bookie, "the transport is closed")
        purpose = _purpose_of(request, self.config.add_version)
        connection = self._connections[purpose].get(bookie) or self._start_connection(bookie, purpose)
        if timeout_s is None:
            timeout_s = self.config.request_timeout_s
            if isinstance(request, ReadRequest) and request.timeout_ms is not None:
                timeout_s += request.timeout_ms / 1000
        pending = PendingRequest(connection, request, on_reply, timeout_s, self._start_ticking)
        connection.send(pending, high_priority)
        start_timer = partial(self.timers.after, timeout_s, partial(self._time_out, pending))
        pending.timer = start_timer()
        if isinstance(request, ReadRequest) and request.replies_max > 1:
            pending.start_timer = start_timer
        if isinstance(request, AddRequest):
            self._start_ticking()
        return pending

    def _time_out(self, pending: PendingRequest) -> None:
        self.request_timeouts += 1
        pending.time_out()

    def post_hint(self, bookie: str, request: WriteLacRequest) -> bool:
        """Send a hint, which gets no reply, if the bookie is connected; else drop it and return False.

        It is dropped, too, while earlier frames wait for a slow bookie; then the result is True.
        """
        connection = self._connections[_Purpose.CONTROL].get(bookie)
        if connection is None or not connection.is_connected:
            return False
        if connection.protocol.send_queue.queued_bytes <= HINT_QUEUE_BYTES_MAX:
            connection.protocol.post_hint(request)
            connection.wake_sender()
        return True

    def forget(self, ledger_id: int, sink: AddSink | None = None) -> None:
        """Drop all later replies for this ledger to ``sink``; without ``sink``, to every sink of
        ``post_adds``.

        Adds in flight may or may not be stored.
        """

        def matches(candidate: AddSink) -> bool:
            return not isinstance(candidate, SingleAdds) if sink is None else candidate is sink

        for connection in self._alive:
            connection.protocol.forget(ledger_id, matches)

    def connection_to(self, bookie: str, *, add_version: int) -> int | None:
        """The number of the connection for adds of this version; None while it is not connected.

        While the number stays the same, the bookie is the same process and has forgotten neither a fence nor
        an entry. Another number may mean another bookie at the same address.
        """
        purpose = _Purpose.DATA if add_version == self.config.add_version else _Purpose.CONTROL
        connection = self._connections[purpose].get(bookie)
        return self._alive[connection] if connection is not None and connection.is_connected else None

    def queued_bytes(self, bookie: str) -> int:
        """Bytes of adds and reads queued for this bookie."""
        connection = self._data_connections.get(bookie)
        return 0 if connection is None else connection.protocol.send_queue.queued_bytes

    async def wait_writable(self, bookies: Iterable[str]) -> None:
        """Return once at most ``config.queued_bytes_max`` bytes are queued for each of these bookies.

        A lost connection has no queue, so its loss ends the wait too; its sinks are notified of the loss. A
        cancelled wait changes nothing.
        """
        await trio.lowlevel.checkpoint()
        names = list(bookies)
        while full := [name for name in names if self.queued_bytes(name) > self.config.queued_bytes_max]:
            await self._data_connections[full[0]].writable.park()

    # --- connections
    # ----------------------------------------------------------------------------------------------

    def _start_connection(self, bookie: str, purpose: _Purpose) -> BookieConnection:
        match purpose:
            case _Purpose.DATA:
                version = self.config.add_version
            case _Purpose.CONTROL:
                version = 3
            case _Purpose.BATCH:
                version = 2
        connection = BookieConnection(
            bookie, purpose.value, version, dial=self._dial, resolve=self._resolve, config=self.config
        )
        self._connections[purpose][bookie] = connection
        self._connections_started += 1
        self._alive[connection] = self._connections_started
        self._nursery.start_soon(
            self._run_connection, connection, purpose, name=f"{purpose.value} connection to {bookie}"
        )
        return connection

    async def _run_connection(self, connection: BookieConnection, purpose: _Purpose) -> None:
        try:
            await connection.run()
        finally:
            # Remove the connection first: callbacks of the loss may send again at once, over a new one.
            del self._connections[purpose][connection.bookie]
            self.losses += 1
            self.connections_failed += not connection.has_connected
            connection.report_loss(is_news=self._is_news(connection))
            del self._alive[connection]

    def _is_news(self, connection: BookieConnection) -> bool:
        """False if a line has just said that its bookie cannot be reached."""
        bookie, now_s = connection.bookie, trio.current_time()
        if connection.has_connected:
            self._said_at.pop(bookie, None)
            return True
        is_news = now_s >= self._said_at.get(bookie, float("-inf")) + SAY_S
        if is_news:
            self._said_at[bookie] = now_s
        return is_news

    def _refuse_adds(self, bookie: str, ledger_id: int, sink: AddSink) -> None:
        # Once only: a sink that posts again after each loss would recurse without end.
        if (bookie, ledger_id) not in self._refused_adds:
            self._refused_adds.add((bookie, ledger_id))
            sink.on_bookie_lost(bookie, BookieUnavailableError(bookie, "the transport is closed"))

    def _start_ticking(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self.timers.after(self.config.add_timeout_s / SILENT_TICKS, self._tick)

    def _tick(self) -> None:
        for connection in self._alive:
            connection.tick()
        self._is_ticking = False
        if any(connection.protocol.needs_ticks for connection in self._alive):
            self._start_ticking()

    def close(self) -> None:
        """End all connections, and refuse every later request. For ``open_transport``."""
        self._is_closed = True
        self._nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_transport(
    dial: Dial, resolve: Resolve, config: TransportConfig | None = None
) -> AsyncIterator[Transport]:
    """Open a transport; leaving the block closes its connections.

    Requests without a reply then fail with ``BookieUnavailableError``, and sinks with adds in flight are
    notified of the loss.

    Args:
        dial: Opens a stream to an address; in production ``ledger.transport.dial.dial_tcp``.
        resolve: Returns the address at which a bookie listens now.
    """
    async with open_background() as nursery:
        transport = Transport(dial, resolve, config or TransportConfig(), nursery)
        nursery.start_soon(transport.timers.run)
        try:
            yield transport
        finally:
            transport.close()
