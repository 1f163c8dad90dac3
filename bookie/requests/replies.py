"""Replies that need no state: refusals, frames of plain reads, failed acknowledgements.

Source: ResponseBuilder.java, PacketProcessorBaseV3.java.
"""

from __future__ import annotations

from struct import Struct
from typing import assert_never

import attrs

from ledger.codes import CODES_V2, Code
from ledger.packed_entries import PackedEntries
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    AuthReply,
    AuthRequest,
    BatchReadReply,
    BatchReadRequest,
    BookieInfoReply,
    BookieInfoRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    IncomingRequest,
    ListEntriesReply,
    ListEntriesRequest,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Reply,
    StartTlsReply,
    StartTlsRequest,
    WriteLacReply,
    WriteLacRequest,
)

LARGE_REPLY_BYTES_MIN = 65_536  # below it a copy of the entries costs less than a second piece
READ_HEADER = 0x02020000  # version 2, no flags
_READ_OK = Struct(">III")  # length, header, code; the request's ids and the entry follow
_READ_REPLY_BYTES = 24


def plain_reply(ids: bytes, code: Code, body: bytes = b"") -> bytes:
    """The frame of a reply to a version 2 read. ``ids`` are the request's ledger and entry id, 16 bytes."""
    assert body == b"" or code is Code.OK, code  # ``send_plain`` has a body only for OK
    length = _READ_REPLY_BYTES + len(body)
    return b"".join((_READ_OK.pack(length, READ_HEADER, CODES_V2[code]), ids, body))


def in_two_parts(incoming: IncomingRequest, reply: Reply) -> tuple[bytes, memoryview] | None:
    """The frame of a large version 2 reply to a plain batch read: up to its entries, and they; else None."""
    if (
        incoming.version != v2.VERSION
        or not isinstance(incoming.request, BatchReadRequest)
        or incoming.request.fence
        or not isinstance(reply, BatchReadReply)
        or reply.code is not Code.OK
        or not isinstance(reply.bodies, PackedEntries)
        or len(packed := reply.bodies.packed) < LARGE_REPLY_BYTES_MIN
    ):
        return None
    return v2.batch_reply_head(reply, len(packed)), packed


def refusal(incoming: IncomingRequest, code: Code) -> Reply:
    """A reply without a result, of the type that belongs to the request if there is one."""
    request = incoming.request
    match request:
        case AddRequest():
            return AddReply(code, request.ledger_id, request.entry_id)
        case ReadRequest():
            return ReadReply(code, request.ledger_id, request.entry_id)
        case BatchReadRequest():
            return BatchReadReply(code, request.ledger_id, request.entry_id, request.request_id)
        case WriteLacRequest():
            return WriteLacReply(code, request.ledger_id)
        case ReadLacRequest():
            return ReadLacReply(code, request.ledger_id)
        case ForceLedgerRequest():
            return ForceLedgerReply(code, request.ledger_id)
        case BookieInfoRequest():
            return BookieInfoReply(code)
        case ListEntriesRequest():
            return ListEntriesReply(code, request.ledger_id)
        case StartTlsRequest():
            return StartTlsReply(code)
        case AuthRequest():
            return AuthReply(code)
        case None:
            return RefusedReply(code, incoming.operation)
        case _:
            assert_never(request)


def as_failed(acks: bytes) -> bytes:
    """The same frames with the code of an I/O error: their batch has failed."""
    failed = []
    position = 0
    while position < len(acks):
        start = position + 4
        end = start + int.from_bytes(acks[position:start], "big")
        if acks[start] <= 2:
            incoming = v2.decode_reply(acks, start, end)
        else:
            incoming = v3.decode_reply(acks, start, end)
        reply = attrs.evolve(incoming.reply, code=Code.IO_ERROR)
        if incoming.version == 3:
            frame = v3.encode_reply(
                reply, version=3, operation=incoming.operation, transaction_id=incoming.transaction_id
            )
        else:
            frame = v2.encode_reply(reply, version=incoming.version, operation=incoming.operation)
        failed.append(frame)
        position = end
    return b"".join(failed)
