"""Large replies leave in pieces, with the bytes that one send of all pieces together has."""

from __future__ import annotations

import random
import socket

import pytest
import trio

from bookie.requests.replies import LARGE_REPLY_BYTES_MIN, in_two_parts
from bookie.server.connection import send_pieces
from bookie.server.reply_queue import ReplyQueue
from bookie.server.shared_memory import SharedMemory
from ledger.codes import Code, Operation
from ledger.packed_entries import pack_entries
from ledger.transport.pipe import stream_pair
from ledger.transport.socket_stream import SocketStream
from ledger.wire import v2
from ledger.wire.messages import BatchReadReply, BatchReadRequest, IncomingRequest


def tcp_pair() -> tuple[SocketStream, trio.SocketStream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    ends = [trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (server, client)]
    return SocketStream(ends[0]), ends[1]


@pytest.mark.parametrize("seed", range(8))
async def test_all_pieces_arrive_in_order_over_a_socket_and_over_any_other_stream(seed: int) -> None:
    rng = random.Random(seed)
    pieces: list[bytes | memoryview] = []
    for _ in range(rng.randrange(1, 6)):
        piece = rng.randbytes(rng.choice((0, 1, 36, 70_000, 1_500_000)))
        pieces.append(memoryview(piece) if rng.random() < 0.5 else piece)
    whole = b"".join(pieces)
    server, client = tcp_pair()
    for sender, receiver in (server, client), stream_pair(1 << 17):
        reports: list[int] = []
        received = bytearray()

        async def send(sender: trio.abc.Stream = sender, reports: list[int] = reports) -> None:
            await send_pieces(sender, pieces, reports.append)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while len(received) < len(whole):
                received += await receiver.receive_some()
        assert bytes(received) == whole
        assert sum(reports) == len(whole), "each sent byte gives its memory back"
    await server.aclose()
    await client.aclose()


async def test_a_lost_peer_breaks_the_stream_and_a_closed_socket_is_closed() -> None:
    pieces = [bytes(36), bytes(4 << 20)]
    server, client = tcp_pair()
    await client.aclose()
    await send_pieces(server, [b"1", b"2"], lambda size: None)  # the peer answers that it is gone
    with pytest.raises(trio.BrokenResourceError):
        await send_pieces(server, pieces, lambda size: None)
    server.socket.close()
    with pytest.raises(trio.ClosedResourceError):
        await send_pieces(server, pieces, lambda size: None)


async def test_a_large_reply_in_two_parts_is_the_frame_of_the_whole_one() -> None:
    request = BatchReadRequest(7, 3, 99, 0, 0)
    incoming = IncomingRequest(2, Operation.BATCH_READ_ENTRY, request)
    entries = pack_entries([bytes([at]) * 1000 for at in range(100)])
    for some in entries, entries[5:80], entries[:2]:
        reply = BatchReadReply(Code.OK, 7, 3, 99, some)
        whole = v2.encode_reply(reply, version=2, operation=Operation.BATCH_READ_ENTRY)
        parts = in_two_parts(incoming, reply)
        assert (parts is not None) == (len(some.packed) >= LARGE_REPLY_BYTES_MIN)
        if parts is not None:
            assert b"".join(parts) == whole
            queue = ReplyQueue(1 << 20, SharedMemory(1 << 20, 10))
            queue.put(b"before")
            queue.put_large(*parts)
            queue.put(b"behind")
            assert queue.queued_bytes == len(whole) + 12
            pieces = await queue.take()
            assert b"".join(pieces) == b"before" + whole + b"behind"
            assert [type(piece) for piece in pieces] == [bytes, memoryview, bytes], (
                "the entries are not copied"
            )
    fencing = IncomingRequest(2, Operation.BATCH_READ_ENTRY, BatchReadRequest(7, 3, 99, 0, 0, fence=True))
    for other, reply in (
        (fencing, BatchReadReply(Code.OK, 7, 3, 99, entries)),
        (incoming, BatchReadReply(Code.NO_ENTRY, 7, 3, 99)),
        (incoming, BatchReadReply(Code.OK, 7, 3, 99, list(entries))),
        (IncomingRequest(1, Operation.BATCH_READ_ENTRY, request), BatchReadReply(Code.OK, 7, 3, 99, entries)),
    ):
        assert in_two_parts(other, reply) is None


async def test_a_large_reply_within_this_process_or_after_the_end_is_like_any_other() -> None:
    memory = SharedMemory(1000, 10)
    queue = ReplyQueue(300, memory)
    queue.direct, _ = stream_pair(100)
    queue.put_large(b"head", memoryview(b"body"))
    assert await queue.take() == [b"headbody"]
    queue.close()
    queue.put_large(b"head", memoryview(b"body"))
    assert memory.used_bytes == 0
