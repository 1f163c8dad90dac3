"""Redis Streams: servers of the benchmark's own, with appendonly and appendfsync always.

Inside: start, replication and end of the servers. Not inside: commands (``resp``).
Always: the servers listen on loopback only and end with the benchmark, also when it is killed. With
replicas, an append waits for all of them (WAIT); a reader of the first server may see a record before that.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import trio

from dlog.cluster import process
from dlog.cluster.guardian import open_guardian
from dlog.cluster.ports import free_ports
from dlog.cluster.process import ProcessId
from tests.bench.peers.polling import READ_RECORDS
from tests.bench.peers.resp import RedisConnection, RedisReplyError, RedisStreamReader, RedisStreamWriter
from tests.bench.peers.seam import Address, Peer, Service

PACKAGE = "redis-server: `apt-get install redis-server`"
HOST = "127.0.0.1"
START_S = 30
POLL_S = 0.05


def command_line(program: str, directory: Path, port: int, replica_of: int | None) -> list[str]:
    """The command of one server; every synced byte is on disk before a reply leaves."""
    options = {
        "--port": str(port),
        "--bind": HOST,
        "--dir": str(directory),
        "--appendonly": "yes",
        "--appendfsync": "always",
        "--save": "",
        "--daemonize": "no",
        "--repl-diskless-sync-delay": "0",
    }
    words = [program, *(word for pair in options.items() for word in pair)]
    return words if replica_of is None else [*words, "--replicaof", f"{HOST} {replica_of}"]


@contextlib.asynccontextmanager
async def _serve(directory: Path, replicas: int) -> AsyncIterator[Service]:
    program = shutil.which("redis-server")
    assert program is not None, "the caller asked find_missing"  # as it says
    ports = free_ports(replicas, random.Random(), host=HOST)
    with open_guardian() as group:
        servers: list[ProcessId] = []
        try:
            for port in ports:
                home = directory / str(port)
                home.mkdir()
                command = command_line(program, home, port, None if port == ports[0] else ports[0])
                servers.append(process.start_detached(command, home / "log", group=group))
            await _wait_ready(ports, servers, directory)
            yield Service({"port": ports[0], "replicas": replicas}, replicas, partial(_cpu_s, servers))
        finally:
            with trio.CancelScope(shield=True):
                for server in servers:
                    await process.stop(server, grace_s=5)


async def _wait_ready(ports: Sequence[int], servers: Sequence[ProcessId], directory: Path) -> None:
    with trio.move_on_after(START_S):
        while not _is_ready(ports[0], len(ports) - 1):
            if not all(map(process.is_alive, servers)):
                break
            await trio.sleep(POLL_S)
        else:
            return
    logs = [(directory / str(port) / "log").read_text("utf-8", "replace")[-500:] for port in ports]
    raise RedisReplyError(f"redis-server was not ready within {START_S} s; its log ends: {logs}")


def _is_ready(port: int, replicas: int) -> bool:
    try:
        with contextlib.closing(socket.create_connection((HOST, port), timeout=5)) as connection:
            info = RedisConnection(connection).call(b"INFO", b"replication")
    except (OSError, RedisReplyError):
        return False
    return isinstance(info, bytes) and info.count(b"state=online") == replicas


def _cpu_s(servers: Sequence[ProcessId]) -> float:
    return sum(stats.cpu_s for server in servers if (stats := process.stats(server)) is not None)


@contextlib.contextmanager
def _connect(address: Address) -> Iterator[RedisConnection]:
    with contextlib.closing(socket.create_connection((HOST, address["port"]))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield RedisConnection(connection)


@contextlib.contextmanager
def _open_writer(address: Address, _size: int) -> Iterator[RedisStreamWriter]:
    with _connect(address) as connection:
        yield RedisStreamWriter(connection, address["replicas"])


@contextlib.contextmanager
def _open_reader(address: Address, _size: int) -> Iterator[RedisStreamReader]:
    with _connect(address) as connection:
        yield RedisStreamReader(connection, READ_RECORDS)


def _find_missing() -> str | None:
    return None if shutil.which("redis-server") else PACKAGE


PEER = Peer("redis", _find_missing, _serve, _open_writer, _open_reader)
