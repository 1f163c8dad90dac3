"""Connections: what arrives goes to a ``Session``, what it says goes out, nobody may fill the memory.

Inside: accepting, receiving whole frames, one sender for each connection, slow work with few hands, TLS
that begins in the middle, back-pressure in both directions, an orderly end.
Not inside: what a request means (``service``, ``answers``), who may hold how much (``outbox``,
``shared_memory``).
Always: after a frame that is no message the connection is closed, and no other; while a peer does not read
its answers, or storage has no room for its entries, nothing more is taken from it; all connections together
hold bounded bytes; a reply is whole or its connection ends.

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
from bookie.in_progress import InProgress
from bookie.outbox import Outbox
from bookie.replies import refusal
from bookie.server_config import ServerConfig
from bookie.service import BookieService, PlainReads, Slow
from bookie.shared_memory import SharedMemory
from ledger.errors import WireError
from ledger.wire import v3
from ledger.wire.codes import Code, Operation
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import IncomingRequest, StartTlsReply, StartTlsRequest

log = logging.getLogger(__name__)

_SEND_BYTES_MAX = 256 << 10
_RECEIVE_BYTES_MIN = 8192  # also when memory is short


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
        self._connections: dict[_Connection, None] = {}
        self._unwatched: dict[_Connection, None] = {}  # until memory becomes tight
        config = self._config
        self._bell = _Bell()
        self.memory = SharedMemory(
            config.total_bytes_max,
            config.share_bytes_min,
            on_room=self._bell.ring,
            on_tight=self._watch_peers,
        )
        service.in_progress = InProgress(
            config.adds_in_progress_max, config.reads_in_progress_max, on_less=self._bell.ring
        )
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
        connection = _Connection(
            self._service, self._config, stream, self._wall_ms, self.memory, self._bell, self._unwatched
        )
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]

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

    def _watch_peers(self) -> None:
        for connection in self._unwatched:
            connection.watch()
        self._unwatched.clear()


class _Bell:
    """Wakes all who wait; they look for themselves whether it was for them."""

    def __init__(self) -> None:
        self._event: trio.Event | None = None  # while somebody waits

    def ring(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()


class _PeerStalledError(Exception):
    """A peer holds memory that others need, and does nothing about it."""


class _Connection:
    """One peer: a receiver, a sender, a few hands for slow work, and its long polls."""

    def __init__(
        self,
        service: BookieService,
        config: ServerConfig,
        stream: trio.abc.Stream,
        wall_ms: Callable[[], int],
        memory: SharedMemory,
        bell: _Bell,
        unwatched: dict[_Connection, None],
    ) -> None:
        self._service = service
        self._config = config
        self._stream = stream
        self._memory = memory
        self._bell = bell  # rung when there may be room for whoever waits
        self._unwatched = unwatched  # it is in here, or ``_watch_peer`` runs
        self._outbox = Outbox(config.outbox_bytes_max, memory)
        self._session = service.open_session(self._outbox.put, self._start)
        self._answers = SlowAnswers(service, self._session, self._outbox, wall_ms, config.batch_bytes_max)
        self._slow: deque[Slow] = deque()
        self._slow_count = 0  # requests in it
        self._has_read = False  # this peer asks for what is not in memory
        self._slow_room: trio.Event | None = None  # the receiver waits for it
        self._workers_count = 0
        self._idle_worker: trio.lowlevel.Task | None = None  # one of them waits for work
        self._long_polls_count = 0
        self._upgrade: IncomingRequest | None = None
        self._is_draining = False  # nothing more that arrives is looked at
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._send)
                if self._config.response_timeout_s is not None or self._memory.is_tight:
                    self.watch()
                else:
                    self._unwatched[self] = None
                await self._receive()
                if self._is_draining:
                    await trio.sleep_forever()  # the server ends it
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as lost:
            log.debug("connection lost: %s", lost.exceptions[0])
        except* StorageFailedError:
            log.debug("connection closed: the storage has failed")
        except* _PeerStalledError as stalled:
            log.warning("connection closed: %s", stalled.exceptions[0])
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
            self._unwatched.pop(self, None)
            self._outbox.close()
            self._service.in_progress.count_reads(-self._slow_count)
            self._slow.clear()
            await trio.aclose_forcefully(self._stream)

    def stop_receiving(self) -> None:
        self._is_draining = True

    def watch(self) -> None:
        """From now on, for as long as memory is tight, end the connection if its peer takes nothing."""
        nursery = self._living_nursery()
        if nursery is not None:
            nursery.start_soon(self._watch_peer)

    async def wait_sent(self) -> None:
        await self._outbox.wait_sent()

    async def _receive(self) -> None:
        frames = FrameBuffer(self._config.frame_bytes_max)
        feed, handle = frames.feed, self._session.handle
        receive_bytes = self._config.receive_bytes
        outbox, session, memory = self._outbox, self._session, self._memory
        wait_storage, in_progress = self._service.storage.wait_room, self._service.in_progress
        while True:
            if outbox.is_full:
                await outbox.wait_room()
            while self._slow_count > self._config.slow_queue_max:
                self._slow_room = trio.Event()
                await self._slow_room.wait()
            room_bytes = outbox.room_bytes
            if room_bytes < _RECEIVE_BYTES_MIN:
                room_bytes = _RECEIVE_BYTES_MIN
            chunk = await self._stream.receive_some(
                room_bytes if room_bytes < receive_bytes else receive_bytes
            )
            if not chunk:
                return
            outbox.received(frames.held_bytes + len(chunk))
            # Waited for before what came is looked at: once there is room, this step of the loop takes it,
            # and whoever else waits looks anew.
            while in_progress.is_full(adds=session.has_written, reads=self._has_read):
                await self._bell.wait()
            if session.has_written:
                await wait_storage()
            if self._is_draining:
                return
            session.inline_bytes_max = outbox.room_bytes  # now: others have taken theirs meanwhile
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
            held_bytes = frames.held_bytes
            outbox.received(held_bytes)
            if held_bytes > memory.share_bytes_min and memory.is_exhausted:
                await self._wait_memory(held_bytes)

    async def _wait_memory(self, held_bytes: int) -> None:
        """Read on when others have given memory back; if none does, this frame is the one too many."""
        memory = self._memory
        with trio.move_on_after(self._config.stalled_s):
            while memory.is_exhausted:
                await self._bell.wait()
            return
        raise _PeerStalledError(
            f"all connections together hold {memory.used_bytes} bytes, more than {memory.bytes_max}, and this"
            f" one has sent {held_bytes} bytes of a frame"
        )

    async def _watch_peer(self) -> None:
        """End a connection whose peer takes nothing of its answers while others need the memory.

        A task for each connection, but only while memory is tight, or if peers have a time to answer in.
        """
        config, outbox = self._config, self._outbox
        period_s = config.stalled_s if config.response_timeout_s is None else config.response_timeout_s
        while True:
            sent_bytes, queued_bytes = outbox.sent_bytes, outbox.queued_bytes
            await trio.sleep(period_s)
            if config.response_timeout_s is None and not self._memory.is_tight:
                break
            if queued_bytes > 0 and outbox.sent_bytes == sent_bytes:
                raise _PeerStalledError(
                    f"in {period_s:g} s the peer took none of the {outbox.queued_bytes} bytes of its answers"
                )
        self._unwatched[self] = None

    async def _send(self) -> None:
        outbox = self._outbox
        while True:
            frames = await outbox.take()
            # In pieces: what the peer has taken is room for others, and a sign of life.
            for start in range(0, len(frames), _SEND_BYTES_MAX):
                piece = frames[start : start + _SEND_BYTES_MAX]
                await self._stream.send_all(piece)
                outbox.sent(len(piece))

    async def _begin_tls(self, incoming: IncomingRequest) -> None:
        """Answer in clear, then speak TLS; answers of earlier requests still to come go through it."""
        assert self._config.tls is not None
        self._upgrade = None
        self._session.may_upgrade = False
        last_clear = self._outbox.hold(self._session.encode(incoming, StartTlsReply(Code.OK)))
        # Behind a send under way; the outbox gives the sender nothing while held.
        await self._outbox.wait_taken_sent()
        await self._stream.send_all(last_clear)
        encrypted = trio.SSLStream(self._stream, self._config.tls, server_side=True)
        try:
            with trio.fail_after(self._config.tls_handshake_s):
                await encrypted.do_handshake()
        except (trio.BrokenResourceError, trio.TooSlowError) as exc:
            raise WireError(f"TLS handshake failed: {exc.__cause__ or exc!r}") from exc
        self._stream = encrypted
        self._outbox.unhold()

    def _start(self, work: Slow) -> None:
        nursery = self._living_nursery()
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
            count = len(work) if isinstance(work, PlainReads) else 1
            self._slow.append(work)
            self._slow_count += count
            self._service.in_progress.count_reads(count)
            self._has_read = True
            worker = self._idle_worker
            if worker is not None:
                self._idle_worker = None
                trio.lowlevel.reschedule(worker)
            elif self._workers_count < self._config.slow_workers_max:
                self._workers_count += 1
                nursery.start_soon(self._do_slow_work)

    def _living_nursery(self) -> trio.Nursery | None:
        """None once the connection ends: a nursery whose last task has ended takes no other."""
        nursery = self._nursery
        return None if nursery is None or nursery.cancel_scope.cancel_called else nursery

    async def _do_long_poll(self, work: Slow) -> None:
        try:
            await self._answers.answer(work)
        finally:
            self._long_polls_count -= 1

    async def _do_slow_work(self) -> None:
        try:
            while True:
                while self._slow:
                    work = self._slow.popleft()
                    count = len(work) if isinstance(work, PlainReads) else 1
                    await self._answers.answer(work)
                    self._slow_count -= count
                    self._service.in_progress.count_reads(-count)
                    if self._slow_room is not None and self._slow_count <= self._config.slow_queue_max // 2:
                        self._slow_room.set()
                        self._slow_room = None
                if self._idle_worker is not None:
                    return
                # Whoever reads from disk does so again: a task for each read costs more than one that stays.
                self._idle_worker = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._stop_idling)
        finally:
            self._workers_count -= 1

    def _stop_idling(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle_worker = None
        return trio.lowlevel.Abort.SUCCEEDED
