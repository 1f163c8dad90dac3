"""Bookies that answer as a test wants, over pipes; and a sink that remembers what it was told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from ledger.digest import DigestType, EntryCodec
from ledger.pipe import PipeStream, stream_pair
from ledger.transport import Address, Transport, TransportConfig, open_transport
from ledger.wire import v2, v3
from ledger.wire.codes import Code
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    BookieInfoReply,
    BookieInfoRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    IncomingRequest,
    ReadReply,
    ReadRequest,
    Reply,
)

B1 = "b1:3181"


def usual_answer(request: object) -> Reply | None:
    match request:
        case AddRequest():
            return AddReply(Code.OK, request.ledger_id, request.entry_id)
        case ReadRequest(previous_lac=None):
            return ReadReply(Code.OK, request.ledger_id, request.entry_id, b"body")
        case BookieInfoRequest():
            return BookieInfoReply(Code.OK, 2, 1)
        case ForceLedgerRequest():
            return ForceLedgerReply(Code.OK, request.ledger_id)
        case _:
            return None


class Peer:
    """The bookie's end of one connection."""

    def __init__(self, stream: PipeStream, address: Address) -> None:
        self.stream = stream
        self.address = address
        self.requests: list[IncomingRequest] = []

    async def reply(self, incoming: IncomingRequest, reply: Reply) -> None:
        codec = v3 if incoming.version == 3 else v2
        await self.stream.send_all(
            codec.encode_reply(
                reply,
                version=incoming.version,
                operation=incoming.operation,
                transaction_id=incoming.transaction_id,
            )
        )

    async def serve(self, cluster: Cluster) -> None:
        frames = FrameBuffer()
        try:
            while chunk := await self.stream.receive_some():
                data, payloads = frames.feed(chunk)
                for start, end in payloads:
                    codec = v2 if data[start] <= 7 else v3
                    incoming = codec.decode_request(data, start, end)
                    self.requests.append(incoming)
                    reply = cluster.answer(incoming.request)
                    if reply is not None:
                        await self.reply(incoming, reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one side closed it, as many tests want


class Cluster:
    """Bookies made of pipes, and a dialler to them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.peers: list[Peer] = []
        self.answer: Callable[[object], Reply | None] = usual_answer
        self.before_dial: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.buffer_bytes_max = 1_048_576
        self.is_reading = True
        self.nursery = nursery

    async def dial(self, address: Address) -> trio.abc.Stream:
        await self.before_dial()
        ours, theirs = stream_pair(self.buffer_bytes_max)
        peer = Peer(theirs, address)
        self.peers.append(peer)
        if self.is_reading:
            self.nursery.start_soon(peer.serve, self)
        return ours

    @property
    def requests(self) -> list[object]:
        return [incoming.request for peer in self.peers for incoming in peer.requests]


async def resolve(bookie: str) -> Address:
    host, _, port = bookie.rpartition(":")
    return Address(host, int(port))


@asynccontextmanager
async def opened(config: TransportConfig | None = None) -> AsyncIterator[tuple[Transport, Cluster]]:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery)
        async with open_transport(cluster.dial, resolve, config) as transport:
            yield transport, cluster
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Sink:
    answers: list[tuple[str, Code, list[int]]] = attrs.field(factory=list)
    losses: list[tuple[str, Exception]] = attrs.field(factory=list)
    on_answer: Callable[[], None] = lambda: None
    on_loss: Callable[[], None] = lambda: None

    def adds_answered(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        self.answers.append((bookie, code, list(entry_ids)))
        self.on_answer()

    def bookie_lost(self, bookie: str, cause: Exception) -> None:
        self.losses.append((bookie, cause))
        self.on_loss()

    @property
    def entry_ids(self) -> list[int]:
        return [entry_id for _, _, ids in self.answers for entry_id in ids]


def frames_of(ledger_id: int, entry_ids: Sequence[int], version: int = 2, size: int = 10) -> list[bytes]:
    encoder = (v2 if version == 2 else v3).AddEncoder(ledger_id, EntryCodec(DigestType.CRC32C, b""))
    return [encoder.encode(entry_id, -1, 0, bytes(size)) for entry_id in entry_ids]


def post(
    transport: Transport, ledger_id: int, entry_ids: Sequence[int], sink: Sink, bookie: str = B1
) -> None:
    version = transport.config.add_version
    transport.post_adds(bookie, ledger_id, frames_of(ledger_id, entry_ids, version), entry_ids, sink)


def add(ledger_id: int, entry_id: int) -> AddRequest:
    body = EntryCodec(DigestType.CRC32C, b"").pack(ledger_id, entry_id, -1, 0, b"")
    return AddRequest(ledger_id, entry_id, bytes(20), body)


class Stage:
    """What the tests of connections have in common."""

    opened = staticmethod(opened)
    Cluster = Cluster
    Sink = Sink
    frames_of = staticmethod(frames_of)
    post = staticmethod(post)
    add = staticmethod(add)
    usual_answer = staticmethod(usual_answer)


@pytest.fixture
def stage() -> type[Stage]:
    return Stage
