"""Targets of what a peer sends: frames, requests, replies, entries, entry lists."""

from __future__ import annotations

import json
from collections.abc import Callable

from bookie.requests.session import decode_request as decode_bookie_request
from ledger.catalog.availability import decode_availability
from ledger.digest import DigestType, EntryCodec
from ledger.errors import CorruptEntryError, WireError
from ledger.wire import v2, v3
from ledger.wire.entry_lac import credible_lac
from ledger.wire.frame import FrameBuffer
from tests.fuzz.engine import Target
from tests.places import GOLDEN_FILES

FRAME_LIMIT = 4096  # of the frame buffer here, so that small inputs pass it
ENTRIES = EntryCodec(DigestType.CRC32C, b"pass")


def captured(protocol: str, direction: str) -> list[bytes]:
    """Messages, without the length in front, that Apache's programs were seen to send."""
    found = set()
    for path in sorted((GOLDEN_FILES / "bookkeeper").glob("*/wire/*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["proto"] == protocol and line["dir"] == direction and len(line["hex"]) < 3000:
                found.add(bytes.fromhex(line["hex"])[4:])
    return sorted(found)[::4]


def requests(protocol: str) -> Callable[[], list[bytes]]:
    return lambda: captured(protocol, "c2b")


def replies(protocol: str) -> Callable[[], list[bytes]]:
    return lambda: captured(protocol, "b2c")


def frames() -> list[bytes]:
    messages = captured("v2", "c2b")[:12]
    return [b"\x03" + b"".join(len(each).to_bytes(4, "big") + each for each in messages[:3])] + [
        bytes([index]) + len(each).to_bytes(4, "big") + each for index, each in enumerate(messages)
    ]


def feed_in_pieces(data: bytes) -> None:
    """The first byte chooses the size of the pieces. The buffer never holds more than it may."""
    size = 1 + (data[0] if data else 0)
    buffer = FrameBuffer(FRAME_LIMIT)
    taken = 0
    for at in range(1, len(data), size):
        chunk = data[at : at + size]
        block, payloads = buffer.feed(chunk)
        for start, end in payloads:
            assert 0 <= start < end <= len(block)
            taken += end - start
        assert buffer.held_bytes <= FRAME_LIMIT + len(chunk)
    assert taken <= len(data)


def decode_entry_list(data: bytes) -> None:
    availability = decode_availability(data)
    assert len(availability) >= 0
    assert -1 not in availability
    assert 5 in availability or 5 not in availability


def entry_bodies() -> list[bytes]:
    return [ENTRIES.pack(7, 5, 4, 100, payload) for payload in (b"", b"hello", bytes(300))]


def unpack_entry(data: bytes) -> None:
    entry = ENTRIES.unpack(data, 7, None)
    stored_lac = int.from_bytes(data[16:24], "big", signed=True)
    assert entry.lac == credible_lac(entry.entry_id, stored_lac)
    assert ENTRIES.pack(7, entry.entry_id, stored_lac, entry.length_bytes, entry.payload) == data


def with_digest(data: bytes) -> bytes:
    """The entry with a digest that fits, as an attacker with the public key computes it."""
    if len(data) < 36:
        return data
    numbers = [int.from_bytes(data[at : at + 8], "big", signed=True) for at in (0, 8, 16, 24)]
    return ENTRIES.pack(numbers[0], numbers[1], numbers[2], numbers[3], data[36:])


def message_target(name: str, seeds: Callable[[], list[bytes]], decode: Callable[..., object]) -> Target:
    return Target(
        name=name,
        seeds=seeds,
        decode=lambda data: decode(b"\0\0\0\0" + data + b"\xff" * 8, 4, 4 + len(data)) if data else None,
        errors=(WireError,),
    )


WIRE_TARGETS = [
    message_target("v2_request", requests("v2"), v2.decode_request),
    message_target("v2_reply", replies("v2"), v2.decode_reply),
    message_target("v3_request", requests("v3"), v3.decode_request),
    message_target("v3_reply", replies("v3"), v3.decode_reply),
    message_target("bookie_request", lambda: requests("v2")() + requests("v3")(), decode_bookie_request),
    Target(name="frames", seeds=frames, decode=feed_in_pieces, errors=(WireError,), lines_per_byte=100),
    Target(
        name="entry_list",
        seeds=lambda: [
            bytes.fromhex(each["hex"])
            for each in json.loads((GOLDEN_FILES / "bookkeeper/vectors.json").read_text())["availability"]
        ],
        decode=decode_entry_list,
        errors=(WireError,),
    ),
    Target(
        name="entry_digest",
        seeds=entry_bodies,
        decode=unpack_entry,
        errors=(CorruptEntryError,),
        repair=with_digest,
    ),
]
