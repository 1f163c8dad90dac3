"""The nodes of the blobs of a namespace: each blob, and each upload that is not finished or not deleted yet.

    <namespace>/.dlog-blobs/names/<2 hex digits>/<name>   a blob: its pieces, each a ledger
    <namespace>/.dlog-blobs/uploads/<id>                  ledgers of no blob: being written, or to be deleted
    <namespace>/.dlog-blobs/owners/<id>                   ephemeral: the program that writes the upload lives

The digits are a checksum of the name, so that no list of children becomes too long. The name is
percent-encoded. The data are JSON::

    {"version": 1, "id": "6f1c…", "size": 7, "sha256": "e3b0…", "entry_bytes": 262144, "created_ms": 1764…,
     "content_type": "", "labels": {}, "pieces": [[17, 7]]}
    {"version": 1, "id": "6f1c…", "name": "a", "state": "writing", "ledgers": [17]}

Inside: values, JSON, paths, the mark of a blob's ledgers. Not inside: transactions (``dlog.blobs``).
Always: a ledger is in one of these nodes from its creation to its deletion, and in one only; no ledger of a
blob is in a blob of another id.

Source: our own; docs/blobs.md.
"""

from __future__ import annotations

import enum
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

import attrs

from ledger.metadata_store.store import MetadataStore
from ledger.policy import LogMark
from namespace.errors import LogMetadataError

BLOBS_NODE = ".dlog-blobs"
RIGHTS_PREFIX = ".blobs/"  # before the name of a blob in the "logs" of a policy; no log begins with a dot
BLOB_KEY = "dlog.blob"  # of the custom metadata of a ledger: the id of its blob
VERSION = 1
NAME_BYTES_MAX = 500
_ID = re.compile("[0-9a-f]{32}")
_SHA256 = re.compile("[0-9a-f]{64}")


@attrs.frozen
class BlobPiece:
    """A part of a blob's content, in a ledger of its own."""

    ledger_id: int
    size_bytes: int


@attrs.frozen(kw_only=True)
class Blob:
    """A blob as it was put: the facts about its content, and where the content is."""

    name: str
    blob_id: str
    """Another one for each content that was put, also under the same name."""
    size_bytes: int
    sha256: str
    """Of the whole content, in hexadecimal digits, as the command ``sha256sum`` prints it."""
    content_type: str
    """What the program that put it said, such as ``image/png``; may be empty."""
    labels: Mapping[str, str] = attrs.field(hash=False)
    created_ms: int
    """When it was put, by the clock of that program, in epoch milliseconds."""
    entry_bytes: int = attrs.field(repr=False)
    """Each entry of a piece has this many bytes; the last one of a piece may have fewer."""
    pieces: tuple[BlobPiece, ...] = attrs.field(repr=False)


class UploadState(enum.Enum):
    """The fate of the ledgers of an upload. The value is the stored text."""

    WRITING = "writing"  # its owner may make a blob of them
    GARBAGE = "garbage"  # they are deleted; for good


@attrs.frozen(kw_only=True)
class Upload:
    """Ledgers that are in no blob: not yet, or not any more."""

    blob_id: str
    name: str
    state: UploadState
    ledger_ids: tuple[int, ...] = ()


def encode_blob(blob: Blob) -> bytes:
    """The data of a blob's node. Its name is that of the node."""
    fields = {
        "version": VERSION,
        "id": blob.blob_id,
        "size": blob.size_bytes,
        "sha256": blob.sha256,
        "entry_bytes": blob.entry_bytes,
        "created_ms": blob.created_ms,
        "content_type": blob.content_type,
        "labels": dict(blob.labels),
        "pieces": [[piece.ledger_id, piece.size_bytes] for piece in blob.pieces],
    }
    return json.dumps(fields).encode()


def decode_blob(name: str, data: bytes) -> Blob:
    """The blob of a node.

    Raises:
        LogMetadataError: The data do not parse.
    """
    fields = _fields(f"blob {name!r}", data)
    try:
        blob = Blob(
            name=name,
            blob_id=_matching(_ID, fields["id"]),
            size_bytes=_number(fields["size"]),
            sha256=_matching(_SHA256, fields["sha256"]),
            entry_bytes=_number(fields["entry_bytes"]),
            created_ms=_number(fields["created_ms"]),
            content_type=_text(fields["content_type"]),
            labels={_text(key): _text(value) for key, value in fields["labels"].items()},
            pieces=tuple(BlobPiece(_number(one), _number(size)) for one, size in fields["pieces"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise _damaged(f"blob {name!r}", exc) from None
    if blob.entry_bytes < 1 or sum(piece.size_bytes for piece in blob.pieces) != blob.size_bytes:
        raise _damaged(f"blob {name!r}", "the sizes of its pieces are not its size")
    return blob


def encode_upload(upload: Upload) -> bytes:
    """The data of an upload's node."""
    fields = {
        "version": VERSION,
        "id": upload.blob_id,
        "name": upload.name,
        "state": upload.state.value,
        "ledgers": list(upload.ledger_ids),
    }
    return json.dumps(fields).encode()


def decode_upload(data: bytes) -> Upload:
    """The upload of a node.

    Raises:
        LogMetadataError: The data do not parse.
    """
    fields = _fields("an upload", data)
    try:
        return Upload(
            blob_id=_matching(_ID, fields["id"]),
            name=_text(fields["name"]),
            state=UploadState(fields["state"]),
            ledger_ids=tuple(map(_number, fields["ledgers"])),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise _damaged("an upload", exc) from None


def _fields(what: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise _damaged(what, exc) from None
    if not isinstance(fields, dict):
        raise _damaged(what, "it is no object")
    if fields.get("version") != VERSION:
        raise _damaged(what, f"its version is {fields.get('version')!r}, and this release knows {VERSION}")
    return fields


def _damaged(what: str, reason: object) -> LogMetadataError:
    return LogMetadataError(f"{what}: its node does not parse: {reason!s:.200}")


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.40} is no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not pattern.fullmatch(_text(value)):
        raise ValueError(f"{value!r:.80} has not the form {pattern.pattern}")
    return _text(value)


def blob_mark(namespace_path: str, name: str, blob_id: str) -> dict[str, bytes]:
    """The custom metadata of a blob's ledgers. Bookies obey the policy by the first two pairs."""
    return LogMark(namespace_path, RIGHTS_PREFIX + name).custom | {BLOB_KEY: blob_id.encode()}


def ledgers_in_node(path: str, data: bytes) -> frozenset[int] | None:
    """The ledgers that a node of blobs names; None if it is no node of blobs.

    Raises:
        LogMetadataError: The data do not parse, so the ledgers are not known.
    """
    _, is_blobs, rest = path.partition(f"/{BLOBS_NODE}/")
    kind, *names = rest.split("/")
    match is_blobs, kind, names:
        case "", _, _:
            return frozenset() if path.endswith(f"/{BLOBS_NODE}") else None
        case _, "names", [_, name]:
            return frozenset(piece.ledger_id for piece in decode_blob(unquote(name), data).pieces)
        case _, "uploads", [_]:
            return frozenset(decode_upload(data).ledger_ids)
    return frozenset()


@attrs.frozen
class BlobNodes:
    """The blobs of a namespace as their nodes.

    Args:
        store: That has the nodes.
        namespace_path: Of the namespace's node.
    """

    store: MetadataStore = attrs.field(eq=False, repr=False)
    namespace_path: str

    @property
    def names_path(self) -> str:
        """The parent of the groups of blobs."""
        return f"{self.namespace_path}/{BLOBS_NODE}/names"

    @property
    def uploads_path(self) -> str:
        """The parent of the uploads."""
        return f"{self.namespace_path}/{BLOBS_NODE}/uploads"

    @property
    def owners_path(self) -> str:
        """The parent of the owners of uploads."""
        return f"{self.namespace_path}/{BLOBS_NODE}/owners"

    def blob_path(self, name: str) -> str:
        """A blob."""
        return f"{self.names_path}/{zlib.crc32(name.encode()) & 0xFF:02x}/{quote(name, safe='')}"

    def upload_path(self, blob_id: str) -> str:
        """An upload."""
        return f"{self.uploads_path}/{blob_id}"

    def owner_path(self, blob_id: str) -> str:
        """The owner of an upload; ephemeral."""
        return f"{self.owners_path}/{blob_id}"
