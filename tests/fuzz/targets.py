"""All targets by name, and those of records, metadata, URIs and configuration.

Inside: seeds, documented errors and repairs of decoders that take bytes or text.
Not inside: wire messages (``wire_targets``), files of a bookie (``storage_targets``), a live port (``port``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bookie.config.bookie_config import parse_config
from bookie.config.properties import PropertiesError, parse_properties
from bookie.errors import BookieConfigError
from dlog.cli.terminal.position import parse_position
from dlog.encryption import PayloadOpener, PayloadSealer
from dlog.errors import (
    DecryptionError,
    EncryptionKeyError,
    EntryFormatError,
    InvalidLogNameError,
    InvalidUriError,
    LogMetadataError,
    LogMovedError,
    LogNotFoundError,
    PromotionError,
)
from dlog.format.compression import Compression, expand
from dlog.format.envelope import ENTRY_BYTES_MAX, open_envelope, seal_envelope
from dlog.format.hash_chain import chain_start, chain_value_in, encode_chain_record, parse_head
from dlog.format.record import FLAG_RECORD_SET, decode_records, encode_record, encode_records
from dlog.format.record_set import SetBudget, decode_record_set
from dlog.read.segment_reader import SegmentReader, last_record_of, slot_not_before
from ledger.catalog.metadata_codec import decode_metadata, encode_metadata
from ledger.catalog.paths import decode_layout, ledger_id_of
from ledger.catalog.service_info import decode_service_info, encode_service_info
from ledger.errors import LocationError, MetadataFormatError
from ledger.metadata_store.errors import InvalidPathError, InvalidStoreAddressError
from ledger.metadata_store.lock import member_owner, member_sequence
from ledger.metadata_store.service_uri import parse_metadata_service_uri
from ledger.metadata_store.store import Node, Stat, check_path
from ledger.placement.locations import parse_table
from ledger.placement.topology import parse_location
from namespace.binding import decode_binding
from namespace.dlsn import DLSN
from namespace.log_metadata import initial_nodes, log_metadata_from
from namespace.log_name import check_log_name
from namespace.namespace_uri import parse_namespace_uri
from namespace.segments.segment import decode_segment
from tests.fakes.log_paths import paths_of
from tests.fakes.record_sets import encode_record_set
from tests.fuzz.auth_targets import AUTH_TARGETS
from tests.fuzz.engine import Target
from tests.fuzz.forwarding_targets import FORWARDING_TARGETS
from tests.fuzz.storage_targets import STORAGE_TARGETS
from tests.fuzz.wire_targets import WIRE_TARGETS
from tests.places import GOLDEN_FILES

STAT = Stat(version=0, child_version=0, children_count=0, created_ms=0, ephemeral_owner=0)
EXPANDED_PEAK_BYTES = 120 * 1024 * 1024  # of the worst entry within the limits (docs/security.md)


def golden_json(name: str) -> Any:
    return json.loads((GOLDEN_FILES / name).read_text())


def entries() -> list[bytes]:
    """Entries that Apache wrote, and ours in every codec."""
    found: list[bytes] = []

    def collect(value: Any, name: str = "") -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                collect(inner, key)
        elif isinstance(value, list):
            for inner in value:
                collect(inner, name)
        elif isinstance(value, str) and name in ("payload", "hex", "data", "entry") and value[:2] == "01":
            try:
                found.append(bytes.fromhex(value))
            except ValueError:
                pass

    collect(golden_json("distributedlog/entries.json"))
    body = encode_records([b"hello", b"", b"x" * 300], [10, 10, 11], 1)
    found += [seal_envelope(body, codec) for codec in Compression]
    for codec in Compression:
        packed = encode_record_set([b"abc" * 6, b"", b"d"] * 3, codec)
        with_set = encode_record(FLAG_RECORD_SET, 1, 6, packed) + encode_record(0, 10, 7, b"tail")
        found.append(seal_envelope(with_set, Compression.LZ4))
    return [entry for entry in found if 13 < len(entry) < 8000]


def record_bodies() -> list[bytes]:
    bodies = []
    for entry in entries():
        try:
            body, start, stop = open_envelope(entry)
        except EntryFormatError:
            continue  # the beginning of a long entry: the golden file has no more of it
        bodies.append(body[start:stop])
    return bodies


def record_sets() -> list[bytes]:
    parts = [[b"foo", b"barbaz"], [b""] * 40, [b"a" * 2000, b"b" * 2000]]
    return [encode_record_set(payloads, codec) for payloads in parts for codec in Compression]


def _with_length(at: int, header: int) -> Callable[[bytes], bytes]:
    """A repair: the stored length of the body, at offset ``at``, fits the bytes behind the header."""

    def repair(data: bytes) -> bytes:
        if len(data) < header:
            return data
        return data[:at] + (len(data) - header).to_bytes(4, "big") + data[at + 4 :]

    return repair


def decode_entry(data: bytes) -> None:
    reader = SegmentReader(1, 0)
    reader.confirmed(1, closed=False)
    try:
        reader.decode(data, [])
        reader.decode(data, [])
    finally:
        assert reader.next_entry_id <= 2
        open_envelope(data)
        last_record_of(data)
        slot_not_before(data, 11)


def decode_bare_entry(data: bytes) -> None:
    decode_records(data, 0, len(data))
    last_record_of(data, enveloped=False)


def decode_expanded(data: bytes) -> None:
    """The first byte is the codec, the next four are the claimed length."""
    size = int.from_bytes(data[1:5], "big", signed=True)
    body = expand(data[0] if data else 3, data[5:], size, ENTRY_BYTES_MAX)
    assert len(body) == size <= ENTRY_BYTES_MAX


def blocks() -> list[bytes]:
    found = []
    for entry in entries():
        code, size = entry[4], entry[5:9]
        found.append(bytes([code]) + size + entry[13:])
    return found


class OneKey:
    """A key provider with one key."""

    def current(self) -> tuple[str, bytes]:
        return "a", bytes(32)

    def key(self, key_id: str) -> bytes:
        return {"a": bytes(32)}[key_id]


def decode_ledger_metadata(data: bytes) -> None:
    metadata = decode_metadata(data)
    again = decode_metadata(encode_metadata(metadata))
    assert again == metadata, "metadata does not survive encoding"


def decode_info(data: bytes) -> None:
    info = decode_service_info(data)
    assert decode_service_info(encode_service_info(info)) == info


def decode_log_nodes(data: bytes) -> None:
    """Each line is one node of a log."""
    lines = data.split(b"\n")
    nodes: dict[str, Node | None] = {}
    for index, (path, _) in enumerate(initial_nodes(paths_of("/ns", "log"))):
        value = lines[index] if index < len(lines) else None
        nodes[path] = None if value is None else Node(value, STAT)
    log_metadata_from(paths_of("/ns", "log"), nodes)


def as_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def hex_values(name: str) -> list[bytes]:
    """The hex strings in the golden vectors under a key."""
    found = golden_json("bookkeeper/vectors.json")[name]
    values = found.values() if isinstance(found, Mapping) else [found]
    return [bytes.fromhex(value) for value in values if isinstance(value, str)]


def znode_values(part: str) -> list[bytes]:
    """Values of Apache's nodes whose path contains ``part``."""
    found = set()
    for path in sorted((GOLDEN_FILES / "bookkeeper").glob("*/znodes/*.jsonl")):
        for line in path.read_text().splitlines():
            node = json.loads(line)
            if part in node["path"] and node["hex"]:
                found.add(bytes.fromhex(node["hex"]))
    return sorted(found)


def log_nodes(part: str) -> list[bytes]:
    found = set()
    for step in golden_json("namespace/znodes.json"):
        for node in step["nodes"]:
            if part in node["path"] and node["data"]:
                found.add(bytes.fromhex(node["data"]))
    return sorted(found)


def segments() -> list[bytes]:
    return [
        segment["data"].encode()
        for topic in golden_json("namespace/segments.json")
        for segment in topic["segments"]
    ]


def dlsns() -> list[bytes]:
    return [DLSN(seqno, entry_id, slot).to_bytes(1) for seqno, entry_id, slot in ((1, 2, 3), (0, -1, -1))]


CONFIG = b"""# a bookie
bookiePort=3181
metadataServiceUri=zk+hierarchical://zk1:2181/ledgers
journalDirectories=/a/journal,/b/journal
ledgerDirectories=/a/ledgers
diskUsageThreshold=0.95
useHostNameAsBookieID = true
key\\ with\\ space : a\\u0041\\
   continued
gcWaitTime=900000
"""


def parse_bookie_config(text: str) -> None:
    parse_config(text, "fuzz", {"HOME": "/h"})


def text_target(
    name: str, parse: Callable[[str], object], seeds: Sequence[bytes], *errors: type[Exception]
) -> Target:
    return Target(
        name=name,
        seeds=lambda: list(seeds),
        decode=as_text(parse),
        errors=errors,
        lines_per_byte=200,
        input_bytes_max=2000,
    )


def entry_target(name: str, **fields: Any) -> Target:
    """A decoder that may expand its input up to the limits of an entry."""
    limits = {"memory_base": EXPANDED_PEAK_BYTES, "lines_base": 3_000_000}
    return Target(name=name, errors=(EntryFormatError,), **{**limits, **fields})


_RECORDS = [
    entry_target("entry", seeds=entries, decode=decode_entry, repair=_with_length(9, 13)),
    entry_target(
        "record_set",
        seeds=record_sets,
        decode=lambda data: decode_record_set(data, SetBudget()),
        repair=_with_length(12, 16),
    ),
    entry_target(
        "records", seeds=record_bodies, decode=decode_bare_entry, memory_base=1 << 20, lines_base=5000
    ),
    entry_target("compression", seeds=blocks, decode=decode_expanded, memory_base=4 << 20, lines_base=5000),
    Target(
        name="encrypted_payload",
        seeds=lambda: [PayloadSealer("orders", OneKey()).seal(payload, 7) for payload in (b"", b"hello")],
        decode=lambda data: PayloadOpener("orders", OneKey()).open(data, 7, DLSN(1, 2, 3)),
        errors=(DecryptionError, EncryptionKeyError),
    ),
    Target(
        name="hash_chain",
        seeds=lambda: [encode_chain_record(chain_start("orders"), 1, 10)],
        decode=lambda data: chain_value_in(data, 0, len(data)),
        errors=(EntryFormatError,),
    ),
    text_target("chain_head", parse_head, [str(chain_start("orders")).encode()], ValueError),
    Target(name="dlsn", seeds=dlsns, decode=DLSN.from_bytes, errors=(LogMetadataError,)),
    Target(
        name="segment",
        seeds=segments,
        decode=decode_segment,
        errors=(LogMetadataError,),
        tokens=[b";", b"-999"],
    ),
    Target(
        name="log_binding",
        seeds=lambda: log_nodes("/golden/ns"),
        decode=decode_binding,
        errors=(LogMetadataError,),
        tokens=[b'{"1":{"str":"h"}}', b'{"tf":1}', b'{"i64":1e999}'],
    ),
    Target(
        name="log_nodes",
        seeds=lambda: [b"\n".join(value for _, value in initial_nodes(paths_of("/ns", "log")))],
        decode=decode_log_nodes,
        errors=(LogMetadataError, LogNotFoundError, LogMovedError, PromotionError),
    ),
]

_METADATA = [
    Target(
        name="ledger_metadata",
        seeds=lambda: [*hex_values("metadata"), *znode_values("/L")],
        decode=decode_ledger_metadata,
        errors=(MetadataFormatError,),
        tokens=[b"BookieMetadataFormatVersion\t2\n", b"quorumSize: ", b"segment { ", b'password: "'],
        lines_per_byte=300,
    ),
    Target(
        name="layout",
        seeds=lambda: [*hex_values("layout"), *znode_values("/LAYOUT")],
        decode=decode_layout,
        errors=(MetadataFormatError,),
    ),
    Target(
        name="service_info",
        seeds=lambda: hex_values("service_info"),
        decode=decode_info,
        errors=(MetadataFormatError,),
        lines_per_byte=200,
    ),
]

_TEXTS = [
    text_target(
        "namespace_uri",
        parse_namespace_uri,
        [b"distributedlog://zk1:2181;zk2:2181/ns/a", b"file:///var/lib/log", b"distributedlog-x://h/p"],
        InvalidUriError,
    ),
    text_target(
        "service_uri",
        parse_metadata_service_uri,
        [b"zk+hierarchical://zk1:2181;zk2/ledgers", b"zk+null://[::1]:2181/l"],
        InvalidStoreAddressError,
    ),
    text_target("log_name", check_log_name, [b"orders", b"a/b/c"], InvalidLogNameError),
    text_target("node_path", check_path, [b"/a/b", b"/"], InvalidPathError),
    text_target("dlsn_text", DLSN.from_text, [DLSN(1, 2, 3).to_text().encode()], LogMetadataError),
    text_target(
        "position",
        parse_position,
        [b"7:42:0", b"earliest", b"12345", b"2026-11-01T12:00", b"2026-11-01T12:00:00+02:00", b"9999-12-31"],
        ValueError,
    ),
    text_target(
        "lock_member",
        lambda text: (member_owner(text), member_sequence(text)),
        [b"member_host%20_s72057594037927936_0000000001"],
    ),
    text_target(
        "ledger_path", lambda text: ledger_id_of("/r", "/r" + text), [b"/00/0000/L0001", b"/L0000000001"]
    ),
    text_target("network_location", parse_location, [b"/region/rack1", b"/default-rack"], LocationError),
    text_target(
        "location_table",
        lambda text: parse_table(text, "f"),
        [b"# x\nbk1:3181 /r/a\n127.0.0.1 /b\n"],
        LocationError,
    ),
    text_target("properties", parse_properties, [CONFIG], PropertiesError),
    text_target("bookie_config", parse_bookie_config, [CONFIG], BookieConfigError),
]


def _by_name(targets: Sequence[Target]) -> dict[str, Target]:
    names = {target.name: target for target in targets}
    assert len(names) == len(targets)
    return names


TARGETS: dict[str, Target] = _by_name(
    [*_RECORDS, *_METADATA, *_TEXTS, *WIRE_TARGETS, *FORWARDING_TARGETS, *STORAGE_TARGETS, *AUTH_TARGETS]
)
"""Every decoder, by name."""
