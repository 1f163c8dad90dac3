"""The few commands of Redis that the benchmark needs, over a blocking socket.

Inside: requests, replies, entries of a stream. Not inside: servers (``redis``).
Always: an error reply is raised, and the replies of a request are read before the next request.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/ (RESP2).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Any

RECEIVE_BYTES = 1 << 20
STREAM, FIELD = b"s", b"d"
# One entry of a stream with one field; the bytes of the value follow.
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nd\r\n\$(\d+)\r\n")


class RedisReplyError(Exception):
    """The server answered with an error, or closed the connection."""


def request(*parts: bytes) -> bytes:
    """One command."""
    return b"*%d\r\n%s" % (len(parts), b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))


class RedisConnection:
    """Sends requests and reads replies. ``connection.close`` is the caller's."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._position = 0

    def send(self, data: bytes) -> None:
        """Send requests; the caller reads a reply for each."""
        self._socket.sendall(data)

    def call(self, *parts: bytes) -> Any:
        """Send one command and return its reply.

        Raises:
            RedisReplyError: The reply is an error.
        """
        self.send(request(*parts))
        return self.reply()

    def reply(self) -> Any:
        """The next reply: bytes, a number, a list, or None.

        Raises:
            RedisReplyError: The reply is an error, or the connection is closed.
        """
        value = self._value()
        # A transaction's reply is a list with one reply for each of its commands.
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, RedisReplyError):
                raise one
        return value

    def entries(self) -> tuple[bytes, list[bytes]]:
        """The reply to XREAD of one stream: the id of the last entry and the values of its one field.

        An empty id and no values, if no entry came in time.
        """
        head = self._line()
        if head == b"*-1":
            return b"", []
        if head.startswith(b"-"):
            raise RedisReplyError(head.decode(errors="replace"))
        self._line()  # the pair of the stream's name and its entries
        self._value()
        count = int(self._line()[1:])
        values: list[bytes] = []
        last = b""
        for _ in range(count):
            while (match := _ENTRY.match(self._buffer, self._position)) is None:
                self._receive()
            last = match[1]
            self._position = match.end()
            values.append(self._exactly(int(match[2])))
        self._drop_read()
        return last, values

    def _value(self) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"*":
            return None if rest == b"-1" else [self._value() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self._exactly(int(rest))
        if kind == b":":
            return int(rest)
        return RedisReplyError(rest.decode(errors="replace")) if kind == b"-" else rest

    def _line(self) -> bytes:
        while (stop := self._buffer.find(b"\r\n", self._position)) < 0:
            self._receive()
        line = bytes(self._buffer[self._position : stop])
        self._position = stop + 2
        return line

    def _exactly(self, size: int) -> bytes:
        """The next ``size`` bytes; the line end after them is skipped."""
        while len(self._buffer) < self._position + size + 2:
            self._receive()
        data = bytes(self._buffer[self._position : self._position + size])
        self._position += size + 2
        return data

    def _receive(self) -> None:
        self._drop_read()
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise RedisReplyError("the server closed the connection")
        self._buffer += data

    def _drop_read(self) -> None:
        del self._buffer[: self._position]
        self._position = 0


class RedisStreamWriter:
    """Adds records to the stream and waits for the replicas."""

    def __init__(self, connection: RedisConnection, replicas: int) -> None:
        self._connection = connection
        self._others = replicas - 1

    def append(self, payloads: Sequence[bytes]) -> None:
        """As ``PeerWriter.append``: several records are one transaction."""
        adds = [request(b"XADD", STREAM, b"*", FIELD, payload) for payload in payloads]
        if len(adds) > 1:
            adds = [request(b"MULTI"), *adds, request(b"EXEC")]
        self._run(adds)

    def append_each(self, payloads: Sequence[bytes]) -> None:
        """As ``PeerWriter.append_each``: the commands are pipelined."""
        self._run([request(b"XADD", STREAM, b"*", FIELD, payload) for payload in payloads])

    def _run(self, requests: list[bytes]) -> None:
        if self._others:
            requests.append(request(b"WAIT", b"%d" % self._others, b"60000"))
        self._connection.send(b"".join(requests))
        reply = None
        for _ in requests:
            reply = self._connection.reply()
        if self._others and (not isinstance(reply, int) or reply < self._others):
            raise RedisReplyError(f"WAIT: {reply} of {self._others} replicas have the records after 60 s")


class RedisStreamReader:
    """Reads the stream from its beginning."""

    def __init__(self, connection: RedisConnection, records_max: int) -> None:
        self._connection = connection
        self._count = b"%d" % records_max
        self._last = b"0-0"

    def read(self) -> Sequence[bytes]:
        """As ``PeerReader.read``."""
        found: list[bytes] = []
        while not found:
            self._connection.send(
                request(b"XREAD", b"COUNT", self._count, b"BLOCK", b"1000", b"STREAMS", STREAM, self._last)
            )
            last, found = self._connection.entries()
            self._last = last or self._last
        return found
