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
        self._frames: list[bytes] = []
        self._queued_bytes = 0  # and in the send under way
        self._reserved_bytes = 0
        self._received_bytes = 0
        self.sent_bytes = 0  # since the beginning
        self._wanted = trio.Event()  # set: there is something to send
        self._idle = trio.Event()  # set: room again, or all sent
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
        limit = min(self._bytes_max, self._memory.share_bytes)
        return max(0, limit - self._queued_bytes - self._reserved_bytes)

    @property
    def is_full(self) -> bool:
        held_bytes = self._queued_bytes + self._reserved_bytes
        return held_bytes >= self._bytes_max or held_bytes >= self._memory.share_bytes

    def put(self, frames: bytes) -> None:
        """Queue whole frames. After ``close`` nobody is left to send them to."""
        if self._is_closed:
            return
        self._frames.append(frames)
        self._queued_bytes += len(frames)
        self._memory.take(len(frames))
        if not self._is_held:
            self._wanted.set()

    def reserve(self, size_bytes: int) -> None:
        """Count bytes of an answer that is being made; ``release`` them when it is queued."""
        self._reserved_bytes += size_bytes
        self._memory.take(size_bytes)

    def release(self, size_bytes: int) -> None:
        self._reserved_bytes -= size_bytes
        self._memory.give_back(size_bytes)
        if not self.is_full:
            self._idle.set()

    def received(self, size_bytes: int) -> None:
        """So many bytes of a frame that is not whole yet are held."""
        if size_bytes > self._received_bytes:
            self._memory.take(size_bytes - self._received_bytes)
        else:
            self._memory.give_back(self._received_bytes - size_bytes)
        self._received_bytes = size_bytes

    async def wait_room(self) -> None:
        """Return at once if there is room; the peer takes what is queued, or nobody comes back."""
        while self.is_full:
            self._idle = trio.Event()
            await self._idle.wait()

    async def wait_sent(self) -> None:
        while self._queued_bytes:
            if self._idle.is_set():
                self._idle = trio.Event()
            await self._idle.wait()

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
        self._queued_bytes -= size_bytes
        self.sent_bytes += size_bytes
        self._memory.give_back(size_bytes)
        if not self.is_full:
            self._idle.set()

    def close(self) -> None:
        """The connection has ended: give everything back, take nothing more."""
        self._is_closed = True
        self._frames.clear()
        self._memory.give_back(self._queued_bytes + self._reserved_bytes + self._received_bytes)
        self._queued_bytes = self._reserved_bytes = self._received_bytes = 0
        self._idle.set()
