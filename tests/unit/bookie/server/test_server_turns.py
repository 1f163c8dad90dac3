"""Turns in a connection's life: TLS begins between two answers, or the peer goes before its answer comes."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable

import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair, wait_all_tasks_blocked

from bookie.auth.tls import TlsConfig, server_context
from bookie.errors import NoEntryError
from bookie.journal.group_commit import OnDurable, WriteBatch
from bookie.ledger_record import LedgerRecord
from bookie.requests.session import BookieService
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from ledger.codes import Code
from ledger.digest import master_key
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    ForceLedgerReply,
    ForceLedgerRequest,
    ReadRequest,
    Reply,
    StartTlsReply,
    StartTlsRequest,
)
from tests.places import GOLDEN_FILES

KEY = master_key(b"pass")
TLS = GOLDEN_FILES / "tls"

DuplexStream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class ManualDisk:
    """A storage with one ledger, whose runs are durable when the test says so."""

    def __init__(self) -> None:
        self.record = LedgerRecord(1, KEY)
        self.runs: list[OnDurable] = []

    def ledger(self, ledger_id: int) -> LedgerRecord:
        return self.record

    def new_batch(self) -> WriteBatch:
        return WriteBatch()

    def stage_entry(self, *_: object) -> None:
        raise AssertionError("nothing is added here")

    def stage_fence(self, batch: WriteBatch, ledger: LedgerRecord) -> None:
        ledger.fenced = True

    def submit(self, batch: WriteBatch, on_durable: OnDurable, *, sync: bool = True) -> None:
        self.runs.append(on_durable)

    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return None

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        await trio.lowlevel.checkpoint()
        raise NoEntryError(ledger_id, entry_id)

    must_wait = True

    async def wait_capacity(self) -> None:
        await trio.lowlevel.checkpoint()


class SlowWire(trio.abc.Stream):
    """Our end of a stream: its sends wait for the test, and what is sent side by side is noted."""

    def __init__(self, stream: DuplexStream) -> None:
        self._stream = stream
        self.may_send = trio.Event()
        self.sending = 0
        self.sending_most = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.sending += 1
        self.sending_most = max(self.sending_most, self.sending)
        try:
            await self.may_send.wait()
            await self._stream.send_all(data)
        finally:
            self.sending -= 1

    async def wait_send_all_might_not_block(self) -> None:
        await self.may_send.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def replies(stream: trio.abc.Stream, count: int) -> list[Reply]:
    """So many answers, which must be all that comes with them."""
    frames = FrameBuffer()
    found: list[Reply] = []
    while len(found) < count:
        chunk = await stream.receive_some(1 << 16)
        assert chunk, f"the stream ended after {found}"
        data, spans = frames.feed(bytes(chunk))
        found += [v3.decode_reply(data, start, end).reply for start, end in spans]
    assert len(found) == count
    assert not frames.held_bytes
    return found


async def test_the_answer_to_start_tls_comes_behind_a_send_under_way_and_later_answers_through_tls(
    nursery: trio.Nursery,
) -> None:
    disk = ManualDisk()
    tls = server_context(
        TlsConfig(
            key=TLS / "bookie.pem",
            certificate=TLS / "bookie.pem",
            authorities=TLS / "authority.pem",
            demand_client_certificate=True,
        )
    )
    server = Server(BookieService(disk), ServerConfig(tls=lambda: tls))  # type: ignore[arg-type]
    ours, theirs = memory_stream_pair()
    wire = SlowWire(theirs)
    nursery.start_soon(server.serve_stream, wire)
    for ledger_id in (1, 2, 3):
        await ours.send_all(v3.encode_request(ForceLedgerRequest(ledger_id)))
        await wait_all_tasks_blocked()
    disk.runs[0](None)
    await wait_all_tasks_blocked()
    assert wire.sending == 1
    disk.runs[1](None)  # its answer waits behind the send under way
    await ours.send_all(v3.encode_request(StartTlsRequest()))
    await wait_all_tasks_blocked()
    disk.runs[2](None)  # its answer comes after the upgrade has begun
    await wait_all_tasks_blocked()
    wire.may_send.set()
    assert await replies(ours, 3) == [
        ForceLedgerReply(Code.OK, 1),
        ForceLedgerReply(Code.OK, 2),
        StartTlsReply(Code.OK),
    ]
    await wait_all_tasks_blocked()
    assert wire.sending_most == 1
    context = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
    context.load_cert_chain(TLS / "client.pem")
    encrypted = trio.SSLStream(ours, context, server_hostname="bookie.test")
    assert await replies(encrypted, 1) == [ForceLedgerReply(Code.OK, 3)]
    assert server.memory.used_bytes == 0
    nursery.cancel_scope.cancel()


class _WhenTheSenderEnds(trio.abc.Instrument):
    """Calls once, between the end of a connection's last task and the end of the connection."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.called: list[BaseException | None] = []

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        if "Connection._receive_all" in task.name:
            try:
                self._call()
            except BaseException as exc:
                self.called.append(exc)
            else:
                self.called.append(None)


async def test_a_fence_that_is_durable_while_its_connection_ends_harms_no_other_connection(
    nursery: trio.Nursery,
) -> None:
    disk = ManualDisk()
    server = Server(BookieService(disk))  # type: ignore[arg-type]
    ours, theirs = memory_stream_pair()
    nursery.start_soon(server.serve_stream, theirs)
    await ours.send_all(v2.encode_request(ReadRequest(1, 0, fence=True, master_key=KEY)))
    await wait_all_tasks_blocked()
    (settle,) = disk.runs
    moment = _WhenTheSenderEnds(lambda: settle(None))
    trio.lowlevel.add_instrument(moment)
    try:
        await ours.aclose()
        await wait_all_tasks_blocked()
    finally:
        trio.lowlevel.remove_instrument(moment)
    assert moment.called == [None], "the caller of on_durable serves all other connections too"
    assert disk.record.fenced
    assert (server.connections_count, server.memory.used_bytes) == (0, 0)
    nursery.cancel_scope.cancel()


async def test_a_fence_that_is_durable_as_the_server_is_cancelled_harms_no_other_connection(
    nursery: trio.Nursery,
) -> None:
    disk = ManualDisk()
    server = Server(BookieService(disk))  # type: ignore[arg-type]
    ours, theirs = memory_stream_pair()
    scope = trio.CancelScope()

    async def serve() -> None:
        with scope:
            await server.serve_stream(theirs)

    nursery.start_soon(serve)
    await ours.send_all(v2.encode_request(ReadRequest(1, 0)))
    assert await ours.receive_some(100), "a worker has read, and waits for more"
    await ours.send_all(v2.encode_request(ReadRequest(1, 0, fence=True, master_key=KEY)))
    await wait_all_tasks_blocked()
    scope.cancel()
    disk.runs[0](None)
    await wait_all_tasks_blocked()
    assert (server.connections_count, server.memory.used_bytes) == (0, 0)
    assert server.service.in_progress.reads == 0
    nursery.cancel_scope.cancel()


async def test_who_has_sent_everything_when_draining_begins_still_gets_his_answers(
    nursery: trio.Nursery,
) -> None:
    disk = ManualDisk()
    server = Server(BookieService(disk))  # type: ignore[arg-type]
    ours, theirs = memory_stream_pair()
    nursery.start_soon(server.serve_stream, theirs)
    await ours.send_all(v3.encode_request(ForceLedgerRequest(1)))
    await wait_all_tasks_blocked()
    nursery.start_soon(functools.partial(server.drain, timeout_s=60))
    await wait_all_tasks_blocked()
    await ours.send_eof()
    await wait_all_tasks_blocked()
    for settle in disk.runs:
        settle(None)
    assert await replies(ours, 1) == [ForceLedgerReply(Code.OK, 1)]
    nursery.cancel_scope.cancel()
