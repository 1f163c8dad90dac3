"""Fuzzing the HTTP port of a real bookie, in this process and over loopback, beside a good client.

Inside: the bookie with both ports, hostile HTTP connections one after the other, what must hold after each.
Not inside: mutation (``mutate``), the good client (``port``).
Always: after each connection the good client reads its entry and adds another one, ``/heartbeat`` answers,
and no error ended a connection or the listener: what a peer can send is expected.
"""

from __future__ import annotations

import random
import struct
import tempfile
import tracemalloc
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from trio.testing import open_stream_to_socket_listener

from bookie.bookie import open_bookie
from bookie.config.admin_config import AdminConfig
from bookie.disk.fullness import FullnessConfig
from bookie.disk.real_disk import RealDisk
from bookie.disk_watch import DiskWatch, DiskWatchConfig, WatchedDisks
from bookie.gc.collector import GarbageCollector
from bookie.http import Admin, serve_admin
from bookie.http.routes.table import ROUTES
from bookie.ledger_metadata.live_ledgers import ServedLedgers
from bookie.storage.config import StorageConfig
from ledger.runtime.tasks.failure_domain import contained_failures
from tests.fuzz.engine import Failure, tracing_memory
from tests.fuzz.mutate import Mutator
from tests.fuzz.port import HANG_S, MEMORY_BYTES_MAX, GoodClient

HTTP_PORT = "http_port"
TOKEN = b"0123456789abcdef"
HOST = b"Host: localhost\r\n"
HEARTBEAT = b"GET /heartbeat HTTP/1.1\r\n" + HOST
TOKENS = [
    b"\r\n",
    b"\r\n\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: h2c\r\n",
    b"Connection: Upgrade, close\r\n",
    b"HTTP/2.0",
    b"HTTP/1.0",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"%ff%00",
    b"\xff\xfe",
    b"\0",
    b" " * 300,
    b"ffffffffffffffff\r\n",
    b"0\r\n\r\n",
]


def request(method: str, path: str, *headers: bytes, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\n".encode() + HOST + b"".join(headers)
    return head + (b"Content-Length: %d\r\n" % len(body) if body else b"") + b"\r\n" + body


def http2() -> list[bytes]:
    """Frames after the preface: settings, priorities, resets, windows, data of no stream."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    priority = b"".join(frame(2, 0, 2 * n + 1, struct.pack(">IB", 0, 15)) for n in range(1, 1102))
    resets = b"".join(
        frame(1, 5, 2 * n + 1, b"\x82\x84\x86") + frame(3, 0, 2 * n + 1, bytes(4)) for n in range(99)
    )
    rest = frame(8, 0, 0, struct.pack(">I", 2**31 - 1)) + frame(0, 0, 5, b"hello") + frame(6, 0, 0, bytes(8))
    return [preface, preface + priority, preface + resets, preface + rest]


def seeds() -> list[bytes]:
    bearer = b"Authorization: Bearer " + TOKEN + b"\r\n"
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: bKdPyn3u98cTfZJSh4TNeQ==\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n"
    query = "ledger_id=7&page=1&start_entry_id=0&end_entry_id=9&file_type=index&enabled=true"
    found = [request(method.value, f"{route.path}?{query}") for route in ROUTES for method in route.handlers]
    # With the token only what neither makes the bookie read-only nor is more than a round of its garbage.
    found += [request("GET", f"{route.path}?{query}", bearer) for route in ROUTES]
    found += [
        request("PUT", "/api/v1/bookie/gc", bearer, body=b'{"forceMajor": true}'),
        request(
            "PUT", "/api/v1/autorecovery/bookie", bearer, body=b'{"bookie_src": ["\\ud800"], "x": 1e999}'
        ),
        request("PUT", "/api/v1/bookie/gc", bearer, chunked) + b"2;a=b\r\n{}\r\n0\r\nx: y\r\n\r\n",
        request("PUT", "/api/v1/bookie/gc", chunked) + b"1\r\na\r\n" * 300,
        request("GET", "/heartbeat", b"Connection: Upgrade\r\nUpgrade: websocket\r\n", key)
        + b"\x81\x85hello",
        request(
            "GET",
            "/heartbeat",
            b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
        ),
        request("GET", "/heartbeat", b"a:" + b" \t" * 4000 + b"\v\r\n"),
        request("GET", "/heartbeat") * 50,
        request("CONNECT", "a:1"),
        request("OPTIONS", "*"),
        request("GET", "http://[/heartbeat"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
        *http2(),
    ]
    return found


@asynccontextmanager
async def open_http_target() -> AsyncIterator[tuple[int, GoodClient]]:
    """A bookie with both ports on loopback: the HTTP port's number, and the good client of the main port."""
    with tempfile.TemporaryDirectory(prefix="dlog-fuzz-") as name:
        directory = Path(name)
        token = directory / "token"
        token.write_bytes(TOKEN)
        token.chmod(0o600)
        config = StorageConfig(
            journal_directories=(directory / "journal",), ledger_directories=(directory / "ledgers",)
        )
        async with open_bookie(config) as bookie, trio.open_nursery() as nursery:

            async def all_live(ids: Any) -> Any:
                return ids

            nothing: Any = None  # no registration: the routes that use it need a cluster
            garbage = GarbageCollector(ServedLedgers(bookie.service), all_live)
            watch = DiskWatch(
                bookie.service.rights,
                nothing,
                WatchedDisks(RealDisk(), config.ledger_directories),
                DiskWatchConfig(FullnessConfig(full=1.0, warn=1.0, low=1.0)),
                wall_ms=lambda: 0,
            )
            admin = Admin("fuzz:1", bookie.service, garbage, watch, wall_ms=lambda: 0, is_ready=True)
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            await nursery.start(bookie.serve_listeners, listeners)
            url = await nursery.start(serve_admin, admin, AdminConfig(port=0, token_path=token))
            async with await open_stream_to_socket_listener(listeners[0]) as stream:
                yield int(url.rpartition(":")[2]), GoodClient(stream)
            nursery.cancel_scope.cancel()


async def converse(port: int, data: bytes) -> bytes:
    """All that the port says to the bytes, which come in pieces; the pieces depend on the bytes only."""
    rng, received = random.Random(zlib.crc32(data)), bytearray()
    cuts = sorted(rng.randint(0, len(data)) for _ in range(rng.choice((0, 0, 1, 3))))
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as nursery:

        async def receive() -> None:
            try:
                while chunk := await stream.receive_some(65536):
                    received.extend(chunk)
            except trio.BrokenResourceError:
                pass  # the server has closed with bytes unread, as it may

        nursery.start_soon(receive)
        try:
            for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                await stream.send_all(data[start:end])
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass
    return bytes(received)


async def _reason(port: int, good: GoodClient, data: bytes, before: Counter[str]) -> str | None:
    received = await converse(port, data)
    if received and not received.startswith(b"HTTP/1.1 "):
        return f"the reply is no HTTP/1.1: {received[:60]!r}"
    if found := contained_failures - before:
        return f"an error ended {', '.join(found)}"
    if not (await converse(port, HEARTBEAT + b"\r\n")).startswith(b"HTTP/1.1 200 "):
        return "/heartbeat does not answer"
    return await good.check()


async def run_http(inputs: Sequence[bytes]) -> tuple[bytes, str] | None:
    """Attack with each input in turn; the first that breaks a promise, with the promise."""
    async with open_http_target() as (port, good):
        before = Counter(contained_failures)
        for data in inputs:
            tracemalloc.reset_peak()
            memory = tracemalloc.get_traced_memory()[0]
            reason: str | None = None
            with trio.move_on_after(HANG_S) as hang:
                reason = await _reason(port, good, data, before)
            peak = tracemalloc.get_traced_memory()[1] - memory
            if hang.cancelled_caught:
                reason = f"no answer for {HANG_S:g} s"
            elif peak > MEMORY_BYTES_MAX + 200 * len(data):
                reason = f"{peak} bytes of memory for {len(data)} bytes"
            if reason is not None:
                return data, reason
    return None


def http_inputs(seed: int, cases: int) -> list[bytes]:
    """What hostile connections send: the seeds, then changes of them."""
    rng = random.Random(f"{seed} {HTTP_PORT}")
    mutator, found = Mutator(rng), seeds()
    inputs = rng.sample(found, min(len(found), cases // 2 + 1))
    while len(inputs) < cases:
        data = mutator.mutate(found) if rng.random() < 0.5 else rng.choice(found)
        if rng.random() < 0.6:
            at = rng.randint(0, len(data))
            data = data[:at] + rng.choice(TOKENS) + data[at + rng.choice((0, 0, 1, 8)) :]
        inputs.append(data)
    return inputs[:cases]


def fuzz_http(seed: int, cases: int, name: str = HTTP_PORT) -> list[Failure]:
    """Attack the port of a new bookie with this number of connections; the failure, if there is one."""
    with tracing_memory():
        found = trio.run(run_http, http_inputs(seed, cases))
    return [] if found is None else [Failure(name, found[0], found[1], seed)]


def replay_http(data: bytes, name: str = HTTP_PORT) -> str | None:
    """Attack a new bookie with one input; why it fails, or None."""
    with tracing_memory():
        found = trio.run(run_http, [data])
    return None if found is None else found[1]
