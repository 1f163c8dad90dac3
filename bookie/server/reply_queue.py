"""Frames on their way to one peer, and the bytes that its connection holds.

Inside: queueing, the order of sending, bytes reserved for replies still to be made, the wait for capacity.
Not inside: sockets (``connection``), the shares of all connections (``shared_memory``).
Always: ``put`` never waits; the maker of a reply waits for capacity before; every byte counted here is
counted in the shared memory, and given back when it is sent or the connection ends.
"""

from __future__ import annotations

import itertools

import trio

from bookie.server.shared_memory import SharedMemory
from ledger.transport.pipe import PipeStream
from ledger.transport.socket_stream import SocketStream


class ReplyQueue:
    """See the module. On the loop."""

    def __init__(self, bytes_max: int, memory: SharedMemory) -> None:
        self._bytes_max = bytes_max
        self._memory = memory
        self._always_free_bytes = min(bytes_max, memory.share_bytes_min)  # below it the queue is never full
        self._frames: list[bytes | memoryview] = []
        self._queued_bytes = 0  # including the send under way
        self._taken_bytes = 0  # in the send under way
        self._reserved_bytes = 0
        self.received_bytes = 0  # of an incomplete frame, or of a chunk that waits
        self.sent_bytes = 0  # since the connection began
        self._idle_sender: trio.lowlevel.Task | None = None  # waits in ``take``
        self._progress: trio.Event | None = None  # while a task waits for capacity, or for a send
        self._is_held = False
        self._is_closed = False
        self.direct: PipeStream | SocketStream | None = None  # it may take frames at once

    def __repr__(self) -> str:
        return f"<ReplyQueue, {self._queued_bytes} bytes queued, {self._reserved_bytes} reserved>"

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def free_bytes(self) -> int:
        """How many more bytes may be queued now, at least 0."""
        limit, memory = self._bytes_max, self._memory
        share_bytes = (memory.bytes_max - memory.used_bytes) // 2  # as ``share_bytes``, for each chunk
        if share_bytes < memory.share_bytes_min:
            share_bytes = memory.share_bytes_min
        if share_bytes < limit:
            limit = share_bytes
        free_bytes = limit - self._queued_bytes - self._reserved_bytes
        return free_bytes if free_bytes > 0 else 0

    @property
    def is_full(self) -> bool:
        held_bytes = self._queued_bytes + self._reserved_bytes
        return held_bytes >= self._always_free_bytes and (
            held_bytes >= self._bytes_max or held_bytes >= self._memory.share_bytes
        )

    def put(self, frames: bytes) -> None:
        """Queue whole frames. Does nothing after ``close``."""
        if self._is_closed:
            return
        direct = self.direct
        if (
            direct is not None
            and self._idle_sender is not None
            and not self._frames
            and not self._is_held
            and direct.can_send(len(frames))
        ):
            sent_bytes = direct.send_now(frames)
            self.sent_bytes += sent_bytes
            if sent_bytes == len(frames):
                return
            frames = frames[sent_bytes:]
        self._frames.append(frames)
        self._queued_bytes += len(frames)
        self._memory.take(len(frames))
        if self._idle_sender is not None and not self._is_held:
            self._wake_sender()

    def put_large(self, head: bytes, body: memoryview) -> None:
        """As ``put``, for one frame in two parts. The body is not copied; it must not change."""
        if self._is_closed:
            return
        if isinstance(self.direct, PipeStream):  # within the process a copy is cheap
            self.put(b"".join((head, body)))
            return
        self._frames.append(head)
        self._frames.append(body)
        self._queued_bytes += len(head) + len(body)
        self._memory.take(len(head) + len(body))
        if self._idle_sender is not None and not self._is_held:
            self._wake_sender()

    def reserve(self, size_bytes: int) -> None:
        """Count the bytes of a reply that is being made. The caller releases them when it is queued."""
        self._reserved_bytes += size_bytes
        self._memory.take(size_bytes)

    def release(self, size_bytes: int) -> None:
        """Give reserved bytes back."""
        self._reserved_bytes -= size_bytes
        self._memory.give_back(size_bytes)
        if self._progress is not None and not self.is_full:
            self._wake_waiting()

    def received(self, size_bytes: int) -> None:
        """Set how many bytes of an incomplete frame the connection holds."""
        more_bytes = size_bytes - self.received_bytes
        self.received_bytes = size_bytes
        if more_bytes > 0:
            self._memory.take(more_bytes)
        elif more_bytes:
            self._memory.give_back(-more_bytes)

    async def wait_capacity(self) -> None:
        """Return when the queue is not full. It stays full if the peer reads nothing."""
        while self.is_full:
            await self._wait_progress()

    async def wait_sent(self) -> None:
        """Return once nothing is queued."""
        while self._queued_bytes:
            await self._wait_progress()

    async def wait_taken_sent(self) -> None:
        """Return once the taken frames are sent. Frames queued after them do not count."""
        while self._taken_bytes:
            await self._wait_progress()

    def hold(self, last: bytes) -> bytes:
        """Return the queued frames with ``last`` after them. Later frames stay queued until ``unhold``."""
        self._is_held = True
        frames = b"".join((*self._frames, last))
        self._frames.clear()
        self._queued_bytes -= len(frames) - len(last)
        self._memory.give_back(len(frames) - len(last))
        return frames

    def unhold(self) -> None:
        """Send queued frames again."""
        self._is_held = False
        if self._frames and self._idle_sender is not None:
            self._wake_sender()

    async def take(self) -> list[bytes | memoryview]:
        """All queued frames, as soon as there are any, in the pieces that are worth a copy: small ones are
        joined. The caller then reports each send with ``sent``.

        For one task. Without a checkpoint if frames are queued. A cancelled call has taken nothing.
        """
        while not self._frames or self._is_held:
            self._idle_sender = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_taking)
        frames, self._frames = self._frames, []
        pieces = frames if len(frames) == 1 else _joined(frames)
        self._taken_bytes = sum(map(len, pieces))
        return pieces

    def sent(self, size_bytes: int) -> None:
        """The peer has taken this many of the taken bytes."""
        self._queued_bytes -= size_bytes
        self._taken_bytes -= size_bytes
        self.sent_bytes += size_bytes
        self._memory.give_back(size_bytes)
        if self._progress is not None and (not self._taken_bytes or not self.is_full):
            self._wake_waiting()

    def close(self) -> None:
        """The connection has ended: give all bytes back and take no more frames."""
        self._is_closed = True
        self._frames.clear()
        self._memory.give_back(self._queued_bytes + self._reserved_bytes + self.received_bytes)
        self._queued_bytes = self._taken_bytes = self._reserved_bytes = self.received_bytes = 0
        if self._progress is not None:
            self._wake_waiting()

    # Waiting

    def _wake_sender(self) -> None:
        task, self._idle_sender = self._idle_sender, None
        assert task is not None  # callers look at ``_idle_sender`` first
        trio.lowlevel.reschedule(task)

    def _stop_taking(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle_sender = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _wait_progress(self) -> None:
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    def _wake_waiting(self) -> None:
        """Wake all waiting tasks. Each checks its own condition again."""
        progress, self._progress = self._progress, None
        assert progress is not None  # callers look at ``_progress`` first
        progress.set()


def _joined(frames: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The same bytes in fewer pieces: what ``put_large`` got stays as it is."""
    pieces: list[bytes | memoryview] = []
    for is_large, some in itertools.groupby(frames, lambda frame: isinstance(frame, memoryview)):
        if is_large:
            pieces += some
        else:
            pieces.append(b"".join(some))
    return pieces
