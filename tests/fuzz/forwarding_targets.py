"""What a program may send to the owner of a shared log, and the owner to it."""

from __future__ import annotations

from dlog.errors import LogWriteError, RecordOutcome
from dlog.format.attributes import encode_attributes
from dlog.forwarding.frames import (
    Appended,
    Failed,
    ForwardedCall,
    FrameKind,
    Hello,
    Records,
    Refused,
    Request,
    Result,
    Welcome,
    decode,
    encode_appended,
    encode_bare,
    encode_failed,
    encode_hello,
    encode_records,
    encode_refused,
    encode_request,
    encode_result,
    encode_welcome,
)
from ledger.errors import WireError
from namespace.dlsn import DLSN
from tests.fuzz.engine import Target

PREFIX_BYTES = 4  # of the length; frames are cut by ``ledger.wire.frame``


def frames() -> list[bytes]:
    """One frame of each kind, without its length."""
    place, error = DLSN(1, 2, 3), LogWriteError("orders", "it failed", RecordOutcome.UNKNOWN)
    records = Records(5, [b"one", b"two"], [7, 7], [None, encode_attributes(b"key", {"name": b"value"})])
    some = [
        encode_hello(Hello("checkout-7", "01" * 16, place)),
        encode_records(records),
        encode_records(Records(0, [b"x" * 300], is_again=True, is_atomic=True)),
        encode_request(Request(1, ForwardedCall.APPEND_AFTER, "checkout-7", place, records)),
        encode_request(Request(2, ForwardedCall.TRUNCATE, position=place)),
        encode_request(Request(3, ForwardedCall.OUTCOME, txid=9)),
        encode_welcome(Welcome(4, 7, place)),
        encode_appended(Appended(5, 7, [(1, 2, 3, 2)])),
        encode_refused(Refused(5, error)),
        encode_result(Result(1, [place])),
        encode_failed(Failed(2, error)),
        encode_bare(FrameKind.PING),
    ]
    return [each[PREFIX_BYTES:] for each in some]


FORWARDING_TARGETS = [
    Target(
        name="forwarded_frames",
        seeds=frames,
        decode=decode,
        errors=(WireError,),
        tokens=[b'{"producer": "p", "position": [1, 2, 3], "txid": 1}', b'"values": {}', b"\x00\x00\xff\xff"],
        lines_per_byte=100,
    )
]
