"""A connected pair of streams inside one process, which passes bytes by reference.

Inside: a bounded queue of chunks for each direction, with the behaviour of a socket; handing chunks to the
receiver in the step of the sender (``deliver_to``).
Not inside: delays and failures (the network of the simulation wraps this).
Always: bytes arrive in order; a ``bytes`` object is passed on without a copy, unless the receiver asks for a
part of it; a sender waits while ``buffer_bytes_max`` bytes are unread.

Source: trio's stream interface; ``trio.testing.memory_stream_pair`` does the same, unbounded and with copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

BUFFER_BYTES_MAX = 1_048_576
JOIN_BYTES_MAX = 65_536  # small chunks are joined for the receiver, up to here


class _Busy:
    """Raises ``BusyResourceError`` if two tasks use one direction of a stream at the same time."""

    __slots__ = ("_what", "is_busy")

    def __init__(self, what: str) -> None:
        self._what = what
        self.is_busy = False

    def __enter__(self) -> None:
        if self.is_busy:
            raise trio.BusyResourceError(f"another task is {self._what} this stream")
        self.is_busy = True

    def __exit__(self, *_exc: object) -> None:
        self.is_busy = False


class _Waiter:
    """The one task that waits at one end of a direction, if there is one."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None

    async def park(self) -> None:
        self.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self.abort)

    def unpark(self) -> None:
        task = self.task
        if task is not None:
            self.task = None
            trio.lowlevel.reschedule(task)

    def abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class _Direction:
    """The bytes sent and not yet received in one direction."""

    def __init__(self, buffer_bytes_max: int) -> None:
        self.chunks: deque[bytes | memoryview] = deque()
        self.size_bytes = 0
        self.buffer_bytes_max = buffer_bytes_max
        self.no_more = False  # ``send_eof`` was called, or the sender is closed
        self.is_sender_closed = False
        self.is_receiver_closed = False
        self.sender, self.receiver = _Waiter(), _Waiter()
        self.deliver: Callable[[bytes], bool] | None = None

    def put(self, chunk: bytes) -> None:
        if self.deliver is not None and not self.chunks:
            if not self.deliver(chunk):
                self.deliver = None
            return
        self.chunks.append(chunk)
        self.size_bytes += len(chunk)
        if self.receiver.task is not None:
            self.receiver.unpark()

    def take(self, bytes_max: int | None) -> bytes:
        chunks = self.chunks
        chunk = chunks.popleft()
        if bytes_max is not None and len(chunk) > bytes_max:
            view = memoryview(chunk)
            chunks.appendleft(view[bytes_max:])
            chunk = view[:bytes_max]
        elif chunks:
            join_max = JOIN_BYTES_MAX if bytes_max is None else min(bytes_max, JOIN_BYTES_MAX)
            joined, joined_bytes = [chunk], len(chunk)
            while chunks and joined_bytes + len(chunks[0]) <= join_max:
                joined.append(chunks.popleft())
                joined_bytes += len(joined[-1])
            if len(joined) > 1:
                chunk = b"".join(joined)
        self.size_bytes -= len(chunk)
        if self.sender.task is not None:
            self.sender.unpark()
        return chunk if isinstance(chunk, bytes) else bytes(chunk)

    def has_capacity(self, size_bytes: int) -> bool:
        # An empty buffer accepts any chunk: one that is larger than the buffer must get through too.
        return not self.size_bytes or self.size_bytes + size_bytes <= self.buffer_bytes_max


class PipeStream(trio.abc.HalfCloseableStream):
    """One end. Made by ``stream_pair``."""

    def __init__(self, outgoing: _Direction, incoming: _Direction) -> None:
        self._out = outgoing
        self._in = incoming
        self._sending = _Busy("sending on")
        self._receiving = _Busy("receiving from")

    def __repr__(self) -> str:
        if self._out.is_sender_closed:
            return "<PipeStream closed>"
        return f"<PipeStream, {self._out.size_bytes} bytes in flight, {self._in.size_bytes} to receive>"

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data`` as a whole, once the buffer has space. If cancelled, all of it was sent or nothing.

        Raises:
            trio.BrokenResourceError: The other end is closed.
            trio.ClosedResourceError: This end is closed, or ``send_eof`` was called.
        """
        with self._sending:
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._wait_capacity(len(data))
            if data:
                self._out.put(data if isinstance(data, bytes) else bytes(data))
            # Other tasks get their turn when the bytes are on their way, and not before.
            await trio.lowlevel.cancel_shielded_checkpoint()

    def can_send(self, size_bytes: int) -> bool:
        """True if ``send_now`` may be called with this many bytes: no task sends, and the buffer has
        space."""
        out = self._out
        return not (self._sending.is_busy or out.no_more or out.is_receiver_closed) and (
            not out.size_bytes or out.has_capacity(size_bytes)
        )

    def send_now(self, data: bytes) -> int:
        """Send ``data`` as a whole, without a turn for other tasks; return its length.

        The caller has asked ``can_send``.
        """
        assert data  # send queues hold no empty piece
        self._out.put(data)
        return len(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Return once the buffer has space, or the other end is closed."""
        with self._sending:
            await trio.lowlevel.checkpoint()
            try:
                await self._wait_capacity(1)
            except trio.BrokenResourceError:
                return  # sending will not block: it will raise

    async def _wait_capacity(self, size_bytes: int) -> None:
        out = self._out
        while True:
            if out.is_sender_closed:
                raise trio.ClosedResourceError("this end of the pipe is closed")
            if out.no_more:
                raise trio.ClosedResourceError("send_eof was called")
            if out.is_receiver_closed:
                raise trio.BrokenResourceError("the other end of the pipe is closed")
            if not size_bytes or out.has_capacity(size_bytes):
                return
            await out.sender.park()

    async def send_eof(self) -> None:
        """Declare the end of the data to be sent. Receiving stays possible.

        Raises:
            trio.ClosedResourceError: This end is closed.
        """
        with self._sending:
            await trio.lowlevel.checkpoint()
            if self._out.is_sender_closed:
                raise trio.ClosedResourceError("this end of the pipe is closed")
            self._out.no_more = True
            self._out.receiver.unpark()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return at least one received byte, or ``b""`` at the end. A cancelled call takes nothing.

        Without ``max_bytes``, a large chunk is the same object that was sent.

        Raises:
            trio.ClosedResourceError: This end is closed.
        """
        if max_bytes is not None:
            if not isinstance(max_bytes, int):
                raise TypeError(f"max_bytes is a {type(max_bytes).__name__}, not an int")
            if max_bytes < 1:
                raise ValueError(f"max_bytes is {max_bytes}; at least 1")
        busy, incoming = self._receiving, self._in
        busy.__enter__()
        try:
            if incoming.chunks or incoming.no_more or incoming.is_receiver_closed:
                await trio.lowlevel.checkpoint()
            while True:
                if incoming.is_receiver_closed:
                    raise trio.ClosedResourceError("this end of the pipe is closed")
                if incoming.chunks:
                    return incoming.take(max_bytes)
                if incoming.no_more:
                    return b""
                # As ``park``, which would be one more coroutine to resume for each chunk.
                incoming.receiver.task = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(incoming.receiver.abort)
        finally:
            busy.is_busy = False

    def deliver_to(self, deliver: Callable[[bytes], bool]) -> None:
        """Hand each chunk that is sent from now on to a function, in the step of the sender.

        The function must not raise. Chunks that are unread come first, by ``receive_some``; until they are
        read, later ones queue behind them. The function gets no more chunks after it has returned False, or
        after ``aclose``; ``receive_some`` returns those.
        """
        self._in.deliver = deliver

    async def aclose(self) -> None:
        """Close both directions. The other end still receives what was sent. Takes effect even if
        cancelled."""
        self._out.is_sender_closed = self._out.no_more = True
        self._in.is_receiver_closed = True
        self._in.deliver = None
        self._in.chunks.clear()
        self._in.size_bytes = 0
        for direction in (self._out, self._in):
            direction.receiver.unpark()
            direction.sender.unpark()
        await trio.lowlevel.checkpoint()


def stream_pair(buffer_bytes_max: int = BUFFER_BYTES_MAX) -> tuple[PipeStream, PipeStream]:
    """Two connected streams: bytes sent on one are received from the other."""
    assert buffer_bytes_max > 0, buffer_bytes_max  # callers pass a constant
    there, back = _Direction(buffer_bytes_max), _Direction(buffer_bytes_max)
    return PipeStream(there, back), PipeStream(back, there)
