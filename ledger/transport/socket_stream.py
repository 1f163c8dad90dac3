"""A connected socket as a stream that can also send within a step of the loop.

``trio.SocketStream`` sends and receives in steps of a task. For a small frame each step costs more than the
system call: one wakes the sending task, another one follows the send. Here the code that makes a frame may
send it at once (``send_now``), and ``receive_some`` waits before its first system call, which would be in
vain nearly always.

Inside: both, and the rule when a frame may be sent at once. Not inside: the queue of frames that must wait
(``queues``, and the bookie's ``reply_queue``), TLS.
Always: bytes leave in the order of the calls; ``send_now`` takes bytes only while no task sends, never waits
and never raises: the task that sends the rest gets the error.

Source: our own; ``trio.SocketStream`` for the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter

import trio

SEND_NOW_BYTES_MAX = 65_536  # more is left to the sending task
SEND_NOW_PAUSE_S = 100e-6
"""Frames that follow each other faster wait for the sending task, which joins them."""

_RECEIVE_BYTES = 65_536  # as trio's


class SocketStream(trio.abc.HalfCloseableStream):
    """Wraps a ``trio.SocketStream``, which must not be used any more."""

    def __init__(self, stream: trio.SocketStream, *, clock: Callable[[], float] = perf_counter) -> None:
        self.socket = stream.socket
        self._stream = stream
        self._clock = clock
        self._sent_s = -SEND_NOW_PAUSE_S
        self._is_sending = False  # a task sends

    def __repr__(self) -> str:
        return f"<SocketStream on descriptor {self.socket.fileno()}>"

    def can_send(self, size_bytes: int) -> bool:
        """True if ``send_now`` may be called with this many bytes: no task sends, and nothing left just
        now."""
        return (
            not self._is_sending
            and size_bytes <= SEND_NOW_BYTES_MAX
            and self._clock() - self._sent_s >= SEND_NOW_PAUSE_S
        )

    def send_now(self, data: bytes) -> int:
        """Send what the system takes at once; return how many bytes. The caller has asked ``can_send``."""
        descriptor = self.socket.fileno()
        if descriptor < 0:
            return 0
        try:
            sent = os.write(descriptor, data)
        except OSError:
            return 0  # the socket is full, broken, or closed for sending: then ``send_all`` says why
        self._sent_s = self._clock()
        return sent

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As ``trio.SocketStream.send_all``."""
        was_sending, self._is_sending = self._is_sending, True
        try:
            await self._stream.send_all(data)
        finally:
            self._is_sending = was_sending
            self._sent_s = self._clock()

    async def send_some(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Send some of the bytes of these pieces with one system call; return how many.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: As ``send_all``.
        """
        was_sending, self._is_sending = self._is_sending, True
        try:
            return await self.socket.sendmsg(pieces)
        except OSError as exc:
            if self.socket.fileno() < 0:
                raise trio.ClosedResourceError("this socket was already closed") from None
            raise trio.BrokenResourceError(f"socket connection broken: {exc}") from exc
        finally:
            self._is_sending = was_sending
            self._sent_s = self._clock()

    async def wait_send_all_might_not_block(self) -> None:
        """As ``trio.SocketStream.wait_send_all_might_not_block``."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """As ``trio.SocketStream.send_eof``."""
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As ``trio.SocketStream.receive_some``. A cancelled call takes nothing."""
        if max_bytes is None:
            max_bytes = _RECEIVE_BYTES
        elif not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes is a {type(max_bytes).__name__}, not an int")
        elif max_bytes < 1:
            raise ValueError(f"max_bytes is {max_bytes}; at least 1")
        while True:
            if self.socket.fileno() < 0:
                raise trio.ClosedResourceError("this socket was already closed")
            await trio.lowlevel.wait_readable(self.socket)
            descriptor = self.socket.fileno()
            if descriptor < 0:
                raise trio.ClosedResourceError("this socket was already closed")
            try:
                return os.read(descriptor, max_bytes)
            except BlockingIOError:
                continue
            except OSError as exc:
                raise trio.BrokenResourceError(f"socket connection broken: {exc}") from exc

    async def aclose(self) -> None:
        """Close the socket."""
        await self._stream.aclose()
