"""The nodes of blobs: their bytes, their paths, and what a damaged one is."""

from __future__ import annotations

import json

import pytest

from ledger.metadata_store.memory import MemoryStore, MemoryTree
from namespace.blob_nodes import (
    Blob,
    BlobNodes,
    BlobPiece,
    Upload,
    UploadState,
    blob_mark,
    decode_blob,
    decode_upload,
    encode_blob,
    encode_upload,
    ledgers_in_node,
)
from namespace.errors import LogMetadataError

BLOB = Blob(
    name="a/ü.png",
    blob_id="0123456789abcdef" * 2,
    size_bytes=10,
    sha256="ab" * 32,
    content_type="image/png",
    labels={"owner": "me"},
    created_ms=1_764_201_600_000,
    entry_bytes=8,
    pieces=(BlobPiece(17, 8), BlobPiece(18, 2)),
)
UPLOAD = Upload(blob_id=BLOB.blob_id, name="a", state=UploadState.GARBAGE, ledger_ids=(17, 18))
BLOB_BYTES = (
    b'{"version": 1, "id": "0123456789abcdef0123456789abcdef", "size": 10, "sha256": "' + b"ab" * 32 + b'",'
    b' "entry_bytes": 8, "created_ms": 1764201600000, "content_type": "image/png", "labels": {"owner": "me"},'
    b' "pieces": [[17, 8], [18, 2]]}'
)
UPLOAD_BYTES = (
    b'{"version": 1, "id": "0123456789abcdef0123456789abcdef", "name": "a", "state": "garbage",'
    b' "ledgers": [17, 18]}'
)


def test_a_blob_and_an_upload_have_these_bytes() -> None:
    assert encode_blob(BLOB) == BLOB_BYTES
    assert decode_blob("a/ü.png", BLOB_BYTES) == BLOB
    assert encode_upload(UPLOAD) == UPLOAD_BYTES
    assert decode_upload(UPLOAD_BYTES) == UPLOAD


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"version": 2}', b'{"version": 1}', b"\xff", b"[" * 99999]
)
def test_what_is_no_node_is_an_error(data: bytes) -> None:
    for decode in (lambda: decode_blob("a", data), lambda: decode_upload(data)):
        with pytest.raises(LogMetadataError):
            decode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", "A" * 32),
        ("size", 9),
        ("size", "10"),
        ("size", -1),
        ("sha256", ""),
        ("entry_bytes", 0),
        ("created_ms", True),
        ("labels", []),
        ("labels", {"a": 1}),
        ("content_type", None),
        ("pieces", [[17]]),
        ("pieces", [[2**63, 10]]),
        ("pieces", 5),
    ],
)
def test_a_field_with_a_wrong_value_is_an_error(key: str, value: object) -> None:
    with pytest.raises(LogMetadataError):
        decode_blob("a", json.dumps(json.loads(BLOB_BYTES) | {key: value}).encode())


def test_a_later_release_may_add_fields() -> None:
    more = json.dumps(json.loads(BLOB_BYTES) | {"later": 1}).encode()
    assert decode_blob(BLOB.name, more) == BLOB


def test_the_paths_of_a_namespace() -> None:
    nodes = BlobNodes(MemoryStore(MemoryTree()), "/ns")
    assert nodes.blob_path("a/ü.png") == "/ns/.dlog-blobs/names/b9/a%2F%C3%BC.png"
    assert nodes.upload_path("0f") == "/ns/.dlog-blobs/uploads/0f"
    assert nodes.owner_path("0f") == "/ns/.dlog-blobs/owners/0f"


def test_the_ledgers_of_each_node() -> None:
    path = BlobNodes(MemoryStore(MemoryTree()), "/ns")
    assert ledgers_in_node(path.blob_path("a"), BLOB_BYTES) == frozenset({17, 18})
    assert ledgers_in_node(path.upload_path("0f"), UPLOAD_BYTES) == frozenset({17, 18})
    assert ledgers_in_node(path.owner_path("0f"), b"") == frozenset()
    for parent in ("/ns/.dlog-blobs", path.names_path, f"{path.names_path}/00", path.uploads_path):
        assert ledgers_in_node(parent, b"") == frozenset()
    assert ledgers_in_node("/ns/orders", b"17") is None
    with pytest.raises(LogMetadataError):
        ledgers_in_node(path.blob_path("a"), b"{")


def test_the_mark_of_a_ledger_names_the_blob_for_the_policy() -> None:
    assert blob_mark("/ns", "a", "0f") == {
        "dlog.namespace": b"/ns",
        "dlog.log": b".blobs/a",
        "dlog.blob": b"0f",
    }
