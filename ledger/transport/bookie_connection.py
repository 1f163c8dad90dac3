"""One connection to a bookie as running tasks, from dialling to loss, and the single requests on it.

Inside: connecting with a deadline, the sending and the receiving task, delivering replies and the loss.
Not inside: matching replies to requests (``connection_protocol``), TLS (``handshake``), the choice of a
connection for a request (``transport``).
Always: each request completes exactly once, with a reply, a timeout or the connection error, unless its
caller forgets it first; the stream is closed before the loss is reported, so no reply can follow the loss; an
error in the handling of a bookie's bytes ends this connection and nothing else.

Source: PerChannelBookieClient.java; docs/protocol.md 1.3.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from ledger.auth.auth import AuthFactory, ClientAuth
from ledger.codes import Code
from ledger.errors import BookieError, BookieSecurityError, BookieTimeoutError, BookieUnavailableError
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import failure_domain, first_line, report_contained
from ledger.runtime.tasks.task_errors import first_error
from ledger.runtime.tasks.timers import Timer
from ledger.transport.config import TransportConfig
from ledger.transport.connection_protocol import OPERATIONS, Call, ConnectionProtocol
from ledger.transport.dial import Address, Dial
from ledger.transport.handshake import authenticate, is_tls_refusal, start_tls
from ledger.transport.pipe import PipeStream
from ledger.transport.queues import AddReplies
from ledger.transport.socket_stream import SocketStream
from ledger.wire import v2, v3
from ledger.wire.messages import AddReply, AddRequest, ReadReply, Reply, Request

logger = get_logger(__name__)

Resolve = Callable[[str], Awaitable[Address]]

OnReply = Callable[[Reply | BookieError], None]
"""Receives the reply of the bookie, with whatever code, or the reason why there is none. Must not raise: it
is called in the task of the connection, which serves other requests too."""


_ALERT_WAIT_S = 0.5
_OPERATION = "connection to a bookie"
_RECEIVE_BYTES = 65_536  # as much as a stream returns at once if it is not asked for more
_RECEIVE_BYTES_MAX = 1_048_576


class PendingRequest:
    """One request from ``Transport.send`` to its reply, its timeout, its loss or ``forget``."""

    __slots__ = (
        "_on_forgotten",
        "_on_reply",
        "call",
        "connection",
        "request",
        "start_timer",
        "timeout_s",
        "timer",
    )

    def __init__(
        self,
        connection: BookieConnection,
        request: Request,
        on_reply: OnReply,
        timeout_s: float,
        on_forgotten: Callable[[], None],
    ) -> None:
        self.connection, self.request, self.timeout_s = connection, request, timeout_s
        self.call: Call | None = None  # None also for an add: the protocol cannot forget one (``SingleAdds``)
        self.timer: Timer | None = None
        self.start_timer: Callable[[], Timer] | None = None  # of a request with several replies
        self._on_reply: OnReply | None = on_reply
        self._on_forgotten = on_forgotten

    def complete(self, result: Reply | Code | BookieError) -> None:
        """Pass on the reply (for an add, made from its code) or the error, unless the request is over."""
        on_reply = self._on_reply
        if on_reply is None:
            return
        if self.timer is not None:
            self.timer.cancel()
        if isinstance(result, ReadReply) and result.more_follow and self.start_timer is not None:
            self.timer = self.start_timer()
            on_reply(result)
            return
        self._on_reply = None
        if isinstance(result, Code):
            assert isinstance(self.request, AddRequest)  # only SingleAdds completes with a code
            result = AddReply(result, self.request.ledger_id, self.request.entry_id)
        on_reply(result)

    def forget(self) -> None:
        """Never call ``on_reply``. The bookie may have done what was requested, or may still do it."""
        if self._on_reply is None:
            return
        self._on_reply = None
        if self.timer is not None:
            self.timer.cancel()
        if self.call is not None:
            self.connection.protocol.forget_call(self.call)
            self._on_forgotten()

    def time_out(self) -> None:
        """Fail with ``BookieTimeoutError``; a reply that arrives later is dropped."""
        on_reply = self._on_reply
        if on_reply is None:
            return
        self.forget()
        state = "" if self.connection.is_connected else "; still connecting"
        operation = OPERATIONS[type(self.request)].name
        on_reply(
            BookieTimeoutError(
                self.connection.bookie, f"no reply to {operation} within {self.timeout_s:g} s{state}"
            )
        )


class SingleAdds:
    """The sink of the adds of one ledger that ``Transport.send`` puts on one connection.

    ``on_empty`` is called when all of them have replies.
    """

    def __init__(
        self,
        make_error: Callable[[], BookieError],
        on_empty: Callable[[], object],
        on_violation: Callable[[str], object],
    ) -> None:
        """``on_violation``: gives the connection up."""
        self.pending: dict[int, deque[PendingRequest]] = {}  # by entry id
        self._make_error, self._on_empty, self._on_violation = make_error, on_empty, on_violation

    def on_add_replies(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        for entry_id in entry_ids:
            # Equal adds may be in flight together. The first reply belongs to the first, also if forgotten.
            requests = self.pending.get(entry_id)
            if requests is None:
                # The reply to an entry that was sent never comes: later ones would be taken for it.
                self._on_violation(f"a reply to an add of entry {entry_id}, which was not sent")
                self.on_bookie_lost(bookie, self._make_error())  # as many replies came as adds were sent
                return
            requests.popleft().complete(code)
            if not requests:
                del self.pending[entry_id]
        if not self.pending:
            self._on_empty()

    def on_bookie_lost(self, bookie: str, cause: Exception) -> None:
        pending, self.pending = self.pending, {}
        for requests in pending.values():
            for request in requests:
                request.complete(self._make_error())


class BookieConnection:
    """One connection: its protocol state, and the tasks that carry its bytes."""

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
        self.protocol = ConnectionProtocol(version, config.frame_bytes_max)
        self.bookie = bookie
        self.name = name
        self.is_connected = self.has_connected = False
        self.writable = trio.lowlevel.ParkingLot()  # of tasks that wait until fewer bytes are queued
        self._dial, self._resolve, self._config = dial, resolve, config
        self._scope = trio.CancelScope()
        self._idle_sender: trio.lowlevel.Task | None = None
        self._direct: PipeStream | SocketStream | None = None  # while connected without TLS
        self._unsent: list[bytes] = []  # pieces that were taken and could not be sent at once
        self._single_adds: dict[int, SingleAdds] = {}  # by ledger
        self._cause: tuple[type[BookieError], str, BaseException | None] | None = None
        self._fault: BaseException | None = None  # such as Ctrl-C, out of a step of the bookie

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "connecting"
        return f"<BookieConnection to {self.bookie} for {self.name}, {state}: {self.protocol!r}>"

    def wake_sender(self) -> None:
        """Send the queued frames: at once if the stream takes them, else by the sending task."""
        task = self._idle_sender
        if task is None:
            return
        send_queue, direct = self.protocol.send_queue, self._direct
        if direct is not None and send_queue.queued_bytes and direct.can_send(send_queue.queued_bytes):
            pieces = send_queue.take()
            for number, piece in enumerate(pieces):
                sent_bytes = direct.send_now(piece)
                send_queue.sent(sent_bytes)
                if sent_bytes < len(piece):
                    self._unsent = [piece[sent_bytes:], *pieces[number + 1 :]]
                    break
            else:
                return
        self._idle_sender = None
        trio.lowlevel.reschedule(task)

    def send(self, pending: PendingRequest, high_priority: bool) -> None:
        """Send a request. ``pending`` completes later with the reply, or for an add with its code.

        Raises:
            UnsupportedInVersionError: The protocol version of this connection has no such request.
        """
        if isinstance(pending.request, AddRequest):
            self._send_add(pending, pending.request, high_priority)
        else:
            pending.call = self.protocol.start_call(pending.request, high_priority, pending)
        self.wake_sender()

    def _send_add(self, pending: PendingRequest, request: AddRequest, high_priority: bool) -> None:
        codec = v2 if self.protocol.version == 2 else v3
        frame = codec.encode_request(
            request, transaction_id=request.entry_id + 1, high_priority=high_priority
        )
        sinks, ledger_id = self._single_adds, request.ledger_id
        sink = sinks.get(ledger_id)
        if sink is None:
            sink = sinks[ledger_id] = SingleAdds(
                self.make_error, lambda: sinks.pop(ledger_id, None), self._fail_by_violation
            )
        sink.pending.setdefault(request.entry_id, deque()).append(pending)
        self.protocol.post_adds(request.ledger_id, [frame], [request.entry_id], sink)

    def fail(self, kind: type[BookieError], message: str, source: BaseException | None = None) -> None:
        """Give the connection up. The first reason is kept, later ones are ignored."""
        if self._cause is None:
            self._cause = (kind, message, source)
        self._scope.cancel()

    def make_error(self) -> BookieError:
        """Make a new exception with the reason of the loss. Each request raises its own, in its own task."""
        kind, message, source = self._cause or (BookieUnavailableError, "the transport was closed", None)
        error = kind(self.bookie, message)
        error.__cause__ = source
        return error

    async def run(self) -> None:
        """Dial, then carry bytes until the connection is lost. The caller must call ``report_loss`` then."""
        with self._scope:
            stream = await self._open()
            if stream is not None:
                with failure_domain(_OPERATION, peer=self.bookie) as domain:
                    await self._carry(stream)
                if domain.error is not None:
                    self._fail_by_fault(domain.error)
        if self._fault is not None:
            raise self._fault

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
                    await authenticate(self.bookie, stream, self._login(config.auth))
                is_open = True
                return stream
        except trio.TooSlowError as exc:
            message = f"no connection{where} within {config.connect_timeout_s:g} s"
            self.fail(BookieUnavailableError, message, exc)
        except BookieUnavailableError as exc:
            self.fail(type(exc), exc.reason, exc)
        except Exception as exc:
            # Resolving and dialling are functions of the caller and may raise anything. The requests queued
            # here must complete with an error all the same.
            self.fail(BookieUnavailableError, f"connecting{where} failed: {exc!r}", exc)
        finally:
            if stream is not None and not is_open:
                await trio.aclose_forcefully(stream)
        return None

    def _login(self, auth: AuthFactory) -> ClientAuth:
        try:
            return auth()
        except (OSError, ValueError) as exc:
            raise BookieSecurityError(self.bookie, f"this client's secret cannot be used: {exc}") from None

    async def _carry(self, stream: trio.abc.Stream) -> None:
        self.is_connected = self.has_connected = True
        if isinstance(stream, trio.SocketStream):
            stream = SocketStream(stream)
        self._direct = stream if isinstance(stream, PipeStream | SocketStream) else None
        if isinstance(stream, PipeStream):
            stream.deliver_to(self._take_delivered)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_frames, stream)
                await self._receive_replies(stream)
        finally:
            self.is_connected, self._direct = False, None
            await trio.aclose_forcefully(stream)

    async def _send_frames(self, stream: trio.abc.Stream) -> None:
        send_queue = self.protocol.send_queue
        queued_bytes_max = self._config.queued_bytes_max
        send_all = stream.send_all
        try:
            while True:
                pieces, self._unsent = self._unsent or send_queue.take(), []
                if not pieces:
                    self._idle_sender = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._abort_idle)
                for piece in pieces:
                    await send_all(piece)
                    send_queue.sent(len(piece))
                    if self.writable and send_queue.queued_bytes <= queued_bytes_max:
                        self.writable.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            if self._config.tls is not None:
                # The alert of a bookie that refuses the client's certificate may not have been received yet.
                # The receiving task ends this wait.
                await trio.sleep(_ALERT_WAIT_S)
            self._fail_broken("while sending", exc)

    def _abort_idle(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle_sender = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _receive_replies(self, stream: trio.abc.Stream) -> None:
        protocol = self.protocol
        receive_some = stream.receive_some
        try:
            while True:
                missing_bytes = protocol.missing_bytes
                # A large reply in few pieces: each one is a step of the loop, and is copied.
                chunk = await receive_some(
                    min(missing_bytes + _RECEIVE_BYTES, _RECEIVE_BYTES_MAX)
                    if missing_bytes > _RECEIVE_BYTES
                    else None
                )
                if not chunk:
                    self._fail_closed_by_bookie()
                    return
                if not self._take_replies(bytes(chunk)):
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._fail_broken("while receiving", exc)

    def _take_replies(self, chunk: bytes) -> bool:
        """Complete the requests whose replies these bytes complete; False if the connection has failed."""
        protocol = self.protocol
        for received in protocol.receive(chunk):
            try:
                if isinstance(received, AddReplies):
                    sink = received.queue.sink
                    if sink is not None:
                        sink.on_add_replies(self.bookie, received.code, received.entry_ids)
                elif received.call.waiter is not None:
                    assert isinstance(received.call.waiter, PendingRequest)  # ``send`` passes one
                    received.call.waiter.complete(received.reply)
            except Exception as exc:  # the replies after it belong to others, who would wait for ever
                report_contained(_OPERATION, exc, peer=self.bookie)
                self._fail_by_fault(exc)
        if self._cause is not None:
            return False
        if protocol.failure is not None:
            self._fail_by_violation(str(protocol.failure), protocol.failure)
            return False
        if protocol.send_queue.queued_bytes:
            self.wake_sender()  # a reply let requests be sent that were waiting for their turn
        return True

    def _take_delivered(self, chunk: bytes) -> bool:
        # In the step of the bookie, which is in this process. It must not get the faults of callers.
        if not self.is_connected or self._cause is not None:
            return False
        try:
            return self._take_replies(chunk)
        except Exception as exc:
            report_contained(_OPERATION, exc, peer=self.bookie)
            self._fail_by_fault(exc)
            return False
        except BaseException as exc:
            self._fault = exc
            self._scope.cancel()
            return False

    def _fail_by_violation(self, what: str, source: BaseException | None = None) -> None:
        self.fail(BookieUnavailableError, f"broke the protocol: {what}", source)

    def _fail_by_fault(self, error: BaseException) -> None:
        cause = first_error(error)
        message = f"its reply was not handled: {type(cause).__name__}: {first_line(cause)}"
        self.fail(BookieUnavailableError, message, cause)

    def _fail_broken(self, doing: str, exc: Exception) -> None:
        reason = exc.__cause__ or exc  # trio's own exception does not say why
        # In TLS 1.3 the client's side of the handshake ends before the bookie checks the client's
        # certificate. A refusal is therefore the first thing received afterwards.
        if is_tls_refusal(reason):
            text = f"the connection broke {doing}: the bookie refuses this client in TLS: {reason}"
            self.fail(BookieSecurityError, text, exc)
        else:
            text = f"the connection broke {doing}: {str(reason) or type(reason).__name__}"
            self.fail(BookieUnavailableError, text, exc)

    def _fail_closed_by_bookie(self) -> None:
        message = "closed the connection"
        if self.protocol.batch_read_in_flight:
            message += "; a bookie older than 4.17 does so when it receives a batch read"
        self.fail(BookieUnavailableError, message)

    def tick(self) -> None:
        """Give the connection up if the bookie is silent. Called every quarter of the add timeout."""
        overdue = self.protocol.tick() if self.is_connected else None
        if overdue is not None:
            self.fail(BookieTimeoutError, f"silent for {self._config.add_timeout_s:g} s: {overdue}")

    def report_loss(self, *, is_news: bool = True) -> None:
        """Complete every request without a reply with the error, and notify the sinks of adds.

        They may send again at once; the transport then opens a new connection. ``is_news``: log it as
        information.
        """
        lost = self.protocol.close()
        logger.log(
            logging.INFO if is_news else logging.DEBUG,
            "%s; its %s connection had %d calls and the adds of %d ledgers without a reply",
            self.make_error(),
            self.name,
            len(lost.calls),
            len(lost.queues),
            extra=event(
                "connection.lost", bookie=self.bookie, calls=len(lost.calls), ledgers=len(lost.queues)
            ),
        )
        self.writable.unpark_all()
        # Each waiter and sink for itself: the others must learn of the loss, or they would wait for ever.
        for call in lost.calls:
            if call.waiter is not None:
                assert isinstance(call.waiter, PendingRequest)  # ``send`` passes one to ``start_call``
                with failure_domain(_OPERATION, peer=self.bookie):
                    call.waiter.complete(self.make_error())
        for queue in lost.queues:
            if queue.sink is not None:
                with failure_domain(_OPERATION, ledger_id=queue.ledger_id, peer=self.bookie):
                    queue.sink.on_bookie_lost(self.bookie, self.make_error())
