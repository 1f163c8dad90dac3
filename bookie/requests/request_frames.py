"""A frame becomes a request, or the reply that refuses it.

Inside: which of the two protocol versions a frame speaks; versions that this bookie does not know.
Not inside: the meaning of a request (``service``), bytes of messages (``ledger.wire``).
Always: a frame whose sender can be answered is answered; any other frame is a ``WireError``.

Source: BookieProtoEncoding.java, BookieRequestProcessor.java; docs/protocol.md 9.1.
"""

from __future__ import annotations

from struct import Struct

from bookie.requests.replies import refusal
from ledger.codes import Code
from ledger.errors import UnsupportedInVersionError, WireError
from ledger.wire import v2, v3
from ledger.wire.messages import IncomingRequest

_IDS = Struct(">qq")


def decode_request(data: bytes, start: int, end: int) -> IncomingRequest | bytes:
    """The request in ``data[start:end]``, or the frame of the reply that refuses it.

    Raises:
        WireError: It is no message.
    """
    if data[start] >= v3.FIRST_BYTE_MIN:
        try:
            incoming = v3.decode_request(data, start, end)
        except WireError:
            # A version 2 header with an unknown version: the version 2 decoder may still find the ids.
            return _refused_version_2(v2.decode_request(data, start, end))
        if incoming.version == v3.VERSION:
            return incoming
        reply = refusal(incoming, Code.BAD_VERSION)
        return v3.encode_reply(
            reply, version=v3.VERSION, operation=incoming.operation, transaction_id=incoming.transaction_id
        )
    if v2.ADD_BODY_OFFSET + _IDS.size <= end - start < v2.ADD_REQUEST_BYTES_MIN and data[start + 1] == 1:
        return v2.add_reply(Code.BAD_REQUEST, *_IDS.unpack_from(data, start + v2.ADD_BODY_OFFSET))
    incoming = v2.decode_request(data, start, end)
    return _refused_version_2(incoming) if incoming.version > v2.VERSION else incoming


def _refused_version_2(incoming: IncomingRequest) -> bytes:
    try:
        reply = refusal(incoming, Code.BAD_VERSION)
        return v2.encode_reply(reply, version=incoming.version, operation=incoming.operation)
    except UnsupportedInVersionError as exc:
        raise WireError(f"protocol version {incoming.version}, which no reply can refuse: {exc}") from exc
