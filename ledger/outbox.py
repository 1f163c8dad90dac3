"""Frames gathered for one connection, and the pieces they are sent in.

Inside: counting bytes, joining small frames.
Not inside: who asked what (``connection``), sending (``transport``).
Always: frames leave in the order they came in, each of them whole and once.
"""

from __future__ import annotations

SEND_BYTES_MAX = 1_048_576  # small frames are joined up to here
SEND_ALONE_BYTES_MIN = 65_536  # from here on copying a frame costs more than a system call of its own


class Outbox:
    """What is to be sent. ``queued_bytes`` also counts what was taken and is not yet reported as sent."""

    __slots__ = ("_bytes", "_frames", "queued_bytes")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._bytes = 0
        self.queued_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._frames

    def put(self, frames: list[bytes], size_bytes: int) -> None:
        """Append frames, of ``size_bytes`` together."""
        self._frames += frames
        self._bytes += size_bytes
        self.queued_bytes += size_bytes

    def take(self) -> list[bytes]:
        """All that has gathered, in pieces worth a system call each. Report each with ``sent``."""
        frames, size_bytes = self._frames, self._bytes
        if not frames:
            return []
        self._frames, self._bytes = [], 0
        if size_bytes <= SEND_BYTES_MAX and max(map(len, frames)) < SEND_ALONE_BYTES_MIN:
            return [b"".join(frames)]
        pieces: list[bytes] = []
        gathered: list[bytes] = []
        gathered_bytes = 0
        for frame in frames:
            size = len(frame)
            if gathered and (size >= SEND_ALONE_BYTES_MIN or gathered_bytes + size > SEND_BYTES_MAX):
                pieces.append(b"".join(gathered))
                gathered, gathered_bytes = [], 0
            if size >= SEND_ALONE_BYTES_MIN:
                pieces.append(frame)
            else:
                gathered.append(frame)
                gathered_bytes += size
        if gathered:
            pieces.append(b"".join(gathered))
        return pieces

    def sent(self, size_bytes: int) -> None:
        """So many bytes of what was taken are with the operating system."""
        self.queued_bytes -= size_bytes
        assert self.queued_bytes >= self._bytes, "more was sent than taken"

    def clear(self) -> None:
        """Drop everything; the connection is no more."""
        self._frames, self._bytes, self.queued_bytes = [], 0, 0
