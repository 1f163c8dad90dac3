"""One connection to a bookie as running tasks: from the dialling to the loss.

Inside: connecting with a deadline, the sending and the receiving task, telling those who wait for answers.
Not inside: matching answers (``connection``), TLS (``handshake``), which requests go where (``transport``).
Always: the stream is closed before anybody is told of the loss, so no answer can follow; whoever asked is
answered or told, once.

Source: PerChannelBookieClient.java; reference section 1.3.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from ledger.add_lanes import AddsAnswered
from ledger.asked import Asked
from ledger.connection import Connection
from ledger.dial import Address, Dial
from ledger.errors import BookieError, BookieSecurityError, BookieTimeoutError, BookieUnavailableError
from ledger.handshake import authenticate, start_tls
from ledger.transport_config import TransportConfig
from ledger.wire import v2, v3
from ledger.wire.codes import Code
from ledger.wire.messages import AddRequest

logger = logging.getLogger(__name__)

Resolve = Callable[[str], Awaitable[Address]]


class CalledAdds:
    """The sink of adds that were asked for by ``call``, of one ledger on one connection.

    ``emptied`` is called when all that were asked for have been answered.
    """

    def __init__(self, make_cause: Callable[[], BookieError], emptied: Callable[[], object]) -> None:
        self.waiting: dict[int, deque[Asked]] = {}
        self._make_cause, self._emptied = make_cause, emptied

    def adds_answered(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        for entry_id in entry_ids:
            # Equal adds may be in flight together; the first answer is the first one's, also if forgotten.
            waiters = self.waiting.get(entry_id)
            if waiters is None:
                continue  # the bookie made the id up; the call waits on and times out
            waiters.popleft().wake(code)
            if not waiters:
                del self.waiting[entry_id]
        if not self.waiting:
            self._emptied()

    def bookie_lost(self, bookie: str, cause: Exception) -> None:
        waiting, self.waiting = self.waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                waiter.wake(self._make_cause())


class Line:
    """One connection: its tasks from the dialling to the loss."""

    def __init__(
        self,
        bookie: str,
        name: str,
        version: int,
        *,
        dial: Dial,
        resolve: Resolve,
        config: TransportConfig,
    ) -> None:
        self.connection = Connection(version, config.frame_bytes_max)
        self.bookie = bookie
        self.name = name
        self.is_connected = False
        self.room = trio.lowlevel.ParkingLot()
        self._dial, self._resolve, self._config = dial, resolve, config
        self._scope = trio.CancelScope()
        self._idle_sender: trio.lowlevel.Task | None = None
        self._called_adds: dict[int, CalledAdds] = {}
        self._cause: tuple[type[BookieError], str, BaseException | None] | None = None

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "connecting"
        return f"<Line to {self.bookie} for {self.name}, {state}: {self.connection!r}>"

    def wake(self) -> None:
        """There is something to send."""
        task = self._idle_sender
        if task is not None:
            self._idle_sender = None
            trio.lowlevel.reschedule(task)

    def ask(self, asked: Asked, high_priority: bool) -> None:
        """Send a request; ``asked`` is woken with the answer, or for an add with its code.

        Raises:
            UnsupportedInVersionError: This line's version cannot say it.
        """
        if isinstance(asked.request, AddRequest):
            self._ask_add(asked, asked.request, high_priority)
        else:
            asked.call = self.connection.start_call(asked.request, high_priority, asked)
        self.wake()

    def _ask_add(self, asked: Asked, request: AddRequest, high_priority: bool) -> None:
        codec = v2 if self.connection.version == 2 else v3
        frame = codec.encode_request(
            request, transaction_id=request.entry_id + 1, high_priority=high_priority
        )
        sinks, ledger_id = self._called_adds, request.ledger_id
        sink = sinks.get(ledger_id)
        if sink is None:
            sink = sinks[ledger_id] = CalledAdds(self.make_cause, lambda: sinks.pop(ledger_id, None))
        sink.waiting.setdefault(request.entry_id, deque()).append(asked)
        self.connection.post_adds(request.ledger_id, [frame], [request.entry_id], sink)

    def fail(self, kind: type[BookieError], message: str, source: BaseException | None = None) -> None:
        """Give the connection up. Only the first reason counts."""
        if self._cause is None:
            self._cause = (kind, message, source)
        self._scope.cancel()

    def make_cause(self) -> BookieError:
        """Why it was lost: a new exception for each who asks, since each raises it in a task of its own."""
        kind, message, source = self._cause or (BookieUnavailableError, "the transport was closed", None)
        cause = kind(self.bookie, message)
        cause.__cause__ = source
        return cause

    async def run(self) -> None:
        """Dial, then carry bytes until the connection is lost. Afterwards ``tell`` has to be called."""
        with self._scope:
            stream = await self._open()
            if stream is not None:
                await self._carry(stream)

    async def _open(self) -> trio.abc.Stream | None:
        config = self._config
        stream: trio.abc.Stream | None = None
        where = ""
        is_open = False
        try:
            with trio.fail_after(config.connect_timeout_s):
                address = await self._resolve(self.bookie)
                where = f" to {address}" if str(address) != self.bookie else ""
                stream = await self._dial(address)
                if config.tls is not None:
                    stream = await start_tls(self.bookie, stream, config.tls, address.host)
                if config.auth is not None:
                    await authenticate(self.bookie, stream, config.auth(), self.connection.version)
                is_open = True
                return stream
        except trio.TooSlowError as exc:
            message = f"no connection{where} within {config.connect_timeout_s:g} s"
            self.fail(BookieUnavailableError, message, exc)
        except BookieUnavailableError as exc:
            self.fail(type(exc), exc.reason, exc)
        except Exception as exc:
            # The top of this shell: resolving and dialling are handed in and may fail in any way, and those
            # whose requests are queued here have to be told.
            self.fail(BookieUnavailableError, f"connecting{where} failed: {exc!r}", exc)
        finally:
            if stream is not None and not is_open:
                await trio.aclose_forcefully(stream)
        return None

    async def _carry(self, stream: trio.abc.Stream) -> None:
        self.is_connected = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, stream)
                await self._receive(stream)
        finally:
            self.is_connected = False
            await trio.aclose_forcefully(stream)

    async def _send(self, stream: trio.abc.Stream) -> None:
        outbox = self.connection.outbox
        queued_bytes_max = self._config.queued_bytes_max
        send_all = stream.send_all
        try:
            while True:
                pieces = outbox.take()
                if not pieces:
                    self._idle_sender = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._stop_sending)
                for piece in pieces:
                    await send_all(piece)
                    outbox.sent(len(piece))
                    if self.room and outbox.queued_bytes <= queued_bytes_max:
                        self.room.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._fail_broken("while sending", exc)

    def _stop_sending(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle_sender = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _receive(self, stream: trio.abc.Stream) -> None:
        connection = self.connection
        receive_some = stream.receive_some
        try:
            while True:
                chunk = await receive_some()
                if not chunk:
                    self._closed_by_bookie()
                    return
                for answer in connection.receive(bytes(chunk)):
                    if isinstance(answer, AddsAnswered):
                        sink = answer.lane.sink
                        if sink is not None:
                            sink.adds_answered(self.bookie, answer.code, answer.entry_ids)
                    elif answer.call.waiter is not None:
                        assert isinstance(answer.call.waiter, Asked)
                        answer.call.waiter.wake(answer.reply)
                if connection.failure is not None:
                    message = f"broke the protocol: {connection.failure}"
                    self.fail(BookieUnavailableError, message, connection.failure)
                    return
                if not connection.outbox.is_empty:
                    self.wake()  # an answer made room for those that waited for their turn
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._fail_broken("while receiving", exc)

    def _fail_broken(self, doing: str, exc: Exception) -> None:
        reason = exc.__cause__ or exc  # trio's own exception says only that it happened
        # In TLS 1.3 our side of the handshake is over before the bookie looks at our certificate: its refusal
        # is the first thing it says afterwards.
        is_refusal = isinstance(reason, ssl.SSLError) and not isinstance(reason, ssl.SSLEOFError)
        kind = BookieSecurityError if is_refusal else BookieUnavailableError
        self.fail(kind, f"the connection broke {doing}: {str(reason) or type(reason).__name__}", exc)

    def _closed_by_bookie(self) -> None:
        message = "closed the connection"
        if self.connection.batch_read_in_flight:
            message += "; a bookie older than 4.17 does so when asked for a batch read"
        self.fail(BookieUnavailableError, message)

    def tick(self) -> None:
        """Called every quarter of the add timeout."""
        overdue = self.connection.tick() if self.is_connected else None
        if overdue is not None:
            self.fail(BookieTimeoutError, f"silent for {self._config.add_timeout_s:g} s: {overdue}")

    def tell(self) -> None:
        """Everyone who waits learns of the loss. They may ask again at once, on a new line."""
        lost = self.connection.lose()
        logger.info(
            "%s; its %s connection owed answers to %d calls and to the adds of %d ledgers",
            self.make_cause(),
            self.name,
            len(lost.calls),
            len(lost.lanes),
        )
        self.room.unpark_all()
        for call in lost.calls:
            if call.waiter is not None:
                assert isinstance(call.waiter, Asked)
                call.waiter.wake(self.make_cause())
        for lane in lost.lanes:
            if lane.sink is not None:
                lane.sink.bookie_lost(self.bookie, self.make_cause())
