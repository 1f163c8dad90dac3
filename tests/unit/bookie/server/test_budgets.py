"""Requests that are cheap once and expensive in masses: slices of a chunk, budgets, lists of entries."""

# covers: bookie/requests/in_progress.py
# covers: bookie/server/deferred_work.py

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from bookie.bookie import Bookie, open_bookie
from bookie.disk.real_disk import RealDisk
from bookie.ledger_record import LedgerRecord
from bookie.requests.in_progress import LISTS_MAX, SHARE_MIN, share_of
from bookie.requests.session import SLOW_FRAMES_MAX, BookieService
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from bookie.storage.config import StorageConfig
from ledger.catalog.availability import decode_availability
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddRequest,
    BookieInfoRequest,
    ListEntriesReply,
    ListEntriesRequest,
    ReadRequest,
    Reply,
    Request,
)
from tests.fakes.service_by_hand import HandDisk

ENTRIES = EntryCodec(DigestType.CRC32C, b"")
KEY = master_key(b"")


class StuckDisk(HandDisk):
    """Reads and lists wait until ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Event()
        self.lists_running = self.lists_most = 0
        self.ledgers[1] = LedgerRecord(1, KEY, last_entry_id=1 << 40)

    must_wait = True

    async def wait_capacity(self) -> None:
        await trio.lowlevel.checkpoint()

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return None

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        await self.go.wait()
        return ENTRIES.pack(1, entry_id, -1, 0, b"")

    async def read_batch(
        self, ledger_id: int, first: int, count_max: int, size_bytes_max: int
    ) -> list[bytes]:
        return [await self.read(ledger_id, first)]

    async def read_stored(self, ledger: LedgerRecord, entry_id: int) -> tuple[bytes, bool]:
        await self.go.wait()
        return ENTRIES.pack(1, entry_id, -1, 0, b""), False

    async def availability(self, ledger_id: int) -> bytes:
        self.lists_running += 1
        self.lists_most = max(self.lists_most, self.lists_running)
        await self.go.wait()
        await trio.lowlevel.checkpoint()
        self.lists_running -= 1
        return bytes(64)


class Client:
    def __init__(self, server: Server, nursery: trio.Nursery) -> None:
        self.stream, theirs = memory_stream_pair()
        self.frames = FrameBuffer()
        nursery.start_soon(server.serve_stream, theirs)

    async def send(self, *requests: Request, version: int = 2) -> None:
        codec = v2 if version == 2 else v3
        await self.stream.send_all(b"".join(map(codec.encode_request, requests)))

    async def replies(self, count: int) -> list[Reply]:
        found: list[Reply] = []
        while len(found) < count:
            with trio.fail_after(30):
                data, spans = self.frames.feed(bytes(await self.stream.receive_some(1 << 20)))
            for start, end in spans:
                codec = v2 if data[start] <= 2 else v3
                found.append(codec.decode_reply(data, start, end).reply)
        return found

    async def codes(self, count: int) -> list[Code]:
        return [reply.code for reply in await self.replies(count)]


@pytest.fixture
def disk() -> StuckDisk:
    return StuckDisk()


def server_of(disk: StuckDisk, **config: object) -> Server:
    return Server(BookieService(disk), ServerConfig(**config))  # type: ignore[arg-type]


def test_a_chunk_of_expensive_frames_is_handled_in_slices_and_in_order(disk: StuckDisk) -> None:
    sent: list[bytes] = []
    session = BookieService(disk).open_session(sent.append, lambda request: None)  # type: ignore[arg-type]
    frame = v3.encode_request(AddRequest(2, 0, b"bad", ENTRIES.pack(2, 0, -1, 0, b"")))
    data = frame * (2 * SLOW_FRAMES_MAX + 10)
    _, rest = FrameBuffer().feed(data)
    lengths = [len(rest)]
    while rest:
        rest = list(session.handle(data, rest))
        lengths.append(len(rest))
    assert lengths == [2 * SLOW_FRAMES_MAX + 10, SLOW_FRAMES_MAX + 10, 10, 0]
    assert len(FrameBuffer().feed(b"".join(sent))[1]) == lengths[0]


def test_plain_adds_are_not_sliced(disk: StuckDisk) -> None:
    session = BookieService(disk).open_session(lambda data: None, lambda request: None)  # type: ignore[arg-type]
    first = 1 << 41
    entries = [ENTRIES.pack(1, first + at, -1, 0, b"") for at in range(4 * SLOW_FRAMES_MAX)]
    data = b"".join(
        v2.encode_request(AddRequest(1, first + at, KEY, body)) for at, body in enumerate(entries)
    )
    assert not session.handle(data, FrameBuffer().feed(data)[1])


async def test_a_slice_of_a_connection_lets_other_tasks_run(nursery: trio.Nursery, disk: StuckDisk) -> None:
    client = Client(server_of(disk), nursery)
    await wait_all_tasks_blocked()
    sent: list[int] = []
    frame = v3.encode_request(AddRequest(2, 0, b"bad", ENTRIES.pack(2, 0, -1, 0, b"")))
    await client.stream.send_all(frame * (3 * SLOW_FRAMES_MAX))
    received = b""
    while len(FrameBuffer().feed(received)[1]) < 3 * SLOW_FRAMES_MAX:
        received += await client.stream.receive_some(1 << 20)
        sent.append(len(FrameBuffer().feed(received)[1]))
    assert sent[0] < 3 * SLOW_FRAMES_MAX, "the first replies go out before the last request is looked at"
    nursery.cancel_scope.cancel()


async def test_reads_beyond_the_budget_of_a_connection_are_refused(
    nursery: trio.Nursery, disk: StuckDisk, caplog: pytest.LogCaptureFixture
) -> None:
    server = server_of(disk, pending_reads_max=10)
    client = Client(server, nursery)
    for at in range(20):
        await client.send(ReadRequest(1, 2 * at))
        await wait_all_tasks_blocked()
    assert await client.codes(10) == [Code.TOO_MANY_REQUESTS] * 10
    await client.send(*(ReadRequest(1, at) for at in range(50)))  # one chunk
    assert await client.codes(50) == [Code.TOO_MANY_REQUESTS] * 50
    disk.go.set()
    assert await client.codes(10) == [Code.OK] * 10
    await client.send(ReadRequest(1, 5))
    assert await client.codes(1) == [Code.OK]
    assert len(caplog.records) == 1
    assert server.service.in_progress.refused_reads == 60
    nursery.cancel_scope.cancel()


async def test_adds_that_wait_for_the_disk_hold_bounded_memory_and_more_are_refused(
    nursery: trio.Nursery, disk: StuckDisk
) -> None:
    total_bytes, body_bytes, count = 1 << 20, 60_000, 40
    server = server_of(disk, total_bytes_max=total_bytes)
    clients = [Client(server, nursery) for _ in range(4)]
    for entry_id in range(count):
        disk.flushed.add((1, entry_id))
        body = ENTRIES.pack(1, entry_id, -1, 0, bytes(body_bytes))
        await clients[entry_id % 4].send(AddRequest(1, entry_id, KEY, body))
        await wait_all_tasks_blocked()
        assert server.memory.used_bytes <= total_bytes + 4 * body_bytes
    waiting = server.service.in_progress.reads
    assert 0 < waiting <= total_bytes // body_bytes + 1
    disk.go.set()
    codes = [code for client in clients for code in await client.codes(count // 4)]
    assert codes.count(Code.TOO_MANY_REQUESTS) == count - waiting
    assert server.service.in_progress.refused_adds == count - waiting
    assert server.memory.used_bytes == 0
    nursery.cancel_scope.cancel()


async def test_a_limit_of_0_refuses_no_read(nursery: trio.Nursery, disk: StuckDisk) -> None:
    client = Client(server_of(disk, pending_reads_max=0), nursery)
    await client.send(*(ReadRequest(1, 2 * at) for at in range(100)))
    await wait_all_tasks_blocked()
    disk.go.set()
    assert await client.codes(100) == [Code.OK] * 100
    nursery.cancel_scope.cancel()


def test_a_share_leaves_a_place_for_each_newcomer() -> None:
    assert share_of(80_000, 0) == 40_000
    assert share_of(80_000, 79_000) == 500
    assert share_of(80_000, 10**9) == SHARE_MIN


async def test_lists_of_entries_are_made_one_after_the_other_and_more_are_refused(
    nursery: trio.Nursery, disk: StuckDisk
) -> None:
    server = server_of(disk)
    greedy = Client(server, nursery)
    await greedy.send(*[ListEntriesRequest(1)] * 50, version=3)
    assert await greedy.codes(46) == [Code.TOO_MANY_REQUESTS] * 46
    others = [Client(server, nursery) for _ in range(LISTS_MAX)]
    for other in others:
        await other.send(*[ListEntriesRequest(1)] * 2, version=3)
    await wait_all_tasks_blocked()
    disk.go.set()
    assert await greedy.codes(4) == [Code.OK] * 4
    for other in others:
        assert Code.OK in await other.codes(2), "each connection may have one list"
    assert disk.lists_most == 1
    assert server.service.in_progress.lists == 0
    nursery.cancel_scope.cancel()


async def test_counts_are_given_back_when_a_connection_ends(nursery: trio.Nursery, disk: StuckDisk) -> None:
    server = server_of(disk)
    client = Client(server, nursery)
    await client.send(ListEntriesRequest(1), BookieInfoRequest(True, True), version=3)
    await client.send(ReadRequest(1, 1), ReadRequest(1, 5))
    await wait_all_tasks_blocked()
    await client.stream.aclose()
    await wait_all_tasks_blocked()
    in_progress = server.service.in_progress
    assert (in_progress.lists, in_progress.reads, server.memory.used_bytes) == (0, 0, 0)
    nursery.cancel_scope.cancel()


async def test_a_list_of_many_entries_is_made_in_a_thread(tmp_path: Path) -> None:
    on_loop: list[bool] = []

    class WatchedDisk(RealDisk):
        async def run(self, job, *args):  # type: ignore[no-untyped-def]
            def watched(*args: object) -> object:
                on_loop.append(trio.lowlevel.in_trio_run())
                return job(*args)

            return await super().run(watched, *args)

    config = StorageConfig(
        journal_directories=[tmp_path / "journal"], ledger_directories=[tmp_path / "ledgers"]
    )
    opened: Bookie
    async with open_bookie(config, disk=WatchedDisk()) as opened, trio.open_nursery() as nursery:
        client = Client(opened.server, nursery)
        entries = [ENTRIES.pack(1, at, -1, 0, b"") for at in (0, 1, 5)]
        await client.send(
            *(AddRequest(1, at, KEY, body) for at, body in zip((0, 1, 5), entries, strict=True))
        )
        assert await client.codes(3) == [Code.OK] * 3
        on_loop.clear()
        await client.send(ListEntriesRequest(1), version=3)
        (reply,) = await client.replies(1)
        assert isinstance(reply, ListEntriesReply)
        assert reply.availability is not None
        assert [at for at in range(9) if at in decode_availability(reply.availability)] == [0, 1, 5]
        assert on_loop == [False]
        nursery.cancel_scope.cancel()
