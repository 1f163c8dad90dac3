"""The bytes of a backup: chunks of entries, and manifests, each of which names all that a state consists of.

    destination                         a text of JSON: format, version, instance_id, path
    manifests/<cut ms>                  a whole manifest
    manifests/<cut ms>-<base cut ms>    a manifest that has only what differs from a whole one
    ledgers/<id>/<first>-<last>-<hash>  a chunk; <hash>: the first 16 digits of its SHA-256

    chunk     "DLOGchk1" | ledger id i64 | first i64 | last i64 | entries u32 | entry, ...
    entry     size u32 | the stored bytes of an entry (``ledger.digest``), which begin with its ids
    manifest  "DLOGman1" | SHA-256 of the rest, 32 bytes | JSON, compressed by zlib

Numbers are big-endian. The JSON of a manifest::

    version 1 | release | instance_id | path | begun_ms | cut_ms | base: null or the cut_ms of a whole one
    logs     [names], if these only were backed up; absent: the whole namespace
    nodes    {path below the namespace: Base64, or null if the node is gone}
    ledgers  {id: null if it is gone, or {identity, metadata: Base64, last, length_bytes, closed,
             missing: [ids], kept: chunks that are those of the base,
             chunks: [[first, last, bytes, SHA-256], ...]}}
    lost     [ids of ledgers that segments name and the cluster does not have]

Inside: these bytes and the values that they stand for. Not inside: where they are kept (``destination``).
Always: any bytes give a value or a ``BackupDamagedError``; the chunks of a ledger follow each other without a
hole from entry 0 to ``last``; an entry in ``missing`` is in no chunk.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

import attrs

from dlog.backup.errors import BackupDamagedError
from ledger.digest import ENTRY_HEADER, ENTRY_HEADER_BYTES

VERSION = 1
DESTINATION_NAME = "dlog-backup.json"
CHUNK_MAGIC, MANIFEST_MAGIC = b"DLOGchk1", b"DLOGman1"
MANIFESTS, LEDGERS = "manifests/", "ledgers/"
MANIFEST_BYTES_MAX = 1 << 30  # of the JSON, for a manifest that was made to fill the memory
_FORMAT = "dlog-backup"
_CHUNK = Struct(">8sqqqI")
_SIZE = Struct(">I")
_IDS = Struct(">qq")
_HASH_BYTES = 32
_HASH_DIGITS = 16  # of a chunk's name
_NAME = re.compile(r"manifests/([0-9]{13})(?:-([0-9]{13}))?", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@attrs.frozen
class EntryChunk:
    """A run of entries of a ledger, as one object."""

    first: int
    last: int
    size_bytes: int
    sha256: str  # hexadecimal

    def name(self, ledger_id: int) -> str:
        """The name of its object."""
        return f"{LEDGERS}{ledger_id}/{self.first}-{self.last}-{self.sha256[:_HASH_DIGITS]}"


@attrs.frozen(kw_only=True)
class LedgerCopy:
    """A ledger as far as a backup has it."""

    identity: str  # another ledger of the same id has another one
    metadata: bytes = attrs.field(repr=False)  # of its node, which holds its password
    last: int  # its last entry in the backup; -1: none
    length_bytes: int  # payload bytes of the entries up to ``last``
    is_closed: bool  # the ledger ends at ``last``
    missing: tuple[int, ...] = ()  # entries that no bookie had
    chunks: tuple[EntryChunk, ...] = attrs.field(default=(), repr=False)


@attrs.frozen(kw_only=True)
class BackupManifest:
    """The state of a namespace at a moment."""

    instance_id: str  # of the ledgers' cluster or directory
    path: str  # of the namespace's node
    release: str
    begun_ms: int  # before the nodes were read; epoch milliseconds, as all times here
    cut_ms: int  # after the end of the last open ledger was read
    nodes: Mapping[str, bytes] = attrs.field(repr=False)  # by path below the namespace
    ledgers: Mapping[int, LedgerCopy] = attrs.field(repr=False)
    lost: tuple[int, ...] = ()
    logs: tuple[str, ...] | None = None  # that were asked for; None: the whole namespace

    def chunk_names(self) -> set[str]:
        """The objects that the manifest needs."""
        return {chunk.name(each) for each, copy in self.ledgers.items() for chunk in copy.chunks}


@attrs.frozen(order=True)
class ManifestName:
    """A manifest, by the name of its object."""

    cut_ms: int
    base_ms: int | None = attrs.field(default=None, order=False)  # None: it is whole

    @property
    def text(self) -> str:
        """The name of its object."""
        base = "" if self.base_ms is None else f"-{self.base_ms:013d}"
        return f"{MANIFESTS}{self.cut_ms:013d}{base}"

    @classmethod
    def of(cls, name: str) -> ManifestName | None:
        """The manifest of an object; None if the object is none."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found[1]), None if found[2] is None else int(found[2]))


def encode_destination(instance_id: str, path: str) -> bytes:
    """The object that says whose backups are at a destination."""
    document = {"format": _FORMAT, "version": VERSION, "instance_id": instance_id, "path": path}
    return json.dumps(document, indent=1).encode() + b"\n"


def decode_destination(data: bytes) -> tuple[str, str]:
    """The instance id and the path of the namespace.

    Raises:
        BackupDamagedError: It does not parse, or is of another version.
    """
    document = _document(DESTINATION_NAME, data)
    if document.get("format") != _FORMAT or document.get("version") != VERSION:
        raise BackupDamagedError(DESTINATION_NAME, f"it is not of version {VERSION} of this format")
    instance_id, path = document.get("instance_id"), document.get("path")
    if not isinstance(instance_id, str) or not isinstance(path, str):
        raise BackupDamagedError(DESTINATION_NAME, "it names no namespace")
    return instance_id, path


def encode_chunk(ledger_id: int, first: int, last: int, bodies: Sequence[bytes]) -> tuple[bytes, EntryChunk]:
    """The bytes of a chunk of the entries from ``first`` to ``last``, of which some may be missing."""
    parts = [_CHUNK.pack(CHUNK_MAGIC, ledger_id, first, last, len(bodies))]
    for body in bodies:
        parts += (_SIZE.pack(len(body)), body)
    data = b"".join(parts)
    return data, EntryChunk(first, last, len(data), hashlib.sha256(data).hexdigest())


def chunk_bytes(bodies: Sequence[bytes]) -> int:
    """The size of a chunk of these entries."""
    return _CHUNK.size + sum(_SIZE.size + len(body) for body in bodies)


def decode_chunk(ledger_id: int, chunk: EntryChunk, data: bytes) -> list[bytes]:
    """The stored bytes of a chunk's entries, ascending by their ids.

    Raises:
        BackupDamagedError: The bytes are not those that the manifest names.
    """
    name = chunk.name(ledger_id)
    if len(data) != chunk.size_bytes:
        raise BackupDamagedError(name, f"it has {len(data)} bytes, not {chunk.size_bytes}")
    if hashlib.sha256(data).hexdigest() != chunk.sha256:
        raise BackupDamagedError(name, "its SHA-256 is not that in the manifest")
    if len(data) < _CHUNK.size or _CHUNK.unpack_from(data)[:4] != (
        CHUNK_MAGIC,
        ledger_id,
        chunk.first,
        chunk.last,
    ):
        raise BackupDamagedError(name, "it is no chunk of these entries")
    bodies: list[bytes] = []
    at, next_id = _CHUNK.size, chunk.first
    for _ in range(_CHUNK.unpack_from(data)[4]):
        if at + _SIZE.size > len(data):
            raise BackupDamagedError(name, "it is cut off")
        (size_bytes,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        body = data[at : at + size_bytes]
        at += size_bytes
        if len(body) < max(size_bytes, ENTRY_HEADER_BYTES):
            raise BackupDamagedError(name, "it is cut off")
        found_id, entry_id = _IDS.unpack_from(body)
        if found_id != ledger_id or not next_id <= entry_id <= chunk.last:
            raise BackupDamagedError(name, f"entry {entry_id} of ledger {found_id} is out of its place")
        next_id = entry_id + 1
        bodies.append(body)
    if at != len(data):
        raise BackupDamagedError(name, f"{len(data) - at} bytes follow its last entry")
    return bodies


def entry_id_of(body: bytes) -> int:
    """The entry id in the stored bytes of an entry."""
    return int(ENTRY_HEADER.unpack_from(body)[1])


def length_of(body: bytes) -> int:
    """The payload bytes of a ledger up to and including this entry."""
    return int(ENTRY_HEADER.unpack_from(body)[3])


def encode_manifest(
    manifest: BackupManifest, base: BackupManifest | None = None
) -> tuple[ManifestName, bytes]:
    """The name and the bytes of a manifest; with a ``base``, a whole one, only of what differs from it."""
    nodes, ledgers = ({}, {}) if base is None else (base.nodes, base.ledgers)
    document = {
        "version": VERSION,
        "release": manifest.release,
        "instance_id": manifest.instance_id,
        "path": manifest.path,
        "begun_ms": manifest.begun_ms,
        "cut_ms": manifest.cut_ms,
        "base": None if base is None else base.cut_ms,
        "nodes": {
            **{
                path: base64.b64encode(value).decode()
                for path, value in sorted(manifest.nodes.items())
                if nodes.get(path) != value
            },
            **{path: None for path in sorted(nodes) if path not in manifest.nodes},
        },
        "ledgers": {
            **{
                str(each): _encode_ledger(copy, ledgers.get(each))
                for each, copy in sorted(manifest.ledgers.items())
                if ledgers.get(each) != copy
            },
            **{str(each): None for each in sorted(ledgers) if each not in manifest.ledgers},
        },
        "lost": list(manifest.lost),
        **({} if manifest.logs is None else {"logs": list(manifest.logs)}),
    }
    body = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 6)
    name = ManifestName(manifest.cut_ms, None if base is None else base.cut_ms)
    return name, MANIFEST_MAGIC + hashlib.sha256(body).digest() + body


def decode_manifest(name: ManifestName, data: bytes, base: BackupManifest | None = None) -> BackupManifest:
    """The manifest in an object.

    Args:
        base: The whole manifest that ``name`` refers to.

    Raises:
        BackupDamagedError
    """
    start = len(MANIFEST_MAGIC) + _HASH_BYTES
    body = data[start:]
    if not data.startswith(MANIFEST_MAGIC):
        raise BackupDamagedError(name.text, "it is no manifest of version 1")
    if hashlib.sha256(body).digest() != data[len(MANIFEST_MAGIC) : start]:
        raise BackupDamagedError(name.text, "its SHA-256 does not match, so a part was changed or is missing")
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(body, MANIFEST_BYTES_MAX)
    except zlib.error as exc:
        raise BackupDamagedError(name.text, f"it cannot be decompressed: {exc}") from None
    if not inflate.eof:
        raise BackupDamagedError(name.text, f"it has more than {MANIFEST_BYTES_MAX:,} bytes")
    document = _document(name.text, text)
    try:
        manifest = _decode_document(document, base)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
        raise BackupDamagedError(
            name.text, f"it does not have the form of version {VERSION}: {exc}"
        ) from None
    if (manifest.cut_ms, document["base"]) != (name.cut_ms, name.base_ms):
        raise BackupDamagedError(name.text, "it has the name of another one")
    return manifest


def _encode_ledger(copy: LedgerCopy, base: LedgerCopy | None) -> dict[str, Any]:
    kept = 0
    if base is not None:
        while kept < min(len(base.chunks), len(copy.chunks)) and base.chunks[kept] == copy.chunks[kept]:
            kept += 1
    return {
        "identity": copy.identity,
        "metadata": base64.b64encode(copy.metadata).decode(),
        "last": copy.last,
        "length_bytes": copy.length_bytes,
        "closed": copy.is_closed,
        "missing": list(copy.missing),
        "kept": kept,
        "chunks": [[each.first, each.last, each.size_bytes, each.sha256] for each in copy.chunks[kept:]],
    }


def _decode_document(document: dict[str, Any], base: BackupManifest | None) -> BackupManifest:
    if document["version"] != VERSION:
        raise ValueError(f"its version is {document['version']!r}")
    if (document["base"] is None) is not (base is None) or (
        base is not None and document["base"] != base.cut_ms
    ):
        raise ValueError("its base is another one")
    nodes = dict(base.nodes) if base is not None else {}
    for path, value in document["nodes"].items():
        if value is None:
            del nodes[path]
        else:
            nodes[path] = _bytes(value)
    ledgers = dict(base.ledgers) if base is not None else {}
    for text, fields in document["ledgers"].items():
        ledger_id = _integer(int(text))
        if fields is None:
            del ledgers[ledger_id]
        else:
            ledgers[ledger_id] = _decode_ledger(fields, ledgers.get(ledger_id))
    return BackupManifest(
        instance_id=_text(document["instance_id"]),
        path=_text(document["path"]),
        release=_text(document["release"]),
        begun_ms=_integer(document["begun_ms"]),
        cut_ms=_integer(document["cut_ms"]),
        nodes=nodes,
        ledgers=ledgers,
        lost=tuple(map(_integer, document["lost"])),
        logs=_names(document["logs"]) if "logs" in document else None,
    )


def _decode_ledger(fields: dict[str, Any], base: LedgerCopy | None) -> LedgerCopy:
    kept = _integer(fields["kept"])
    known = () if base is None else base.chunks
    if not 0 <= kept <= len(known):
        raise ValueError(f"{kept} chunks of the base, which has {len(known)}")
    chunks = [*known[:kept]]
    for first, last, size_bytes, sha256 in fields["chunks"]:
        if not _SHA256.fullmatch(_text(sha256)):
            raise ValueError(f"{sha256!r} is no SHA-256")
        chunks.append(EntryChunk(_integer(first), _integer(last), _integer(size_bytes), sha256))
    last = _integer(fields["last"])
    next_id = 0
    for chunk in chunks:
        if chunk.first != next_id or chunk.last < chunk.first:
            raise ValueError(f"a chunk of the entries {chunk.first} to {chunk.last} where {next_id} follows")
        next_id = chunk.last + 1
    if last != next_id - 1:
        raise ValueError(f"its chunks end at entry {next_id - 1}, and not at {last}")
    if type(fields["closed"]) is not bool:
        raise ValueError("closed is neither true nor false")
    return LedgerCopy(
        identity=_text(fields["identity"]),
        metadata=_bytes(fields["metadata"]),
        last=last,
        length_bytes=_integer(fields["length_bytes"]),
        is_closed=fields["closed"],
        missing=tuple(map(_integer, fields["missing"])),
        chunks=tuple(chunks),
    )


def _document(name: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise BackupDamagedError(name, f"it is no JSON: {exc}") from None
    if not isinstance(document, dict):
        raise BackupDamagedError(name, "it is no JSON object")
    return document


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list of names")
    return tuple(map(_text, value))


def _integer(value: Any) -> int:
    if type(value) is not int or not -1 <= value < 2**63:
        raise ValueError(f"{value!r} is no such number")
    return value


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as exc:
        raise ValueError(f"not Base64: {exc}") from None
