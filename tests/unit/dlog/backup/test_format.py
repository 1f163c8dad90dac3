"""The bytes of chunks and manifests: golden ones, both directions, and any bytes at all."""

from __future__ import annotations

import zlib
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.backup.errors import BackupDamagedError
from dlog.backup.format import (
    BackupManifest,
    EntryChunk,
    LedgerCopy,
    ManifestName,
    chunk_bytes,
    decode_chunk,
    decode_destination,
    decode_manifest,
    encode_chunk,
    encode_destination,
    encode_manifest,
)
from ledger.digest import ENTRY_HEADER, DigestType, EntryCodec

GOLDEN = Path(__file__).parent / "golden"
CODEC = EntryCodec(DigestType.CRC32C, b"")
BODIES = [CODEC.pack(7, 0, -1, 3, b"one"), CODEC.pack(7, 2, 0, 8, b"three")]  # entry 1 is missing
CHUNK = encode_chunk(7, 0, 2, BODIES)[1]
WHOLE = BackupManifest(
    instance_id="00000000-0000-0000-0000-000000000007",
    path="/dlog",
    release="0.1.0",
    begun_ms=1_700_000_000_000,
    cut_ms=1_700_000_000_005,
    nodes={"": b"", "orders": b"", "orders/<default>/ledgers": b"1"},
    ledgers={
        7: LedgerCopy(
            identity="ab" * 16,
            metadata=b"metadata",
            last=2,
            length_bytes=8,
            is_closed=False,
            missing=(1,),
            chunks=(CHUNK,),
        )
    },
    lost=(3,),
)
NEXT = EntryChunk(3, 3, 90, "cd" * 32)
CHANGED = attrs.evolve(
    WHOLE,
    begun_ms=1_700_000_001_000,
    cut_ms=1_700_000_001_001,
    nodes={"": b"", "orders": b"x", "payments": b""},
    ledgers={
        7: attrs.evolve(WHOLE.ledgers[7], last=3, chunks=(CHUNK, NEXT), is_closed=True),
        9: attrs.evolve(WHOLE.ledgers[7], last=-1, missing=(), chunks=(), length_bytes=0),
    },
    lost=(),
)


def body_of(data: bytes) -> bytes:
    """The JSON of a manifest: its compressed bytes depend on the version of zlib."""
    return zlib.decompress(data[40:])


def test_chunks_and_manifests_have_these_bytes() -> None:
    data, chunk = encode_chunk(7, 0, 2, BODIES)
    assert data == (GOLDEN / "chunk").read_bytes()
    assert chunk.name(7) == f"ledgers/7/0-2-{chunk.sha256[:16]}"
    assert chunk_bytes(BODIES) == len(data)
    assert encode_destination("some-id", "/dlog") == (GOLDEN / "dlog-backup.json").read_bytes()
    name, whole = encode_manifest(WHOLE)
    assert name.text == "manifests/1700000000005"
    assert body_of(whole) == body_of((GOLDEN / "whole").read_bytes())
    name, change = encode_manifest(CHANGED, WHOLE)
    assert name.text == "manifests/1700000001001-1700000000005"
    assert body_of(change) == body_of((GOLDEN / "change").read_bytes())


def test_golden_bytes_are_read() -> None:
    whole = decode_manifest(ManifestName(WHOLE.cut_ms), (GOLDEN / "whole").read_bytes())
    assert whole == WHOLE
    name = ManifestName(CHANGED.cut_ms, WHOLE.cut_ms)
    assert decode_manifest(name, (GOLDEN / "change").read_bytes(), whole) == CHANGED
    assert decode_chunk(7, CHUNK, (GOLDEN / "chunk").read_bytes()) == BODIES
    assert decode_destination((GOLDEN / "dlog-backup.json").read_bytes()) == ("some-id", "/dlog")


def test_a_manifest_of_some_logs_names_them() -> None:
    some = attrs.evolve(WHOLE, logs=("a", "b"))
    name, data = encode_manifest(some)
    assert decode_manifest(name, data) == some
    assert b'"logs":["a","b"]' in body_of(data)


def test_names_of_manifests_are_read_and_others_are_none() -> None:
    for name in (ManifestName(5), ManifestName(1_700_000_000_005, 1_700_000_000_000)):
        assert ManifestName.of(name.text) == name
    for text in ("manifests/5", "manifests/1700000000005-", "manifests/1700000000005x", "lock"):
        assert ManifestName.of(text) is None


@given(st.data())
def test_a_changed_byte_of_a_manifest_or_a_chunk_is_an_error(data: st.DataObject) -> None:
    for name in ("whole", "chunk"):
        stored = bytearray((GOLDEN / name).read_bytes())
        at = data.draw(st.integers(0, len(stored) - 1))
        stored[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(BackupDamagedError):
            read(name, bytes(stored))


def read(name: str, stored: bytes) -> object:
    if name == "chunk":
        return decode_chunk(7, CHUNK, stored)
    return decode_manifest(ManifestName(WHOLE.cut_ms), stored)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_of_the_format(data: bytes) -> None:
    for name in ("whole", "chunk"):
        with pytest.raises(BackupDamagedError):
            read(name, data)
    with pytest.raises(BackupDamagedError):
        decode_destination(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["version", "nodes", "ledgers", "lost", "logs", "cut_ms", "begun_ms", "base", "path"]
        ),
        JSON,
    )
)
def test_a_manifest_of_another_form_is_an_error_though_its_checksum_holds(fields: dict[str, object]) -> None:
    import hashlib
    import json

    document = {**json.loads(body_of((GOLDEN / "whole").read_bytes())), **fields}
    body = zlib.compress(json.dumps(document).encode())
    data = b"DLOGman1" + hashlib.sha256(body).digest() + body
    try:
        decode_manifest(ManifestName(WHOLE.cut_ms), data)
    except BackupDamagedError:
        pass  # the only error there may be


@pytest.mark.parametrize(
    ("first", "last", "bodies", "evidence"),
    [
        (0, 2, [BODIES[1], BODIES[0]], "out of its place"),
        (0, 1, BODIES, "out of its place"),
        (0, 0, [ENTRY_HEADER.pack(8, 0, -1, 0)], "out of its place"),
        (0, 0, [b"short"], "cut off"),
    ],
)
def test_a_chunk_whose_entries_are_not_those_of_its_range_is_an_error(
    first: int, last: int, bodies: list[bytes], evidence: str
) -> None:
    data, chunk = encode_chunk(7, first, last, bodies)
    with pytest.raises(BackupDamagedError, match=evidence):
        decode_chunk(7, chunk, data)


def test_chunks_with_a_hole_between_them_are_an_error() -> None:
    copy = attrs.evolve(WHOLE.ledgers[7], last=4, chunks=(CHUNK, attrs.evolve(NEXT, first=4, last=4)))
    name, data = encode_manifest(attrs.evolve(WHOLE, ledgers={7: copy}))
    with pytest.raises(BackupDamagedError, match="where 3 follows"):
        decode_manifest(name, data)
