"""Connections to a bookie: what they survive, what closes them, which of them must wait."""

from __future__ import annotations

import ssl
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, memory_stream_pair, open_stream_to_socket_listener, wait_all_tasks_blocked

from bookie.auth.tls import TlsConfig, server_context
from bookie.bookie import Bookie, open_bookie
from bookie.journal.files import JournalConfig
from bookie.journal.group_commit import OnDurable, WriteBatch
from bookie.ledger_record import LedgerRecord
from bookie.requests.session import BookieService
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from bookie.storage.config import StorageConfig
from bookie.storage.storage import Storage
from ledger.codes import Code, Operation
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    BatchReadReply,
    BatchReadRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Reply,
    Request,
    StartTlsReply,
    StartTlsRequest,
)
from tests.places import GOLDEN_FILES

ENTRIES = EntryCodec(DigestType.CRC32C, b"pass")
KEY = master_key(b"pass")
TLS = GOLDEN_FILES / "tls"


def body(entry_id: int, *, lac: int | None = None, size: int = 10, ledger_id: int = 1) -> bytes:
    return ENTRIES.pack(ledger_id, entry_id, entry_id - 1 if lac is None else lac, size, bytes(size))


def add(entry_id: int, *, size: int = 10, ledger_id: int = 1) -> AddRequest:
    return AddRequest(ledger_id, entry_id, KEY, body(entry_id, size=size, ledger_id=ledger_id))


class Caller:
    """A client that knows only frames."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._frames = FrameBuffer()
        self._answers: list[Reply] = []

    async def send(self, *requests: Request, version: int = 2) -> None:
        codec = v2 if version == 2 else v3
        await self.stream.send_all(b"".join(map(codec.encode_request, requests)))

    async def reply(self) -> Reply:
        while not self._answers:
            chunk = await self.stream.receive_some(1 << 20)
            if not chunk:
                raise EOFError
            data, spans = self._frames.feed(bytes(chunk))
            for start, end in spans:
                codec = v2 if data[start] <= 2 else v3
                self._answers.append(codec.decode_reply(data, start, end).reply)
        return self._answers.pop(0)

    async def reply_or_none(self) -> Reply | None:
        try:
            return await self.reply()
        except (EOFError, trio.BrokenResourceError):
            return None

    async def ask(self, request: Request, *, version: int = 2) -> Reply:
        await self.send(request, version=version)
        return await self.reply()


def storage_config(directory: Path) -> StorageConfig:
    return StorageConfig(
        journal_directories=[directory / "journal"],
        ledger_directories=[directory / "ledgers"],
        journal=JournalConfig(file_bytes_max=1 << 20, preallocate_bytes=1 << 16),
    )


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Bookie]:
    async with open_bookie(storage_config(tmp_path)) as opened:
        yield opened


Connect = Callable[[], Caller]


@pytest.fixture
async def connect(bookie: Bookie, nursery: trio.Nursery) -> Connect:
    def connecting() -> Caller:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(bookie.serve_stream, theirs)
        return Caller(ours)

    return connecting


async def test_a_bookie_serves_a_real_socket(bookie: Bookie, nursery: trio.Nursery) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(bookie.serve_listeners, listeners)
    async with await open_stream_to_socket_listener(listeners[0]) as stream:
        caller = Caller(stream)
        assert await caller.ask(add(0)) == AddReply(Code.OK, 1, 0)
        assert await caller.ask(ReadRequest(1, 0), version=3) == ReadReply(Code.OK, 1, 0, body(0), max_lac=-1)
    nursery.cancel_scope.cancel()


async def test_frames_may_come_in_any_pieces(connect: Connect) -> None:
    caller = connect()
    frames = b"".join(v2.encode_request(add(entry_id)) for entry_id in range(5))
    for at in range(0, len(frames), 7):
        await caller.stream.send_all(frames[at : at + 7])
    assert [await caller.reply() for _ in range(5)] == [
        AddReply(Code.OK, 1, entry_id) for entry_id in range(5)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">I", 0),
        struct.pack(">I", 5_242_877),
        struct.pack(">I", 4) + b"\x02\x63\x00\x00",
        struct.pack(">I", 2) + b"\x0a\x00",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_bad_frame_closes_its_own_connection_and_harms_nothing_else(
    connect: Connect, bad: bytes
) -> None:
    good, evil = connect(), connect()
    assert await good.ask(add(0)) == AddReply(Code.OK, 1, 0)
    await evil.stream.send_all(bad)
    with pytest.raises((EOFError, trio.BrokenResourceError)):
        await evil.reply()
    assert await good.ask(ReadRequest(1, 0)) == ReadReply(Code.OK, 1, 0, body(0))


class FaultyStorage(Storage):
    """Has a fault that one ledger's requests bring out."""

    fault: Exception

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        if ledger_id == 666:
            raise self.fault
        return super().ledger(ledger_id)


async def test_a_fault_of_ours_costs_the_peer_its_connection_and_not_everybody_the_bookie(
    bookie: Bookie, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    good, evil = connect(), connect()
    bookie.storage.__class__ = FaultyStorage
    bookie.storage.fault = KeyError("a fault")  # type: ignore[attr-defined]
    await evil.send(add(0, ledger_id=666))
    assert await evil.reply_or_none() is None
    assert await good.ask(add(0)) == AddReply(Code.OK, 1, 0)
    assert "please report it" in caplog.text


@pytest.mark.slow
async def test_an_entry_as_large_as_a_frame_may_be_is_stored_and_read(connect: Connect) -> None:
    caller = connect()
    size = 5_242_880 - 4 - 24 - 36
    assert await caller.ask(add(0, size=size)) == AddReply(Code.OK, 1, 0)
    assert await caller.ask(ReadRequest(1, 0)) == ReadReply(Code.OK, 1, 0, body(0, size=size))


async def test_entries_flushed_to_disk_are_read_one_by_one_in_runs_and_batches(
    bookie: Bookie, connect: Connect
) -> None:
    caller = connect()
    await caller.send(*[add(entry_id) for entry_id in range(50)])
    for _ in range(50):
        await caller.reply()
    await bookie.storage.flush()
    assert bookie.storage.read_cached(1, 0) is None
    assert await caller.ask(ReadRequest(1, -1), version=3) == ReadReply(Code.OK, 1, -1, body(49), max_lac=48)
    wanted = [3, 4, 5, 99, 7, 8, 200, 20]
    await caller.send(*[ReadRequest(1, entry_id) for entry_id in wanted], ReadRequest(2, 0))
    replies = [await caller.reply() for _ in range(len(wanted) + 1)]
    expected = [
        ReadReply(Code.OK, 1, at, body(at)) if at < 50 else ReadReply(Code.NO_ENTRY, 1, at) for at in wanted
    ]
    assert replies == [ReadReply(Code.NO_LEDGER, 2, 0), *expected]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count_max", "size_max", "expected"),
    [
        (10, 1 << 20, 10),
        (0, 1 << 20, 40),
        (-1, 0, 1),
        # Each of these entries counts 46 + 4 bytes, the reply 36.
        (10, 36 + 3 * 50, 3),
        (10, 36 + 3 * 50 - 1, 2),
    ],
)
@pytest.mark.parametrize("flushed", [True, False])
async def test_a_batch_read_keeps_both_limits(
    bookie: Bookie, connect: Connect, count_max: int, size_max: int, expected: int, flushed: bool
) -> None:
    caller = connect()
    await caller.send(*[add(entry_id) for entry_id in range(50)])
    for _ in range(50):
        await caller.reply()
    if flushed:
        await bookie.storage.flush()
    reply = await caller.ask(BatchReadRequest(1, 10, 77, count_max, size_max))
    assert reply == BatchReadReply(Code.OK, 1, 10, 77, tuple(body(10 + at) for at in range(expected)))


async def test_a_fence_survives_a_restart_and_the_key_with_it(tmp_path: Path) -> None:
    for first in (True, False):
        async with open_bookie(storage_config(tmp_path)) as bookie, trio.open_nursery() as nursery:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(bookie.serve_stream, theirs)
            caller = Caller(ours)
            if first:
                fence = ReadRequest(5, -1, fence=True, master_key=KEY)
                assert await caller.ask(fence) == ReadReply(Code.NO_ENTRY, 5, -1)
            assert await caller.ask(add(0, ledger_id=5)) == AddReply(Code.FENCED, 5, 0)
            wrong = AddRequest(5, 0, master_key(b"x"), body(0, ledger_id=5), recovery=True)
            assert await caller.ask(wrong) == AddReply(Code.UNAUTHORIZED, 5, 0)
            nursery.cancel_scope.cancel()


async def test_read_lac_says_what_there_is(bookie: Bookie, connect: Connect) -> None:
    caller = connect()
    assert await caller.ask(ReadLacRequest(9), version=3) == ReadLacReply(Code.NO_ENTRY, 9)
    await caller.ask(add(0))
    assert await caller.ask(ReadLacRequest(1), version=3) == ReadLacReply(Code.OK, 1, None, body(0))
    batch = bookie.storage.new_batch()
    ledger = bookie.storage.create_ledger(batch, 2, KEY)
    bookie.storage.stage_explicit_lac(batch, ledger, ENTRIES.pack_lac(2, 7))
    bookie.storage.submit(batch, lambda error: None)
    # What Java answers when there is a packet but no entry (docs/protocol.md 9.6).
    expected = ReadLacReply(Code.IO_ERROR, 2, ENTRIES.pack_lac(2, 7), None)
    assert await caller.ask(ReadLacRequest(2), version=3) == expected


# Long polls


def poll(previous_lac: int, *, timeout_ms: int = 60_000) -> ReadRequest:
    return ReadRequest(1, -1, previous_lac=previous_lac, timeout_ms=timeout_ms, piggyback_entry=True)


async def test_a_long_poll_is_woken_by_the_add_that_confirms_the_entry(
    bookie: Bookie, connect: Connect
) -> None:
    reader, writer = connect(), connect()
    for entry_id in (0, 1):
        await writer.ask(add(entry_id))
    await reader.send(poll(0), version=3)
    while not bookie.service.watches:
        await trio.lowlevel.checkpoint()
    await writer.ask(add(2))
    reply = await reader.reply()
    assert isinstance(reply, ReadReply)
    assert (reply.code, reply.entry_id, reply.body, reply.max_lac) == (Code.OK, 1, body(1), 1)
    assert reply.lac_update_ms is not None
    assert not bookie.service.watches


async def test_a_long_poll_is_woken_by_a_fence_and_answers_without_an_entry(
    bookie: Bookie, connect: Connect
) -> None:
    reader, other = connect(), connect()
    await other.ask(add(0))
    await reader.send(poll(0), version=3)
    while not bookie.service.watches:
        await trio.lowlevel.checkpoint()
    await other.ask(ReadRequest(1, -1, fence=True, master_key=KEY))
    reply = await reader.reply()
    assert isinstance(reply, ReadReply)
    assert (reply.code, reply.entry_id, reply.body, reply.max_lac) == (Code.OK, -1, None, -1)


async def test_a_long_poll_whose_peer_leaves_is_forgotten(bookie: Bookie, connect: Connect) -> None:
    reader, writer = connect(), connect()
    await writer.ask(add(0))
    await reader.send(poll(0), version=3)
    while not bookie.service.watches:
        await trio.lowlevel.checkpoint()
    await reader.stream.aclose()
    while bookie.service.watches:
        await trio.lowlevel.checkpoint()
    assert await writer.ask(add(1)) == AddReply(Code.OK, 1, 1)


# Back-pressure, with a storage that answers when the test says so


class StubStorage:
    def __init__(self) -> None:
        self.runs: list[OnDurable] = []
        self.has_capacity = trio.Event()
        self.has_capacity.set()

    def ledger(self, ledger_id: int) -> None:
        return None

    def stage_entry(self, *_: object) -> None:
        raise AssertionError("nothing is added here")

    def new_batch(self) -> WriteBatch:
        return WriteBatch()

    def submit(self, batch: WriteBatch, on_durable: OnDurable, *, sync: bool = True) -> None:
        self.runs.append(on_durable)

    must_wait = True

    async def wait_capacity(self) -> None:
        await self.has_capacity.wait()


async def test_while_storage_has_no_room_nothing_more_is_read(nursery: trio.Nursery) -> None:
    storage = StubStorage()
    ours, theirs = memory_stream_pair()
    server = Server(BookieService(storage))  # type: ignore[arg-type]
    nursery.start_soon(server.serve_stream, theirs)
    caller = Caller(ours)
    storage.has_capacity = trio.Event()
    await caller.send(ForceLedgerRequest(1), version=3)
    await wait_all_tasks_blocked()
    await caller.send(ForceLedgerRequest(2), version=3)
    await wait_all_tasks_blocked()
    assert len(storage.runs) == 1
    storage.has_capacity.set()
    await wait_all_tasks_blocked()
    assert len(storage.runs) == 2
    nursery.cancel_scope.cancel()


async def test_a_peer_that_does_not_read_its_answers_is_not_read_from(nursery: trio.Nursery) -> None:
    server_side = trio.testing.lockstep_stream_pair()
    ours, theirs = server_side
    storage = StubStorage()
    server = Server(BookieService(storage), ServerConfig(reply_queue_bytes_max=1000))  # type: ignore[arg-type]
    nursery.start_soon(server.serve_stream, theirs)
    refused = v2.encode_request(ReadRequest(1, 0)) * 100
    accepted = 0

    async def keep_asking() -> None:
        nonlocal accepted
        while accepted < 100:
            await ours.send_all(refused)
            accepted += 1

    nursery.start_soon(keep_asking)
    await wait_all_tasks_blocked()
    assert accepted < 5
    nursery.cancel_scope.cancel()


async def test_draining_answers_what_was_taken_and_takes_no_more(nursery: trio.Nursery) -> None:
    storage = StubStorage()
    ours, theirs = memory_stream_pair()
    server = Server(BookieService(storage))  # type: ignore[arg-type]
    nursery.start_soon(server.serve_stream, theirs)
    caller = Caller(ours)
    await caller.send(ForceLedgerRequest(1), version=3)
    await wait_all_tasks_blocked()
    done = []

    async def drain() -> None:
        done.append(await server.drain(timeout_s=60))

    nursery.start_soon(drain)
    await wait_all_tasks_blocked()
    await caller.send(ForceLedgerRequest(2), version=3)
    await wait_all_tasks_blocked()
    assert done == []
    assert len(storage.runs) == 2, "the request's and the drain's own"
    for settle in storage.runs:
        settle(None)
    assert await caller.reply() == ForceLedgerReply(Code.OK, 1)
    await wait_all_tasks_blocked()
    assert done == [True]
    nursery.cancel_scope.cancel()


async def test_draining_ends_even_if_the_disk_does_not(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    server = Server(BookieService(StubStorage()))  # type: ignore[arg-type]
    assert not await server.drain(timeout_s=3)


async def test_answers_to_a_peer_that_has_gone_go_nowhere(nursery: trio.Nursery) -> None:
    storage = StubStorage()
    ours, theirs = memory_stream_pair()
    server = Server(BookieService(storage))  # type: ignore[arg-type]
    nursery.start_soon(server.serve_stream, theirs)
    await Caller(ours).send(ForceLedgerRequest(1), version=3)
    await wait_all_tasks_blocked()
    await ours.aclose()
    await wait_all_tasks_blocked()
    assert server.connections_count == 0
    storage.runs[0](None)
    nursery.cancel_scope.cancel()


# TLS


def tls_server(*, demand: bool = True) -> Server:
    context = server_context(
        TlsConfig(
            key=TLS / "bookie.pem",
            certificate=TLS / "bookie.pem",
            authorities=TLS / "authority.pem",
            demand_client_certificate=demand,
        )
    )
    return Server(BookieService(StubStorage()), ServerConfig(tls=lambda: context))  # type: ignore[arg-type]


def client_context(*, certificate: str | None = "client.pem") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
    if certificate:
        context.load_cert_chain(TLS / certificate)
    return context


async def test_tls_begins_after_the_answer_and_carries_both_versions(nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    server = tls_server()
    nursery.start_soon(server.serve_stream, theirs)
    caller = Caller(ours)
    assert await caller.ask(StartTlsRequest(), version=3) == StartTlsReply(Code.OK)
    encrypted = trio.SSLStream(ours, client_context(), server_hostname="bookie.test")
    caller = Caller(encrypted)
    assert await caller.ask(ReadRequest(1, 0)) == ReadReply(Code.NO_LEDGER, 1, 0)
    assert await caller.ask(ReadRequest(1, 0), version=3) == ReadReply(Code.NO_LEDGER, 1, 0)
    assert await caller.ask(StartTlsRequest(), version=3) == RefusedReply(
        Code.BAD_REQUEST, Operation.START_TLS
    )
    nursery.cancel_scope.cancel()


async def test_a_client_without_a_certificate_is_refused_where_one_is_demanded(nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    nursery.start_soon(tls_server().serve_stream, theirs)
    caller = Caller(ours)
    await caller.ask(StartTlsRequest(), version=3)
    encrypted = trio.SSLStream(ours, client_context(certificate=None), server_hostname="bookie.test")
    with pytest.raises((EOFError, trio.BrokenResourceError)):
        await Caller(encrypted).ask(ReadRequest(1, 0))
    nursery.cancel_scope.cancel()


async def test_frames_in_clear_behind_start_tls_close_the_connection(nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    nursery.start_soon(tls_server().serve_stream, theirs)
    caller = Caller(ours)
    await caller.stream.send_all(
        v3.encode_request(StartTlsRequest()) + v3.encode_request(ReadRequest(1, 0), transaction_id=1)
    )
    # The read may still be answered, in clear as it was asked; START_TLS is not.
    answers = [await caller.reply_or_none(), await caller.reply_or_none()]
    assert None in answers
    assert StartTlsReply(Code.OK) not in answers
    nursery.cancel_scope.cancel()
