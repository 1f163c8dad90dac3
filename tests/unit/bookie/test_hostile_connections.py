"""Strangers that connect to a real bookie process which may open few files. A client adds beside them."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from bookie.bookie import open_bookie
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire import v2
from ledger.wire.messages import AddReply, AddRequest, ReadReply, ReadRequest, Reply, Request
from tests.fakes.limited_bookie import config_of

FILES = 512  # the bookie may open
WAIT_S = 60.0
ENTRIES = EntryCodec(DigestType.CRC32C, b"")
KEY = master_key(b"")
HALF_FRAME = (1000).to_bytes(4, "big") + bytes(100)
GARBAGE = b"GET / HTTP/1.1\r\n\r\n"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing leaves no port waiting


@attrs.define(eq=False)
class Bookie:
    process: trio.Process
    log: str = ""
    port: int = 0
    sockets: list[trio.socket.SocketType] = attrs.field(factory=list)

    clients: list[trio.socket.SocketType] = attrs.field(factory=list)

    async def connect(self, *, source: str = "127.0.0.1") -> trio.SocketStream:
        one = trio.socket.socket()
        self.sockets.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await one.bind((source, 0))
        await one.connect(("127.0.0.1", self.port))
        return trio.SocketStream(one)

    async def attack(self, data: bytes) -> trio.SocketStream:
        """Connect as a stranger and send these bytes."""
        stream = await self.connect(source="127.0.0.9")
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(data)
        return stream

    def hang_up(self, count: int) -> None:
        """Close the oldest connections."""
        for one in self.sockets[:count]:
            one.close()
        del self.sockets[:count]

    async def read_log(self, nursery: trio.Nursery) -> None:
        ready = trio.Event()

        async def read() -> None:
            assert self.process.stderr is not None
            async for chunk in self.process.stderr:
                self.log += bytes(chunk).decode()
                if " is ready" in self.log:
                    ready.set()
            assert ready.is_set(), f"the bookie did not start\n{self.log}"

        nursery.start_soon(read)
        with trio.fail_after(WAIT_S):
            await ready.wait()
        line = next(line for line in self.log.splitlines() if " is ready" in line)
        self.port = int(line.rpartition(" ")[2])

    async def stop(self) -> int:
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        with trio.fail_after(WAIT_S):
            return await self.process.wait()


@asynccontextmanager
async def limited_bookie(directory: Path, *keys: str, files: int = FILES) -> AsyncIterator[Bookie]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.fakes.limited_bookie", str(directory), str(files), *keys],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    bookie = Bookie(process)
    try:
        async with trio.open_nursery() as nursery:
            await bookie.read_log(nursery)
            yield bookie
            nursery.cancel_scope.cancel()
    finally:
        for one in (*bookie.sockets, *bookie.clients):
            one.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


class Client:
    """A well-behaved client of one ledger."""

    def __init__(self, bookie: Bookie, ledger_id: int = 1) -> None:
        self.bookie, self.ledger_id = bookie, ledger_id
        self.added = 0
        self.stream: trio.SocketStream | None = None

    async def call(self, request: Request) -> Reply:
        if self.stream is None:
            self.stream = await self.bookie.connect()
            self.bookie.sockets.remove(self.stream.socket)  # ``hang_up`` closes connections of strangers
            self.bookie.clients.append(self.stream.socket)
        with trio.fail_after(WAIT_S):
            await self.stream.send_all(v2.encode_request(request))
            data = b""
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                chunk = await self.stream.receive_some(65536)
                assert chunk, f"the bookie closed a client's connection\n{self.bookie.log}"
                data += chunk
        return v2.decode_reply(data, 4, len(data)).reply

    async def add(self) -> None:
        entry = ENTRIES.pack(self.ledger_id, self.added, self.added - 1, 5, b"hello")
        reply = await self.call(AddRequest(self.ledger_id, self.added, KEY, entry))
        assert reply == AddReply(Code.OK, self.ledger_id, self.added)
        self.added += 1

    async def read_all(self) -> None:
        for entry_id in range(self.added):
            reply = await self.call(ReadRequest(self.ledger_id, entry_id))
            assert isinstance(reply, ReadReply)
            assert reply.code is Code.OK


@pytest.mark.slow
async def test_more_strangers_than_descriptors_stop_neither_storage_nor_clients(tmp_path: Path) -> None:
    async with limited_bookie(tmp_path) as bookie:
        client = Client(bookie)
        await client.add()
        for number in range(FILES + 100):
            await bookie.attack(HALF_FRAME if number % 2 else b"")
            if not number % 20:
                await client.add()
        newcomer = Client(bookie, 2)
        for _ in range(50):
            await newcomer.add()
            await client.add()
        await client.read_all()
        assert await bookie.stop() == 0, bookie.log
    async with open_bookie(config_of(tmp_path, []).storage) as opened:
        assert await opened.storage.entry_ids(1) == list(range(client.added))
        assert await opened.storage.entry_ids(2) == list(range(newcomer.added))
    for word in ("ERROR", "CRITICAL", "Traceback"):
        assert word not in bookie.log


@pytest.mark.slow
async def test_a_process_with_1200_connections_stops_no_client_of_a_bookie_with_1024_files(
    tmp_path: Path,
) -> None:
    async with limited_bookie(tmp_path, files=1024) as bookie:
        client = Client(bookie)
        await client.add()
        attacker = await trio.lowlevel.open_process(
            [sys.executable, "-m", "tests.fakes.attacker", str(bookie.port), "1200"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert attacker.stdin is not None
            assert attacker.stdout is not None
            said = b""
            with trio.fail_after(2 * WAIT_S):
                while said.count(b"again") < 3:  # another 600 connections
                    await client.add()
                    with trio.move_on_after(0.05):
                        chunk = await attacker.stdout.receive_some(1000)
                        assert chunk, "the attacker has ended"
                        said += bytes(chunk)
            assert said.startswith(b"full")
            newcomer = Client(bookie, 2)
            for _ in range(50):
                await newcomer.add()
                await client.add()
            await client.read_all()
            await attacker.stdin.aclose()
            with trio.fail_after(WAIT_S):
                assert await attacker.wait() == 0
        finally:
            if attacker.returncode is None:
                attacker.kill()
                await attacker.wait()
        assert await bookie.stop() == 0, bookie.log
    async with open_bookie(config_of(tmp_path, []).storage) as opened:
        assert await opened.storage.entry_ids(1) == list(range(client.added))
        assert await opened.storage.entry_ids(2) == list(range(newcomer.added))
    for word in ("ERROR", "CRITICAL", "Traceback"):
        assert word not in bookie.log


@pytest.mark.slow
async def test_ten_thousand_attempts_leave_clients_served_and_the_log_short(tmp_path: Path) -> None:
    async with limited_bookie(tmp_path) as bookie:
        client = Client(bookie)
        kinds = itertools.cycle((b"", HALF_FRAME, GARBAGE, b"\0\0"))
        for number in range(10_000):
            await bookie.attack(next(kinds))
            if len(bookie.sockets) == 400:
                bookie.hang_up(100)
            if not number % 100:
                await client.add()
            if not number % 1000:
                newcomer = Client(bookie, 2 + number)
                await newcomer.add()
        await client.read_all()
        assert await bookie.stop() == 0, bookie.log
    assert len(bookie.log.splitlines()) < 40, bookie.log
    assert "Traceback" not in bookie.log


@pytest.mark.slow
async def test_strangers_that_send_whole_frames_and_wait_give_way_to_another_address(tmp_path: Path) -> None:
    async with limited_bookie(tmp_path, "maxConnections=40") as bookie:
        client = Client(bookie)
        await client.add()
        frame = v2.encode_request(ReadRequest(99, 0))
        for _ in range(60):
            await bookie.attack(frame)
        newcomer = Client(bookie, 2)
        with trio.fail_after(WAIT_S):
            while not newcomer.added:  # refused until the strangers' connections count as idle
                try:
                    await newcomer.add()
                except (AssertionError, trio.BrokenResourceError):
                    newcomer.stream = None
        await client.add()


@pytest.mark.slow
async def test_silent_and_half_framed_connections_time_out_and_an_idle_client_does_not(
    tmp_path: Path,
) -> None:
    async with limited_bookie(tmp_path, "firstFrameTimeoutMs=200", "frameTimeoutMs=200") as bookie:
        client = Client(bookie)
        await client.add()
        proven = v2.encode_request(ReadRequest(99, 0)) + HALF_FRAME
        strangers = [await bookie.attack(data) for data in (b"", HALF_FRAME, proven)]
        with trio.fail_after(WAIT_S):
            for stranger in strangers:
                with contextlib.suppress(trio.BrokenResourceError):  # a reset is an end, too
                    while await stranger.receive_some(1000):
                        pass
        await client.add()
