"""Replies to reads in protocol version 3, encoded by hand.

A reader at the end of a ledger gets one for each entry. Protobuf writes these bytes:

    0a <n> { 08 03  10 01  18 <transaction id> }  10 <status>                                 header
    a2 06 <n> { 08 <status>  10 <ledger id>  18 <entry id>  [22 <n> <body>]  [28 <max LAC>]
                [30 <milliseconds>]  [c2 3e <n> <LAC packet>]  [c8 3e 01] }                   readResponse

Inside: encoding this shape. Not inside: decoding it (``v3``).
Always: the bytes are those that protobuf writes.

Source: BookkeeperProtocol.proto; docs/protocol.md 3.2 to 3.4.
"""

from __future__ import annotations

import struct

from ledger.wire.messages import LAST_ENTRY, ReadReply
from ledger.wire.protobuf import encode_varint

_LENGTH = struct.Struct(">I")
_HEADER = b"\x08\x03\x10\x01\x18"  # version 3, READ_ENTRY, and the tag of the transaction id
_LAST_ENTRY_ID = encode_varint(LAST_ENTRY)


def encode_read_reply(reply: ReadReply, transaction_id: int) -> bytes:
    """The frame of the reply to a read or a long poll, length prefix included."""
    transaction = encode_varint(transaction_id)
    status = encode_varint(reply.code.value)
    fields = [
        b"\x08",
        status,
        b"\x10",
        encode_varint(reply.ledger_id),
        b"\x18",
        _LAST_ENTRY_ID if reply.entry_id == LAST_ENTRY else encode_varint(reply.entry_id),
    ]
    if reply.body is not None:
        fields += (b"\x22", encode_varint(len(reply.body)), reply.body)
    if reply.max_lac is not None:
        fields += (b"\x28", encode_varint(reply.max_lac))
    if reply.lac_update_ms is not None:
        fields += (b"\x30", encode_varint(reply.lac_update_ms))
    if reply.lac_body is not None:
        fields += (b"\xc2\x3e", encode_varint(len(reply.lac_body)), reply.lac_body)
    if reply.more_follow:
        fields.append(b"\xc8\x3e\x01")
    response = b"".join(fields)
    payload = b"".join(
        (
            bytes((0x0A, len(_HEADER) + len(transaction))),
            _HEADER,
            transaction,
            b"\x10",
            status,
            b"\xa2\x06",
            encode_varint(len(response)),
            response,
        )
    )
    return _LENGTH.pack(len(payload)) + payload
