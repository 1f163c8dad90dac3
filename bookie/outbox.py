"""Frames on their way to one peer, and the bytes its connection holds.

Inside: queueing, sending order, what is reserved for answers still to be made, the wait for room.
Not inside: sockets (``server``), the shares of all connections (``shared_memory``).
Always: ``put`` never waits, whoever makes answers asks for room before; every byte counted here is counted
in the shared memory, and given back when it is sent or the connection ends.
"""

from __future__ import annotations

import trio

from bookie.shared_memory import SharedMemory


class Outbox:
    """See the module. On the loop."""

    def __init__(self, bytes_max: int, memory: SharedMemory) -> None:
        self._bytes_max = bytes_max
        self._memory = memory
        self._always_free_bytes = min(bytes_max, memory.share_bytes_min)  # whoever holds less is not full
        self._frames: list[bytes] = []
        self._queued_bytes = 0  # and in the send under way
        self._taken_bytes = 0  # of them, in the send under way
        self._reserved_bytes = 0
        self._received_bytes = 0
        self.sent_bytes = 0  # since the beginning
        self._idle_sender: trio.lowlevel.Task | None = None  # waits in ``take``
        self._less: trio.Event | None = None  # somebody waits for room, or until something is sent
        self._is_held = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Outbox, {self._queued_bytes} bytes queued, {self._reserved_bytes} reserved>"

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def room_bytes(self) -> int:
        """How much more may be queued now; 0 if that is nothing."""
        limit, share_bytes = self._bytes_max, self._memory.share_bytes
        if share_bytes < limit:
            limit = share_bytes
        room_bytes = limit - self._queued_bytes - self._reserved_bytes
        return room_bytes if room_bytes > 0 else 0

    @property
    def is_full(self) -> bool:
        held_bytes = self._queued_bytes + self._reserved_bytes
        return held_bytes >= self._always_free_bytes and (
            held_bytes >= self._bytes_max or held_bytes >= self._memory.share_bytes
        )

    def put(self, frames: bytes) -> None:
        """Queue whole frames. After ``close`` nobody is left to send them to."""
        if self._is_closed:
            return
        self._frames.append(frames)
        self._queued_bytes += len(frames)
        self._memory.take(len(frames))
        if self._idle_sender is not None and not self._is_held:
            self._wake_sender()

    def reserve(self, size_bytes: int) -> None:
        """Count bytes of an answer that is being made; ``release`` them when it is queued."""
        self._reserved_bytes += size_bytes
        self._memory.take(size_bytes)

    def release(self, size_bytes: int) -> None:
        self._reserved_bytes -= size_bytes
        self._memory.give_back(size_bytes)
        if self._less is not None and not self.is_full:
            self._wake_waiting()

    def received(self, size_bytes: int) -> None:
        """So many bytes of a frame that is not whole yet are held."""
        more_bytes = size_bytes - self._received_bytes
        self._received_bytes = size_bytes
        if more_bytes > 0:
            self._memory.take(more_bytes)
        elif more_bytes:
            self._memory.give_back(-more_bytes)

    async def wait_room(self) -> None:
        """Return at once if there is room; the peer takes what is queued, or nobody comes back."""
        while self.is_full:
            await self._wait_less()

    async def wait_sent(self) -> None:
        """Return once nothing is queued."""
        while self._queued_bytes:
            await self._wait_less()

    async def wait_taken_sent(self) -> None:
        """Return once what was taken is sent, whatever is queued behind it."""
        while self._taken_bytes:
            await self._wait_less()

    def hold(self, last: bytes) -> bytes:
        """Send nothing more of what comes; give back what was queued, with ``last`` behind it."""
        self._is_held = True
        frames = b"".join((*self._frames, last))
        self._frames.clear()
        self._queued_bytes -= len(frames) - len(last)
        self._memory.give_back(len(frames) - len(last))
        return frames

    def unhold(self) -> None:
        self._is_held = False
        if self._frames and self._idle_sender is not None:
            self._wake_sender()

    async def take(self) -> bytes:
        """Everything that is queued, as soon as there is anything; say ``sent`` when it is.

        For one task. No checkpoint if something is there. A cancelled call took nothing.
        """
        while not self._frames or self._is_held:
            self._idle_sender = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_taking)
        frames = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
        self._frames.clear()
        self._taken_bytes = len(frames)
        return frames

    def sent(self, size_bytes: int) -> None:
        """The peer has so many of the bytes that were taken."""
        self._queued_bytes -= size_bytes
        self._taken_bytes -= size_bytes
        self.sent_bytes += size_bytes
        self._memory.give_back(size_bytes)
        if self._less is not None and (not self._taken_bytes or not self.is_full):
            self._wake_waiting()

    def close(self) -> None:
        """The connection has ended: give everything back, take nothing more."""
        self._is_closed = True
        self._frames.clear()
        self._memory.give_back(self._queued_bytes + self._reserved_bytes + self._received_bytes)
        self._queued_bytes = self._taken_bytes = self._reserved_bytes = self._received_bytes = 0
        if self._less is not None:
            self._wake_waiting()

    # Waiting

    def _wake_sender(self) -> None:
        task, self._idle_sender = self._idle_sender, None
        assert task is not None
        trio.lowlevel.reschedule(task)

    def _stop_taking(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle_sender = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _wait_less(self) -> None:
        if self._less is None:
            self._less = trio.Event()
        await self._less.wait()

    def _wake_waiting(self) -> None:
        """They look for themselves whether it is what they wait for."""
        less, self._less = self._less, None
        assert less is not None
        less.set()
