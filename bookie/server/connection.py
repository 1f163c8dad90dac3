"""One connection of a bookie: frames in, ``ClientSession``, frames out, within bounded memory.

Inside: receiving whole frames, one sender, TLS that begins within the connection, back-pressure in both
directions.
Not inside: accepting, all connections together (``server``), what a request means (``session``,
``reads``), how much memory a connection may hold (``reply_queue``, ``shared_memory``).
Always: a frame that is no message closes its connection and no other; while a peer does not read its replies,
or the storage has no capacity for its entries, nothing more is received from it; a reply is sent whole or its
connection ends.

Source: BookKeeper, BookieNettyServer.java; docs/protocol.md 1 and 9.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from bookie.errors import AccountingError, StorageFailedError
from bookie.requests.deferred import DeferredRequest
from bookie.requests.session import SLOW_FRAMES_MAX
from bookie.requests.turns import CLOSE_UNITS, SLOW_FRAME_UNITS, UNIT_BYTES
from bookie.server.connections import Peer
from bookie.server.deferred_work import DeferredWork
from bookie.server.early_tokens import receive_clear_text
from bookie.server.gate import (
    EARLY_TOKEN_S,
    FRAME_BYTES_MAX,
    UNENCRYPTED,
    Gate,
    RefusedError,
    is_start_tls,
)
from bookie.server.handshake import HandshakeError, shake_hands
from bookie.server.peer_warnings import PeerEvent, PeerWarnings
from bookie.server.reply_queue import ReplyQueue
from bookie.server.server_parts import ServerParts
from ledger.auth.authentication import certificate_identity, parse_certificate
from ledger.codes import Code
from ledger.errors import WireError
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import contained_failures, first_line
from ledger.runtime.tasks.task_errors import first_error
from ledger.transport.pipe import PipeStream
from ledger.transport.socket_stream import SocketStream
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import IncomingRequest, StartTlsReply, StartTlsRequest

log = get_logger(__name__)

CONNECTION = "connection"  # the label of the metric of contained failures
_SEND_BYTES_MAX = 256 << 10  # of a stream that says nothing before it has sent all
_VECTORED_BYTES_MAX = 1 << 20  # of one system call, which the other connections wait for
_RECEIVE_BYTES_MIN = 8192  # also while memory is short
_BYTES_OF_FRAME = 512  # how many frames a chunk announces to ``Turns`` before they are counted


class PeerStalledError(Exception):
    """A peer holds memory that other connections need, and makes no progress."""


class Connection:
    """One peer: a receiver, a sender, workers for deferred requests, and its long polls."""

    def __init__(
        self, stream: trio.abc.Stream, parts: ServerParts, unwatched: dict[Connection, None]
    ) -> None:
        """``unwatched`` has this connection, unless ``_watch_peer`` runs."""
        self._service = service = parts.service
        self._config = config = parts.config
        if isinstance(stream, trio.SocketStream):
            stream = SocketStream(stream)
        self._stream = stream
        self._memory = parts.memory
        self._capacity = parts.capacity
        self._unwatched = unwatched
        self._connections = parts.connections
        self._warnings = parts.warnings
        self.peer = Peer(_address_of(stream), self.close)
        self._reply_queue = ReplyQueue(config.reply_queue_bytes_max, parts.memory)
        if isinstance(stream, PipeStream | SocketStream) and config.tls is None:
            self._reply_queue.direct = stream
        self._session = service.open_session(self._reply_queue.put, self._defer)
        self._session.send_large = self._reply_queue.put_large
        self._session.free_bytes = lambda: self._reply_queue.free_bytes
        self._session.on_fault = self._fault
        self._turns = parts.turns
        self._work = DeferredWork(parts, self._session, self._reply_queue, self._note_refused)
        self._upgrade: IncomingRequest | None = None
        self._gate: Gate | None = None
        if config.tls_required or config.auth is not None:
            self._gate_opened = trio.Event()
            self._gate = Gate(
                self._session,
                self._reply_queue.put,
                config.auth,
                needs_tls=config.tls_required,
                on_open=self._gate_opened.set,
                on_early_token=self._limit_early_token,
            )
        self._is_draining = False  # received bytes are ignored
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._work.start(nursery)
                nursery.start_soon(self._receive_all, nursery)
                if self._config.response_timeout_s is not None or self._memory.is_tight:
                    self.watch()
                else:
                    self._unwatched[self] = None
                if self._gate is not None:
                    nursery.start_soon(self._watch_gate)
                await self._send()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as lost:
            log.debug("connection lost: %s", lost.exceptions[0])
        except* StorageFailedError:
            log.debug("connection closed: the storage has failed")
        except* PeerStalledError as stalled:
            self._warn(PeerEvent.STALLED, stalled.exceptions[0])
        except* HandshakeError as bad:
            self._warn(PeerEvent.TLS, bad.exceptions[0])
        except* RefusedError as bad:
            self._warn(PeerEvent.AUTHENTICATION, bad.exceptions[0])
        except* WireError as bad:
            self._warn(PeerEvent.PROTOCOL, bad.exceptions[0])
        except* AccountingError as wrong:
            self._fail(wrong.exceptions[0])
        except* Exception as fault:
            # A fault of the bookie, caused by a request of this peer. It closes this connection, which
            # acknowledges nothing. If it stopped the bookie, one request could stop every replica.
            note_fault(self._warnings, CONNECTION, self.peer.address, fault)
        finally:
            self._nursery = None
            try:
                self._charge_slow_frames()  # those before a bad one
                self._unwatched.pop(self, None)
                self._reply_queue.close()
                self._work.close()
            except Exception as exc:  # the counts are of all connections
                self._fail(exc)
            await trio.aclose_forcefully(self._stream)

    def _fail(self, error: BaseException) -> None:
        self._service.storage.failure.report(error, "counting what all connections hold")

    def _fault(self, error: Exception) -> None:
        """End the connection because of an error in a callback, which must not reach its caller."""
        note_fault(self._warnings, CONNECTION, self.peer.address, error)
        self.close("a fault in the bookie")

    def stop_receiving(self) -> None:
        self._is_draining = True

    def close(self, reason: str) -> None:
        """Close the connection now, and its descriptor with it. Acknowledged entries stay so."""
        log.debug("connection of %s closed: %s", self.peer.address, reason)
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        socket = _socket_of(self._stream)
        if socket is not None:
            socket.close()  # at once: the caller needs the descriptor

    def watch(self) -> None:
        """From now on, while memory is tight, close the connection if its peer makes no progress."""
        nursery = self._living_nursery()
        if nursery is not None:
            nursery.start_soon(self._watch_peer)

    async def wait_sent(self) -> None:
        await self._reply_queue.wait_sent()

    async def _receive_all(self, nursery: trio.Nursery) -> None:
        # A task of its own: each chunk resumes this one, and not the tasks of the server around it.
        try:
            await self._receive()
        except (trio.BrokenResourceError, WireError):
            await self._turns.take(CLOSE_UNITS)  # thousands of peers may end at once
            raise
        if self._is_draining:
            await trio.sleep_forever()  # until the server cancels it
        await self._turns.take(CLOSE_UNITS)
        nursery.cancel_scope.cancel()

    async def _receive(self) -> None:
        gate, frame_bytes_max = self._gate, self._config.frame_bytes_max
        frames = FrameBuffer(frame_bytes_max if gate is None else min(frame_bytes_max, FRAME_BYTES_MAX))
        feed, handle = frames.feed, self._session.handle if gate is None else gate.handle
        receive_bytes = self._config.receive_bytes
        reply_queue, session, memory = self._reply_queue, self._session, self._memory
        peer, work, turns = self.peer, self._work, self._turns
        storage, in_progress = self._service.storage, self._service.in_progress
        while True:
            free_bytes = reply_queue.free_bytes  # a queue that is full has none
            if not free_bytes or work.count > work.count_max:
                await reply_queue.wait_capacity()
                await work.wait_short()
                free_bytes = reply_queue.free_bytes
            if free_bytes < _RECEIVE_BYTES_MIN:
                free_bytes = _RECEIVE_BYTES_MIN
            peer.is_receiving = True
            chunk = await self._stream.receive_some(min(free_bytes, receive_bytes, memory.chunk_bytes_max))
            peer.is_receiving = False
            if not chunk:
                return
            # A chunk counts while it waits; nearly always it is handled in this step.
            if turns.is_spent or in_progress.has_limits or (session.has_written and storage.must_wait):
                reply_queue.received(frames.held_bytes + len(chunk))
                await self._wait_turn(len(chunk))
            if self._is_draining:
                return
            data, spans = feed(bytes(chunk))
            turns.charge(1 + len(spans) + len(data or chunk) // UNIT_BYTES)
            if spans:
                peer.chunks_count += 1
                if not peer.is_proven and gate is None:
                    self._connections.prove(peer)
                later = handle(data, spans)
                if later or gate is not None or self._upgrade is not None:
                    reply_queue.received(len(data))
                if session.slow_count:
                    self._charge_slow_frames()
                while later and self._upgrade is None and not self._is_draining:
                    wait_decision = session.wait_decision
                    if wait_decision is not None:
                        await wait_decision()
                    if wait_decision is None or turns.is_spent:
                        await turns.wait(min(len(later), SLOW_FRAMES_MAX) * SLOW_FRAME_UNITS)
                    later = handle(data, later)
                    self._charge_slow_frames()
                if self._upgrade is not None:
                    rest = data[spans[-1][1] :]
                    if (gate is None or not gate.takes_early_tokens) and (
                        rest or later or not is_start_tls(data, *spans[-1])
                    ):
                        raise WireError(UNENCRYPTED)
                    await self._begin_tls(self._upgrade, rest, gate)
                    frames.discard()
                if gate is not None and gate.denial is not None:
                    denial, gate.denial = gate.denial, None
                    self._warn(PeerEvent.REJECTED, RefusedError(denial))
                if gate is not None and gate.refused is not None:
                    await reply_queue.wait_sent()
                    raise RefusedError(gate.refused)
                if gate is not None and gate.is_open:
                    gate, handle = None, session.handle
                    self._connections.prove(peer)
                    frames.allow(frame_bytes_max)
            peer.held_bytes = held_bytes = frames.held_bytes
            if held_bytes != reply_queue.received_bytes:
                reply_queue.received(held_bytes)
            if held_bytes > memory.share_bytes_min and memory.is_exhausted:
                await self._wait_memory(held_bytes)

    async def _wait_turn(self, size_bytes: int) -> None:
        """Wait until a chunk may be handled: without a checkpoint if there is capacity for it.

        The waits come before the chunk is handled. When there is capacity, that step of the loop takes it at
        once, and each other waiting connection checks again.
        """
        in_progress, session, turns = self._service.in_progress, self._session, self._turns
        turn = 0
        while True:
            while in_progress.is_full(adds=session.has_written, reads=self._work.has_read):
                await self._capacity.wait()
            if session.has_written:
                await self._service.storage.wait_capacity()
            if not turns.is_spent or turns.has_turn(turn):
                return
            turn = await turns.wait(1 + size_bytes // _BYTES_OF_FRAME)

    def _charge_slow_frames(self) -> None:
        self._turns.charge(self._session.slow_count * SLOW_FRAME_UNITS)
        self._session.slow_count = 0

    async def _wait_memory(self, held_bytes: int) -> None:
        """Wait until other connections give memory back. After ``stalled_s`` close this connection."""
        memory = self._memory
        with trio.move_on_after(self._config.stalled_s):
            while memory.is_exhausted:
                await self._capacity.wait()
            return
        await self._turns.take(CLOSE_UNITS)
        raise PeerStalledError(
            f"all connections together hold {memory.used_bytes} bytes, more than {memory.bytes_max}, and this"
            f" one has sent {held_bytes} bytes of a frame"
        )

    async def _watch_gate(self) -> None:
        """Close the connection unless its peer is authenticated in time."""
        with trio.move_on_after(self._config.authentication_s):
            await self._gate_opened.wait()
            return
        await self._turns.take(CLOSE_UNITS)
        raise RefusedError(f"the peer is not authenticated after {self._config.authentication_s:g} s")

    def _limit_early_token(self) -> None:
        nursery = self._living_nursery()
        if nursery is not None:
            nursery.start_soon(self._refuse_early_token)

    async def _refuse_early_token(self) -> None:
        await trio.sleep(EARLY_TOKEN_S)
        assert self._gate is not None  # the gate has called ``_limit_early_token``
        self._gate.refuse_early_token()

    async def _watch_peer(self) -> None:
        """Close a connection whose peer takes no bytes of its replies while other connections need memory.

        This task runs only while memory is tight, or if replies have a timeout.
        """
        config, reply_queue = self._config, self._reply_queue
        period_s = config.stalled_s if config.response_timeout_s is None else config.response_timeout_s
        while True:
            sent_bytes, queued_bytes = reply_queue.sent_bytes, reply_queue.queued_bytes
            await trio.sleep(period_s)
            if config.response_timeout_s is None and not self._memory.is_tight:
                break
            if queued_bytes > 0 and reply_queue.sent_bytes == sent_bytes:
                await self._turns.take(CLOSE_UNITS)
                raise PeerStalledError(
                    f"in {period_s:g} s the peer took none of the {reply_queue.queued_bytes} bytes"
                    " of its replies"
                )
        self._unwatched[self] = None

    async def _send(self) -> None:
        reply_queue = self._reply_queue
        while True:
            pieces = await reply_queue.take()
            try:
                if len(pieces) == 1 and len(pieces[0]) <= _SEND_BYTES_MAX:
                    await self._stream.send_all(pieces[0])
                    reply_queue.sent(len(pieces[0]))
                else:
                    await send_pieces(self._stream, pieces, reply_queue.sent)
            except trio.BrokenResourceError:
                await self._turns.take(CLOSE_UNITS)
                raise

    async def _begin_tls(self, incoming: IncomingRequest, rest: bytes, gate: Gate | None) -> None:
        """Reply unencrypted, then switch to TLS. Later replies to earlier requests are encrypted.

        Args:
            rest: The bytes received after the last frame.
            gate: None if it is open, or there is none: then no clear text may follow.
        """
        assert self._config.tls is not None  # ``Server`` sets ``has_tls`` by it, the session ``may_upgrade``
        self._upgrade = None
        self._session.may_upgrade = False
        last_unencrypted = self._reply_queue.hold(self._session.encode(incoming, StartTlsReply(Code.OK)))
        # Wait for a send under way. While the queue is held it gives the sender nothing.
        await self._reply_queue.wait_taken_sent()
        await self._stream.send_all(last_unencrypted)
        try:
            with trio.fail_after(self._config.tls_handshake_s):
                stream = self._stream
                if gate is not None and gate.takes_early_tokens:
                    stream = await receive_clear_text(stream, rest, gate.handle)
                encrypted = await shake_hands(stream, self._config.tls(), self._turns)
        except (trio.BrokenResourceError, trio.TooSlowError) as exc:
            raise HandshakeError(exc.__cause__ or exc) from exc
        self._stream, self._session.is_upgrading = encrypted, False
        self._connections.unprove(self.peer)  # any stranger can send START_TLS
        certificate = parse_certificate(encrypted.getpeercert())
        if self._gate is not None:
            self._gate.on_tls(certificate)
            if self._gate.rejected is not None:
                self._warn(PeerEvent.REJECTED, RefusedError(self._gate.rejected))
        elif certificate is not None:
            self._session.identity = certificate_identity(certificate)
        self._reply_queue.unhold()

    def _warn(self, event: PeerEvent, error: BaseException) -> None:
        log.debug("connection closed: %s", error)
        text = f"peer {self.peer.address or 'without address'}: {error}"
        self._warnings.note(event, text, trio.current_time(), reason=getattr(error, "kind", ""))

    def _defer(self, request: DeferredRequest) -> None:
        """Begin work whose reply comes later."""
        if isinstance(request, IncomingRequest) and isinstance(request.request, StartTlsRequest):
            self._upgrade = request
        else:
            self._work.add(request)

    def _note_refused(self) -> None:
        self._warnings.note(PeerEvent.BUDGET, f"peer {self.peer.address}", trio.current_time())

    def _living_nursery(self) -> trio.Nursery | None:
        """None once the connection ends: a nursery whose last task has ended starts no other."""
        nursery = self._nursery
        return None if nursery is None or nursery.cancel_scope.cancel_called else nursery


def note_fault(warnings: PeerWarnings, operation: str, address: str, error: BaseException) -> None:
    """Count an error that ended a connection, or one round of the server; log it by the rule of warnings.

    As ``failure_domain``, for errors that peers may cause at any rate.
    """
    contained_failures[operation] += 1
    cause = first_error(error)
    text = f"{operation}, peer {address or 'without address'}: {type(cause).__name__}: {first_line(cause)}"
    warnings.note(PeerEvent.FAULT, text, trio.current_time(), error=error)


def _socket_of(stream: trio.abc.Stream) -> trio.socket.SocketType | None:
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return stream.socket if isinstance(stream, trio.SocketStream | SocketStream) else None


def _address_of(stream: trio.abc.Stream) -> str:
    socket = _socket_of(stream)
    try:
        name = None if socket is None else socket.getpeername()
    except OSError:  # the peer has disconnected already
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


async def send_pieces(
    stream: trio.abc.Stream, pieces: Sequence[bytes | memoryview], on_sent: Callable[[int], None]
) -> None:
    """Send all pieces in order, without copying them together where the stream has a socket.

    Each send that the peer takes is reported at once, because it frees memory and shows progress. A cancelled
    call may have sent some of the bytes.

    Raises:
        BrokenResourceError, ClosedResourceError: As ``send_all`` of the stream.
    """
    if isinstance(stream, SocketStream) and len(pieces) > 1:
        await _send_vectored(stream, [memoryview(piece) for piece in pieces], on_sent)
        return
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _SEND_BYTES_MAX):
            part = view[start : start + _SEND_BYTES_MAX]
            await stream.send_all(part)
            on_sent(len(part))


async def _send_vectored(
    stream: SocketStream, left: list[memoryview], on_sent: Callable[[int], None]
) -> None:
    while left:
        now: list[memoryview] = []
        room = _VECTORED_BYTES_MAX
        for piece in left:
            now.append(piece[:room])
            room -= len(now[-1])
            if not room:
                break
        sent = await stream.send_some(now)
        on_sent(sent)
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]
