"""Connections to bookies: dialled on demand, kept, dropped when they fail.

A bookie has up to three: one for adds and reads; one of version 3 for everything that may take long or that
version 2 cannot say; one of version 2 for batch reads, whose large answers would hold up acknowledgements,
and to which old bookies answer by closing the connection, which would cost a writer its adds.

Inside: which request goes over which connection, deadlines of calls, noticing silence.
Not inside: a single connection (``line``, ``connection``), which replica to ask (``reader``, ``writer``).
Always: whoever asked is answered or told of the loss, once; after a loss the next request dials anew. Nothing
is ever asked again by itself: only the asker knows whether that is safe.

Source: PerChannelBookieClient.java, DefaultPerChannelBookieClientPool.java; reference sections 1.3 and 5.13.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import trio

from ledger.add_lanes import SILENT_TICKS, AddSink
from ledger.asked import Asked, Told
from ledger.auth import ClientAuth
from ledger.background import open_background
from ledger.dial import Address, Dial
from ledger.errors import BookieError, BookieUnavailableError
from ledger.line import CalledAdds, Line, Resolve
from ledger.timers import Timers
from ledger.transport_config import TransportConfig
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    ReadRequest,
    Reply,
    Request,
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


class _Purpose(enum.Enum):
    DATA = "data"
    CONTROL = "control"
    BATCH = "batch"


def _purpose_of(request: Request, add_version: int) -> _Purpose:
    match request:
        case ReadRequest(previous_lac=None) | AddRequest(deferred_sync=False):
            return _Purpose.DATA
        case AddRequest() | ForceLedgerRequest():
            # Both over one connection: a bookie that was restarted in between would say that it has synced
            # all that it has, and has lost what it acknowledged.
            return _Purpose.DATA if add_version == 3 else _Purpose.CONTROL
        case BatchReadRequest():
            return _Purpose.BATCH
        case _:
            return _Purpose.CONTROL


class Transport:
    """All connections of one client. Made by ``open_transport``."""

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
        self._lines: dict[_Purpose, dict[str, Line]] = {purpose: {} for purpose in _Purpose}
        self._data_lines = self._lines[_Purpose.DATA]
        self._alive: dict[Line, int] = {}  # until all are told of the loss; each with its number
        self._lines_started = 0
        self.losses = 0  # connections given up so far: unchanged, they are all as they were
        self._is_closed = False
        self._is_v3 = config.add_version == 3
        self._told_closed: set[tuple[str, int]] = set()
        self._is_ticking = False
        self.timers = Timers()  # of requests; others who wait for bookies may use them too

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._alive)} connections"
        return f"<Transport {state}>"

    def post_adds(
        self, bookie: str, ledger_id: int, frames: list[bytes], entry_ids: Sequence[int], sink: AddSink
    ) -> None:
        """Send adds; ``sink`` is told of the answers, or once of the loss. Never waits.

        ``frames`` are whole frames, one or several in an element, together the adds of ``entry_ids``; made by
        the ``AddEncoder`` of ``config.add_version``, or by that of version 3 for deferred sync. They are sent
        once, in order, except that adds of one ledger for different sinks take turns. A sink may call this
        from inside its callbacks. On a closed transport the sink is told of the loss at once, one time for
        each bookie and ledger.
        """
        # The first byte of a payload is the version up to 2, and above 7 in version 3.
        purpose = _Purpose.DATA if (frames[0][4] > 7) is self._is_v3 else _Purpose.CONTROL
        line = self._lines[purpose].get(bookie)
        if line is None:
            if self._is_closed:
                self._refuse_adds(bookie, ledger_id, sink)
                return
            line = self._start_line(bookie, purpose)
        line.connection.post_adds(ledger_id, frames, entry_ids, sink)
        line.wake()
        if not self._is_ticking:
            self._tick_on()

    async def call(
        self,
        bookie: str,
        request: Request,
        *,
        high_priority: bool = False,
        timeout_s: float | None = None,
    ) -> Reply:
        """Ask, and return what the bookie answered, whatever its code; a refusal is an answer.

        If cancelled, or if it raises, the bookie may or may not have done what was asked.

        Args:
            timeout_s: From now to the answer, connecting included. Left out: ``request_timeout_s``, for
                a long poll added to the time the bookie may take.

        Raises:
            BookieUnavailableError: It cannot be reached, or the connection was lost.
            BookieSecurityError: TLS or authentication failed.
            BookieTimeoutError: No answer in time, or a connection that had gone silent was given up.
            UnsupportedInVersionError: ``config.add_version`` has no way to ask this.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()
        result: Reply | BookieError | None = None

        def told(answer: Reply | BookieError) -> None:
            nonlocal result
            result = answer
            trio.lowlevel.reschedule(task)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            asked.forget()
            return trio.lowlevel.Abort.SUCCEEDED

        asked = self.ask(bookie, request, told, high_priority=high_priority, timeout_s=timeout_s)
        await trio.lowlevel.wait_task_rescheduled(abort)
        if isinstance(result, BookieError):
            try:
                raise result
            finally:
                result = None  # or the exception and this frame would have each other, until collected
        assert result is not None
        return result

    def ask(
        self,
        bookie: str,
        request: Request,
        told: Told,
        *,
        high_priority: bool = False,
        timeout_s: float | None = None,
    ) -> Asked:
        """As ``call``, without waiting: ``told`` is called later, once, unless ``forget`` is.

        Raises:
            BookieUnavailableError: The transport is closed.
            UnsupportedInVersionError: ``config.add_version`` has no way to ask this.
        """
        if self._is_closed:
            raise BookieUnavailableError(bookie, "the transport is closed")
        purpose = _purpose_of(request, self.config.add_version)
        line = self._lines[purpose].get(bookie) or self._start_line(bookie, purpose)
        if timeout_s is None:
            timeout_s = self.config.request_timeout_s
            if isinstance(request, ReadRequest) and request.timeout_ms is not None:
                timeout_s += request.timeout_ms / 1000
        asked = Asked(line, request, told, timeout_s, self._tick_on)
        line.ask(asked, high_priority)
        asked.timer = self.timers.after(timeout_s, asked.time_is_up)
        if isinstance(request, AddRequest):
            self._tick_on()
        return asked

    def forget(self, ledger_id: int, sink: AddSink | None = None) -> None:
        """No more answers for this ledger to ``sink``, or to any sink; its adds may or may not be stored."""

        def whose(one: AddSink) -> bool:
            return not isinstance(one, CalledAdds) if sink is None else one is sink

        for line in self._alive:
            line.connection.forget(ledger_id, whose)

    def connection_to(self, bookie: str, *, add_version: int) -> int | None:
        """The number of the connection that adds of this version go over; None while it is not made.

        As long as the number stays, the bookie is the same process: it has forgotten no fence and no entry.
        Behind another number there may be another bookie, at the same address.
        """
        purpose = _Purpose.DATA if add_version == self.config.add_version else _Purpose.CONTROL
        line = self._lines[purpose].get(bookie)
        return self._alive[line] if line is not None and line.is_connected else None

    def queued_bytes(self, bookie: str) -> int:
        """Bytes of adds and reads that wait to be sent to this bookie."""
        line = self._data_lines.get(bookie)
        return 0 if line is None else line.connection.outbox.queued_bytes

    async def wait_writable(self, bookies: Iterable[str]) -> None:
        """Return once at most ``config.queued_bytes_max`` bytes wait to be sent to each of these bookies.

        It also returns when a connection is lost; the sinks are told of that.
        """
        await trio.lowlevel.checkpoint()
        names = list(bookies)
        while full := [name for name in names if self.queued_bytes(name) > self.config.queued_bytes_max]:
            await self._data_lines[full[0]].room.park()

    # --- lines ----------------------------------------------------------------------------------------------

    def _start_line(self, bookie: str, purpose: _Purpose) -> Line:
        match purpose:
            case _Purpose.DATA:
                version = self.config.add_version
            case _Purpose.CONTROL:
                version = 3
            case _Purpose.BATCH:
                version = 2
        line = Line(
            bookie, purpose.value, version, dial=self._dial, resolve=self._resolve, config=self.config
        )
        self._lines[purpose][bookie] = line
        self._lines_started += 1
        self._alive[line] = self._lines_started
        self._nursery.start_soon(
            self._run_line, line, purpose, name=f"{purpose.value} connection to {bookie}"
        )
        return line

    async def _run_line(self, line: Line, purpose: _Purpose) -> None:
        try:
            await line.run()
        finally:
            # First the room for a new line, for those who are told may ask again at once.
            del self._lines[purpose][line.bookie]
            self.losses += 1
            line.tell()
            del self._alive[line]

    def _refuse_adds(self, bookie: str, ledger_id: int, sink: AddSink) -> None:
        # Once only: a sink that posts again whenever it is told of a loss would never come to an end.
        if (bookie, ledger_id) not in self._told_closed:
            self._told_closed.add((bookie, ledger_id))
            sink.bookie_lost(bookie, BookieUnavailableError(bookie, "the transport is closed"))

    def _tick_on(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self.timers.after(self.config.add_timeout_s / SILENT_TICKS, self._tick)

    def _tick(self) -> None:
        for line in self._alive:
            line.tick()
        self._is_ticking = False
        if any(line.connection.needs_ticks for line in self._alive):
            self._tick_on()

    def _close(self) -> None:
        self._is_closed = True
        self._nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_transport(
    dial: Dial, resolve: Resolve, config: TransportConfig | None = None
) -> AsyncIterator[Transport]:
    """Open a transport; leaving the block closes its connections.

    Then calls raise ``BookieUnavailableError`` and sinks with unanswered adds are told of the loss.

    Args:
        dial: Opens a stream to an address; ``ledger.dial.dial_tcp``.
        resolve: Where a bookie listens now.
    """
    async with open_background() as nursery:
        transport = Transport(dial, resolve, config or TransportConfig(), nursery)
        nursery.start_soon(transport.timers.run)
        try:
            yield transport
        finally:
            transport._close()
