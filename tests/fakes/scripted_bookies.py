"""Bookies over pipes whose replies a test chooses, and a sink that records the outcome of adds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec
from ledger.transport.pipe import PipeStream, stream_pair
from ledger.transport.queues import SILENT_TICKS
from ledger.transport.transport import Address, Transport, TransportConfig, open_transport
from ledger.wire import v2, v3
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


def usual_reply(request: object) -> Reply | None:
    """The reply of a bookie that has every entry; None for long polls and other requests."""
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
        self._sending = trio.Lock()

    async def reply(self, incoming: IncomingRequest, reply: Reply) -> None:
        """Send a reply to a request of this connection."""
        codec = v3 if incoming.version == 3 else v2
        frame = codec.encode_reply(
            reply,
            version=incoming.version,
            operation=incoming.operation,
            transaction_id=incoming.transaction_id,
        )
        async with self._sending:
            await self.stream.send_all(frame)

    async def serve(self, bookies: ScriptedBookies) -> None:
        """Record requests and send the replies that ``bookies.reply_to`` returns."""
        frames = FrameBuffer()
        try:
            while chunk := await self.stream.receive_some():
                data, payloads = frames.feed(chunk)
                for start, end in payloads:
                    codec = v2 if data[start] <= 7 else v3
                    incoming = codec.decode_request(data, start, end)
                    self.requests.append(incoming)
                    reply = bookies.reply_to(incoming.request)
                    if reply is not None:
                        await self.reply(incoming, reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # a test closed one side


class ScriptedBookies:
    """A dialler, and the bookies' ends of all connections it made."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.peers: list[Peer] = []
        self.reply_to: Callable[[object], Reply | None] = usual_reply
        self.before_dial: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.buffer_bytes_max = 1_048_576
        self.is_reading = True
        self.nursery = nursery

    async def dial(self, address: Address) -> trio.abc.Stream:
        """Connect to a bookie at any address."""
        await self.before_dial()
        ours, theirs = stream_pair(self.buffer_bytes_max)
        peer = Peer(theirs, address)
        self.peers.append(peer)
        if self.is_reading:
            self.nursery.start_soon(peer.serve, self)
        return ours


async def resolve(bookie: str) -> Address:
    """The address in the name of a bookie."""
    host, _, port = bookie.rpartition(":")
    return Address(host, int(port))


@asynccontextmanager
async def open_bookies(
    config: TransportConfig | None = None,
) -> AsyncIterator[tuple[Transport, ScriptedBookies]]:
    """A transport, and the bookies it connects to."""
    async with trio.open_nursery() as nursery:
        bookies = ScriptedBookies(nursery)
        async with open_transport(bookies.dial, resolve, config) as transport:
            yield transport, bookies
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class RecordingSink:
    """Records replies to adds and losses of connections."""

    replies: list[tuple[str, Code, list[int]]] = attrs.field(factory=list)
    losses: list[tuple[str, Exception]] = attrs.field(factory=list)
    after_replies: Callable[[], object] = lambda: None
    after_loss: Callable[[], object] = lambda: None

    def on_add_replies(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        self.replies.append((bookie, code, list(entry_ids)))
        self.after_replies()

    def on_bookie_lost(self, bookie: str, cause: Exception) -> None:
        self.losses.append((bookie, cause))
        self.after_loss()

    @property
    def entry_ids(self) -> list[int]:
        """The ids of all entries with replies, in order."""
        return [entry_id for _, _, ids in self.replies for entry_id in ids]


def frames_of(ledger_id: int, entry_ids: Sequence[int], version: int = 2, size: int = 10) -> list[bytes]:
    """The frames that add these entries, each with a payload of ``size`` bytes."""
    encoder = (v2 if version == 2 else v3).AddEncoder(ledger_id, EntryCodec(DigestType.CRC32C, b""))
    return [encoder.encode(entry_id, -1, 0, bytes(size)) for entry_id in entry_ids]


def post(
    transport: Transport, ledger_id: int, entry_ids: Sequence[int], sink: RecordingSink, bookie: str = B1
) -> None:
    """Post adds of these entries."""
    version = transport.config.add_version
    transport.post_adds(bookie, ledger_id, frames_of(ledger_id, entry_ids, version), entry_ids, sink)


def add_request(ledger_id: int, entry_id: int) -> AddRequest:
    """The request that adds an empty entry."""
    body = EntryCodec(DigestType.CRC32C, b"").pack(ledger_id, entry_id, -1, 0, b"")
    return AddRequest(ledger_id, entry_id, bytes(20), body)


def request_timers(transport: Transport) -> int:
    """The number of running timers, except the one that looks for silent bookies."""
    tick_s = transport.config.add_timeout_s / SILENT_TICKS
    return sum(len(queue) for seconds, queue in transport.timers._queues.items() if seconds != tick_s)
