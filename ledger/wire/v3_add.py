"""Adds in protocol version 3, encoded and decoded by hand.

Adds and their replies are the hot path, and almost all have one shape. Protobuf writes these bytes:

    request   0a <n> { 08 03  10 02  18 <transaction id>  [20 <priority>] }            header
              aa 06 <n> { 08 <ledger id>  10 <entry id>  1a 14 <master key>  22 <n> <body>
                          [28 <write flags>]  [a0 06 01] }                             addRequest
    response  0a <n> { 08 03  10 02  18 <transaction id> }  10 <status>
              aa 06 <n> { 08 <status>  10 <ledger id>  18 <entry id> }                 addResponse

Inside: this shape. Not inside: all other messages, which protobuf decodes (``v3``).
Always: a message decoded here has the same value as decoded by protobuf; any unusual message is left to
protobuf.

Source: BookkeeperProtocol.proto; docs/protocol.md 3.2 to 3.4.
"""

from __future__ import annotations

import struct

from ledger.codes import MASTER_KEY_BYTES, Code, Operation
from ledger.digest import ENTRY_HEADER, EntryCodec
from ledger.wire.messages import AddReply, AddRequest, IncomingReply, IncomingRequest
from ledger.wire.protobuf import encode_varint

_VERSION = 3
_LENGTH = struct.Struct(">I")
_ADD_HEADER = b"\x08\x03\x10\x02\x18"  # version 3, ADD_ENTRY, and the tag of the transaction id
_ADD_FIELD = b"\xaa\x06"
_OK_ADD_FIELD = b"\x10\x00\xaa\x06"
_OK_AND_LEDGER_ID = b"\x08\x00\x10"
_KEY_FIELD = b"\x1a\x14"  # the master key, 20 bytes
_DEFERRED_SYNC_FIELD = b"\x28\x01"
_RECOVERY_FIELD = b"\xa0\x06\x01"
_PRIORITY_FIELD = b"\x20\x64"


def decode_usual_add(data: bytes, start: int, end: int) -> IncomingRequest | None:
    """Decode an add that has each field once, in the order of the field numbers; None for anything else.

    None does not mean that the bytes are no add or no message; protobuf decides that.
    """
    # The code may read past `end` into the next frame. It uses the result only if the add ends at `end`.
    if end - start < 44 or data[start] != 0x0A or data[start + 2 : start + 7] != _ADD_HEADER:
        return None
    header_end = start + 2 + data[start + 1]
    try:
        transaction_id, at = _read_varint(data, start + 7)
        priority = 0
        if at < header_end and data[at] == 0x20:
            priority, at = _read_varint(data, at + 1)
        if at != header_end or data[at : at + 2] != _ADD_FIELD:
            return None
        size, at = _read_varint(data, at + 2)
        if at + size != end or data[at] != 0x08:
            return None
        ledger_id, at = _read_varint(data, at + 1)
        if data[at] != 0x10:
            return None
        entry_id, at = _read_varint(data, at + 1)
        if data[at : at + 2] != _KEY_FIELD or data[at + 22] != 0x22:
            return None
        master_key = data[at + 2 : at + 22]
        size, at = _read_varint(data, at + 23)
    except IndexError:
        return None
    body_end = at + size
    if body_end > end or priority > 0xFFFF_FFFF:
        return None
    rest = data[body_end:end]
    deferred_sync = rest.startswith(_DEFERRED_SYNC_FIELD)
    if deferred_sync:
        rest = rest[len(_DEFERRED_SYNC_FIELD) :]
    if rest and rest != _RECOVERY_FIELD:
        return None
    return IncomingRequest(
        _VERSION,
        Operation.ADD_ENTRY,
        AddRequest(ledger_id, entry_id, master_key, data[at:body_end], bool(rest), deferred_sync),
        transaction_id,
        priority > 0,
    )


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint of at most nine bytes, and the position after it; IndexError otherwise."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    shift = 7
    while shift < 63:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise IndexError("ten bytes: a negative number, which a usual add does not have")


def encode_add_reply(reply: AddReply, transaction_id: int) -> bytes:
    """The frame of the reply to an add, length prefix included."""
    transaction = encode_varint(transaction_id)
    status = b"\x00" if reply.code is Code.OK else encode_varint(reply.code.value)
    ids = b"".join((status, b"\x10", encode_varint(reply.ledger_id), b"\x18", encode_varint(reply.entry_id)))
    payload = b"".join(
        (
            bytes((0x0A, len(_ADD_HEADER) + len(transaction))),
            _ADD_HEADER,
            transaction,
            b"\x10",
            status,
            _ADD_FIELD,
            bytes((1 + len(ids), 0x08)),
            ids,
        )
    )
    return _LENGTH.pack(len(payload)) + payload


def decode_usual_add_reply(data: bytes, start: int, end: int) -> IncomingReply | None:
    """Decode the reply to an add, if it is OK and its fields are in order; None for anything else."""
    if end - start < 19 or data[start] != 0x0A or data[start + 2 : start + 7] != _ADD_HEADER:
        return None
    try:
        transaction_id, at = _read_varint(data, start + 7)
        if at != start + 2 + data[start + 1] or data[at : at + 4] != _OK_ADD_FIELD:
            return None
        if at + 5 + data[at + 4] != end or data[at + 5 : at + 8] != _OK_AND_LEDGER_ID:
            return None
        ledger_id, at = _read_varint(data, at + 8)
        if data[at] != 0x18:
            return None
        entry_id, at = _read_varint(data, at + 1)
    except IndexError:
        return None
    if at != end:
        return None
    reply = AddReply(Code.OK, ledger_id, entry_id)
    return IncomingReply(_VERSION, Operation.ADD_ENTRY, reply, transaction_id)


class AddEncoder:
    """Makes the frames that add the entries of one ledger; all replicas share a frame.

    The transaction id of an add is its entry id + 1. The reply repeats the ledger and entry id too.
    """

    def __init__(
        self,
        ledger_id: int,
        entries: EntryCodec,
        *,
        recovery: bool = False,
        deferred_sync: bool = False,
    ) -> None:
        """Prepare the bytes that all adds have in common.

        Args:
            recovery: Make adds that a fenced ledger accepts, with high priority, as Java's recovery does.
            deferred_sync: Make adds that the bookie acknowledges before they are on disk.
        """
        self.ledger_id = ledger_id
        self._entry_overhead_bytes = entries.overhead_bytes
        self._digest = entries.digest
        self._priority = _PRIORITY_FIELD if recovery else b""
        self._ledger_field = b"\x08" + encode_varint(ledger_id) + b"\x10"
        assert len(entries.master_key) == MASTER_KEY_BYTES  # ``EntryCodec`` derives it by SHA-1
        self._key_field = _KEY_FIELD + entries.master_key + b"\x22"
        self._after_body = (_DEFERRED_SYNC_FIELD if deferred_sync else b"") + (
            _RECOVERY_FIELD if recovery else b""
        )

    def encode(self, entry_id: int, lac: int, length_bytes: int, payload: bytes) -> bytes:
        """The frame that adds this entry, length prefix included."""
        entry_header = ENTRY_HEADER.pack(self.ledger_id, entry_id, lac, length_bytes)
        body_size = self._entry_overhead_bytes + len(payload)
        before_body = b"".join(
            (self._ledger_field, encode_varint(entry_id), self._key_field, encode_varint(body_size))
        )
        add_size = encode_varint(len(before_body) + body_size + len(self._after_body))
        transaction = encode_varint(entry_id + 1) + self._priority
        header_size = len(_ADD_HEADER) + len(transaction)
        size = 4 + header_size + len(add_size) + len(before_body) + body_size + len(self._after_body)
        return b"".join(
            (
                _LENGTH.pack(size),
                bytes((0x0A, header_size)),
                _ADD_HEADER,
                transaction,
                _ADD_FIELD,
                add_size,
                before_body,
                entry_header,
                self._digest(entry_header, payload),
                payload,
                self._after_body,
            )
        )
