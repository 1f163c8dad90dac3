"""The client of Redis Streams, against a server of a few lines that speaks RESP2."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from tests.bench.peers.redis import PEER, command_line
from tests.bench.peers.resp import (
    RedisConnection,
    RedisReplyError,
    RedisStreamReader,
    RedisStreamWriter,
    request,
)
from tests.places import ROOT


class StreamServer(socketserver.ThreadingTCPServer):
    """One stream; a MULTI of any connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *, replicas: int = 0, refuse: bytes = b"") -> None:
        self.entries: list[bytes] = []
        self.commands: list[list[bytes]] = []
        self.replicas, self.refuse = replicas, refuse
        super().__init__(("127.0.0.1", 0), Conversation)


class Conversation(socketserver.StreamRequestHandler):
    """One connection."""

    server: StreamServer

    def handle(self) -> None:
        queued: list[list[bytes]] | None = None
        while line := self.rfile.readline():
            command = []
            for _ in range(int(line[1:])):
                size = int(self.rfile.readline()[1:])
                command.append(self.rfile.read(size + 2)[:size])
            self.server.commands.append(command)
            if command[0] == b"MULTI":
                queued = []
                reply = b"+OK\r\n"
            elif command[0] == b"EXEC":
                replies = [self.reply(one) for one in queued or []]
                reply, queued = b"*%d\r\n%s" % (len(replies), b"".join(replies)), None
            elif queued is not None:
                queued.append(command)
                reply = b"+QUEUED\r\n"
            else:
                reply = self.reply(command)
            # In small pieces, so that the client meets replies that are cut anywhere.
            for first in range(0, len(reply), 1000):
                self.wfile.write(reply[first : first + 1000])

    def reply(self, command: list[bytes]) -> bytes:
        if command[0] == self.server.refuse:
            return b"-ERR refused\r\n"
        if command[0] == b"XADD":
            self.server.entries.append(command[4])
            return bulk(b"%d-0" % len(self.server.entries))
        if command[0] == b"WAIT":
            return b":%d\r\n" % self.server.replicas
        assert command[0] == b"XREAD"
        first = int(command[7].partition(b"-")[0])
        found = list(enumerate(self.server.entries))[first : first + int(command[2])]
        if not found:
            return b"*-1\r\n"
        parts = [
            b"*2\r\n%s*2\r\n$1\r\nd\r\n%s" % (bulk(b"%d-0" % (at + 1)), bulk(value)) for at, value in found
        ]
        return b"*1\r\n*2\r\n$1\r\ns\r\n*%d\r\n%s" % (len(parts), b"".join(parts))


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)


@contextlib.contextmanager
def connected(server: StreamServer) -> Iterator[RedisConnection]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with contextlib.closing(socket.create_connection(server.server_address, timeout=60)) as connection:  # type: ignore[arg-type]
            yield RedisConnection(connection)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# One value looks like the head of an entry; others hold line ends.
VALUES = [
    b"",
    b"\r\n",
    b"*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nd\r\n$5\r\n",
    os.urandom(5000),
    *[os.urandom(64)] * 60,
]


@pytest.mark.slow
def test_a_reader_gets_each_value_once_and_in_order() -> None:
    with connected(StreamServer()) as connection:
        writer = RedisStreamWriter(connection, 1)
        writer.append(VALUES[:1])
        writer.append(VALUES[1:30])
        writer.append_each(VALUES[30:])
        reader = RedisStreamReader(connection, 7)
        found: list[bytes] = []
        while len(found) < len(VALUES):
            batch = reader.read()
            assert 0 < len(batch) <= 7
            found += batch
        assert found == VALUES


def test_records_of_one_append_are_one_transaction() -> None:
    server = StreamServer()
    with connected(server) as connection:
        RedisStreamWriter(connection, 1).append([b"a", b"b"])
    assert [command[0] for command in server.commands] == [b"MULTI", b"XADD", b"XADD", b"EXEC"]


def test_with_replicas_each_append_waits_for_all_of_them() -> None:
    server = StreamServer(replicas=2)
    with connected(server) as connection:
        RedisStreamWriter(connection, 3).append([b"a"])
    assert server.commands[-1][:2] == [b"WAIT", b"2"]


def test_an_append_that_too_few_replicas_have_fails() -> None:
    server = StreamServer(replicas=1)
    with connected(server) as connection, pytest.raises(RedisReplyError, match="WAIT: 1 of 2 replicas"):
        RedisStreamWriter(connection, 3).append([b"a"])


@pytest.mark.parametrize("payloads", [[b"a"], [b"a", b"b"]])
def test_a_refused_append_is_an_error_also_within_a_transaction(payloads: list[bytes]) -> None:
    server = StreamServer(refuse=b"XADD")
    with connected(server) as connection, pytest.raises(RedisReplyError, match="ERR refused"):
        RedisStreamWriter(connection, 1).append(payloads)


def test_a_refused_read_is_an_error() -> None:
    with connected(StreamServer(refuse=b"XREAD")) as connection:
        connection.send(request(b"XREAD"))
        with pytest.raises(RedisReplyError, match="ERR refused"):
            connection.entries()


def test_the_servers_sync_each_reply_and_listen_on_loopback_only() -> None:
    words = command_line("redis-server", ROOT, 7001, None)
    settings = dict(zip(words[1::2], words[2::2], strict=True))
    assert settings["--appendonly"] == "yes"
    assert settings["--appendfsync"] == "always"
    assert settings["--bind"] == "127.0.0.1"
    assert command_line("redis-server", ROOT, 7002, 7001)[-2:] == ["--replicaof", "127.0.0.1 7001"]
    assert PEER.name == "redis"
