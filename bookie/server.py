"""Connections: what arrives goes to a ``Session``, what it says goes out, nobody may fill the memory.

Inside: accepting, receiving whole frames, one sender for each connection, slow work with few hands, TLS
that begins in the middle, back-pressure in both directions, an orderly end.
Not inside: what a request means (``service``, ``answers``).
Always: after a frame that is no message the connection is closed, and no other; while a peer does not read
its answers, or storage has no room, nothing more is read from it; a reply is whole or its connection ends.

Source: BookKeeper, BookieNettyServer.java; reference sections 1 and 9.10.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import trio

from bookie.answers import SlowAnswers, is_long_poll
from bookie.errors import StorageFailedError
from bookie.replies import refusal
from bookie.server_config import ServerConfig
from bookie.service import BookieService, Slow
from ledger.errors import WireError
from ledger.wire import v3
from ledger.wire.codes import Code, Operation
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import IncomingRequest, StartTlsReply, StartTlsRequest

log = logging.getLogger(__name__)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Server:
    """The network side of one bookie. Make it, then run ``serve`` or ``serve_stream`` for each peer."""

    def __init__(
        self,
        service: BookieService,
        config: ServerConfig | None = None,
        *,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._service = service
        self._config = config or ServerConfig()
        self._wall_ms = wall_ms  # the date that answers to long polls carry
        self._connections: set[_Connection] = set()
        service.has_tls = self._config.tls is not None

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
        """Accept and serve until cancelled; then every connection is closed at once (see ``drain``)."""
        await trio.serve_listeners(self.serve_stream, list(listeners), task_status=task_status)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one peer until it goes, or breaks the protocol; never raises for what the peer did."""
        connection = _Connection(self._service, self._config, stream, self._wall_ms)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def drain(self, *, timeout_s: float) -> bool:
        """Read no more requests; return once what was taken is durable and its answers are sent.

        Returns:
            False if that took longer than it may; the rest is lost with its connections, unacknowledged.
        """
        for connection in self._connections:
            connection.stop_receiving()
        with trio.move_on_after(timeout_s) as scope:
            settled = trio.Event()
            self._service.storage.submit(lambda error: settled.set())
            await settled.wait()
            for connection in list(self._connections):
                await connection.wait_sent()
        return not scope.cancelled_caught


class _Outbox:
    """Frames on their way to one peer. ``put`` never waits; what may be queued is bounded by its callers."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames: list[bytes] = []
        self._size_bytes = 0  # queued, and in the send under way
        self._wanted = trio.Event()  # set: there is something to send
        self._idle = trio.Event()  # set: room again, or all sent
        self._is_held = False

    def put(self, frames: bytes) -> None:
        self._frames.append(frames)
        self._size_bytes += len(frames)
        if not self._is_held:
            self._wanted.set()

    @property
    def is_full(self) -> bool:
        return self._size_bytes > self._bytes_max

    async def wait_room(self) -> None:
        while self.is_full:
            self._idle = trio.Event()
            await self._idle.wait()

    async def wait_sent(self) -> None:
        while self._size_bytes:
            if self._idle.is_set():
                self._idle = trio.Event()
            await self._idle.wait()

    def hold(self, last: bytes) -> bytes:
        """Send nothing more of what comes; give back what was queued, with ``last`` behind it."""
        self._is_held = True
        frames = b"".join((*self._frames, last))
        self._frames.clear()
        self._size_bytes -= len(frames) - len(last)
        return frames

    def release(self) -> None:
        self._is_held = False
        if self._frames:
            self._wanted.set()

    async def take(self) -> bytes:
        """Everything that is queued, as soon as there is anything; say ``sent`` when it is."""
        await self._wanted.wait()
        self._wanted = trio.Event()
        frames = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
        self._frames.clear()
        return frames

    def sent(self, size_bytes: int) -> None:
        self._size_bytes -= size_bytes
        if not self.is_full:
            self._idle.set()


class _Connection:
    """One peer: a receiver, a sender, a few hands for slow work, and its long polls."""

    def __init__(
        self,
        service: BookieService,
        config: ServerConfig,
        stream: trio.abc.Stream,
        wall_ms: Callable[[], int],
    ) -> None:
        self._service = service
        self._config = config
        self._stream = stream
        self._outbox = _Outbox(config.outbox_bytes_max)
        self._session = service.open_session(self._outbox.put, self._start)
        self._answers = SlowAnswers(
            service, self._session, self._outbox.wait_room, wall_ms, config.batch_bytes_max
        )
        self._slow: deque[Slow] = deque()
        self._slow_room = trio.Event()
        self._workers_count = 0
        self._long_polls_count = 0
        self._upgrade: IncomingRequest | None = None
        self._sending = trio.Lock()
        self._receiving = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._send)
                with self._receiving:
                    await self._receive()
                if self._receiving.cancelled_caught:
                    await trio.sleep_forever()  # draining: the server ends it
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as lost:
            log.debug("connection lost: %s", lost.exceptions[0])
        except* StorageFailedError:
            log.debug("connection closed: the storage has failed")
        except* WireError as bad:
            log.warning("connection closed: %s", bad.exceptions[0])
        except* AssertionError:
            raise  # our own books are wrong: nothing may be acknowledged on their strength
        except* Exception:
            # A fault of ours that this peer's request brought out. It costs the peer its connection, which
            # acknowledges nothing; were it to cost the bookie, one request would take down every replica.
            log.exception("connection closed by a fault in the bookie; please report it")
        finally:
            self._nursery = None
            await trio.aclose_forcefully(self._stream)

    def stop_receiving(self) -> None:
        self._receiving.cancel()

    async def wait_sent(self) -> None:
        await self._outbox.wait_sent()

    async def _receive(self) -> None:
        frames = FrameBuffer(self._config.frame_bytes_max)
        feed, handle = frames.feed, self._session.handle
        receive_bytes = self._config.receive_bytes
        wait_storage = self._service.storage.wait_room
        while True:
            chunk = await self._stream.receive_some(receive_bytes)
            if not chunk:
                return
            data, spans = feed(bytes(chunk))
            if spans:
                handle(data, spans)
                if self._upgrade is not None:
                    last = v3.decode_request(data, *spans[-1])
                    if spans[-1][1] != len(data) or last.operation is not Operation.START_TLS:
                        raise WireError(
                            "START_TLS with more in clear behind it; the peer must wait for the answer"
                        )
                    await self._begin_tls(self._upgrade)
                    frames = FrameBuffer(self._config.frame_bytes_max)
                    feed = frames.feed
            if self._outbox.is_full:
                await self._outbox.wait_room()
            while len(self._slow) > self._config.slow_queue_max:
                self._slow_room = trio.Event()
                await self._slow_room.wait()
            await wait_storage()

    async def _send(self) -> None:
        while True:
            frames = await self._outbox.take()
            async with self._sending:
                await self._stream.send_all(frames)
            self._outbox.sent(len(frames))

    async def _begin_tls(self, incoming: IncomingRequest) -> None:
        """Answer in clear, then speak TLS; answers of earlier requests still to come go through it."""
        assert self._config.tls is not None
        self._upgrade = None
        self._session.may_upgrade = False
        last_clear = self._outbox.hold(self._session.encode(incoming, StartTlsReply(Code.OK)))
        # Behind a send under way: the lock is fair, and the outbox gives the sender nothing while held.
        async with self._sending:
            await self._stream.send_all(last_clear)
        encrypted = trio.SSLStream(self._stream, self._config.tls, server_side=True)
        try:
            with trio.fail_after(self._config.tls_handshake_s):
                await encrypted.do_handshake()
        except (trio.BrokenResourceError, trio.TooSlowError) as exc:
            raise WireError(f"TLS handshake failed: {exc.__cause__ or exc!r}") from exc
        self._stream = encrypted
        self._outbox.release()

    def _start(self, work: Slow) -> None:
        nursery = self._nursery
        if nursery is None:
            return  # the peer has gone; a read has nobody to answer to
        if isinstance(work, IncomingRequest) and isinstance(work.request, StartTlsRequest):
            self._upgrade = work
        elif is_long_poll(work):
            assert isinstance(work, IncomingRequest)
            if self._long_polls_count >= self._config.long_polls_max:
                self._session.reply(work, refusal(work, Code.TOO_MANY_REQUESTS))
            else:
                self._long_polls_count += 1
                nursery.start_soon(self._do_long_poll, work)
        else:
            self._slow.append(work)
            if self._workers_count < self._config.slow_workers_max:
                self._workers_count += 1
                nursery.start_soon(self._do_slow_work)

    async def _do_long_poll(self, work: Slow) -> None:
        try:
            await self._answers.answer(work)
        finally:
            self._long_polls_count -= 1

    async def _do_slow_work(self) -> None:
        try:
            while self._slow:
                work = self._slow.popleft()
                if len(self._slow) <= self._config.slow_queue_max // 2:
                    self._slow_room.set()
                await self._answers.answer(work)
        finally:
            self._workers_count -= 1
