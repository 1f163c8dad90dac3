"""The second copy of a metadata store: a state of all nodes, and each change after it, in order.

    file     magic, snapshot, change, change, ...
    record   payload bytes u32 | number of the change i64 | digest, 16 bytes | payload
    payload  of a change: nodes; of the snapshot: the digest of the last change in it, 16 bytes, then nodes
    node     path bytes u32 | 1: present, 0: gone | path | if present: value bytes u32 | value | 7 i64

The digest is BLAKE2b of the digest of the change before (of the snapshot: of zeros), the number and the
payload. So a flipped bit, a hole and a record of another sequence end what is read. The database keeps the
number and the digest of its last change, in the same transaction.

Inside: bytes to changes and back, the comparison with the database. Not inside: files (``second_copy``).
Always: any bytes are read without an error; what is read is an unbroken sequence.

Source: our own; docs/storage-format.md 7.9.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from struct import Struct

import attrs

MAGIC = b"DLOGmeta\0\0\0\1"
DIGEST_BYTES = 16
COLUMNS = "value, version, creations, children_count, created_ms, owner, data_change, children_change"
_NO_DIGEST = bytes(DIGEST_BYTES)
_RECORD = Struct(f">Iq{DIGEST_BYTES}s")
_NODE = Struct(">IB")
_VALUE = Struct(">I")
_COUNTERS = Struct(">7q")

Row = tuple[bytes, int, int, int, int, int, int, int]  # the columns of a node


@attrs.frozen
class Change:
    """A change, or the snapshot at the beginning. ``rows``: the nodes after it; None: a node is gone."""

    number: int
    digest: bytes
    end: int  # of its record in the file
    rows: Mapping[str, Row | None]


class CopyVerdict(enum.Enum):
    """The result of ``compare``."""

    SAME = "the copy has the state of the database"
    AHEAD = "the copy has one change more: a process ended between the two writes, or the last commit is lost"
    BEHIND = "the copy lacks changes of the database, or is damaged: it is written again"
    LOST = "the database lacks what the copy has"


def encode_change(number: int, before: bytes, rows: Mapping[str, Row | None]) -> tuple[bytes, bytes]:
    """The record of a change after the one with the digest ``before``, and its digest."""
    return _encode(number, before, _encode_nodes(rows))


def encode_snapshot(number: int, digest: bytes, rows: Mapping[str, Row | None]) -> bytes:
    """The beginning of a file: all nodes after the change with this number and digest."""
    return MAGIC + _encode(number, _NO_DIGEST, digest + _encode_nodes(rows))[0]


def read_changes(data: bytes) -> list[Change]:
    """The snapshot and the changes after it, as far as they are an unbroken sequence."""
    changes: list[Change] = []
    if not data.startswith(MAGIC):
        return changes
    at, before = len(MAGIC), _NO_DIGEST
    while at + _RECORD.size <= len(data):
        size_bytes, number, digest = _RECORD.unpack_from(data, at)
        start = at + _RECORD.size
        payload = data[start : start + size_bytes]
        is_next = not changes or number == changes[-1].number + 1
        if len(payload) < size_bytes or not is_next or _digest(before, number, payload) != digest:
            break
        if not changes:
            digest, payload = payload[:DIGEST_BYTES], payload[DIGEST_BYTES:]
        at, before = start + size_bytes, digest
        changes.append(Change(number, digest, at, _decode_nodes(payload)))
    return changes


def state_at(changes: Sequence[Change], number: int) -> dict[str, Row]:
    """All nodes after the change with this number."""
    rows: dict[str, Row | None] = {}
    for change in changes:
        if change.number <= number:
            rows.update(change.rows)
    return {path: row for path, row in rows.items() if row is not None}


def compare(
    changes: Sequence[Change], number: int, copied: tuple[int, bytes] | None, rows: Mapping[str, Row]
) -> tuple[CopyVerdict, str]:
    """Compare a copy with the database; the verdict, and the evidence.

    Args:
        number: Of the last change of the database.
        copied: Number and digest of the last change that was copied, as the database has them; None if it is
            of a release that made no copy.
        rows: All nodes of the database.
    """
    last = changes[-1].number if changes else -1
    if copied is None or copied[0] < number:
        # A release that makes no copy has written it; or the copy was made, and its place was not noted.
        if copied is None and changes and (last > number or state_at(changes, number) != rows):
            return CopyVerdict.LOST, f"it has no place in the sequence, and the copy is at change {last}"
        return CopyVerdict.BEHIND, "the database was written without a copy"
    if copied[0] > number:
        return CopyVerdict.LOST, f"it is at change {number}, but has noted change {copied[0]}"
    if last < number:
        return CopyVerdict.BEHIND, f"the database is at change {number}, the copy at {last}"
    here = next((one for one in changes if one.number == number), None)
    if here is None:
        return CopyVerdict.LOST, f"it is at change {number}, the copy begins at {changes[0].number}"
    if here.digest != copied[1]:
        return CopyVerdict.LOST, f"its change {number} is another one than that of the copy"
    kept = state_at(changes, number)
    if kept != rows:
        path = min(path for path in kept.keys() | rows.keys() if kept.get(path) != rows.get(path))
        return CopyVerdict.LOST, f"its node {path!r} is damaged or missing, or there by damage"
    if last > number + 1:
        return CopyVerdict.LOST, f"it is at change {number}, the copy at {last}: its last changes are lost"
    return (CopyVerdict.SAME if last == number else CopyVerdict.AHEAD), f"change {number}"


def _digest(before: bytes, number: int, payload: bytes) -> bytes:
    hashed = hashlib.blake2b(before, digest_size=DIGEST_BYTES)
    hashed.update(number.to_bytes(8, "big", signed=True))
    hashed.update(payload)
    return hashed.digest()


def _encode(number: int, before: bytes, payload: bytes) -> tuple[bytes, bytes]:
    digest = _digest(before, number, payload)
    return _RECORD.pack(len(payload), number, digest) + payload, digest


def _encode_nodes(rows: Mapping[str, Row | None]) -> bytes:
    parts: list[bytes] = []
    for path, row in rows.items():
        name = path.encode("utf-8", "surrogatepass")
        parts += (_NODE.pack(len(name), row is not None), name)
        if row is not None:
            parts += (_VALUE.pack(len(row[0])), row[0], _COUNTERS.pack(*row[1:]))
    return b"".join(parts)


def _decode_nodes(payload: bytes) -> dict[str, Row | None]:
    """The nodes of a payload whose digest holds, so that this program wrote it."""
    rows: dict[str, Row | None] = {}
    at = 0
    while at < len(payload):
        size_bytes, is_present = _NODE.unpack_from(payload, at)
        at += _NODE.size
        path = payload[at : at + size_bytes].decode("utf-8", "surrogatepass")
        at += size_bytes
        row: Row | None = None
        if is_present:
            (value_bytes,) = _VALUE.unpack_from(payload, at)
            at += _VALUE.size
            row = (payload[at : at + value_bytes], *_COUNTERS.unpack_from(payload, at + value_bytes))
            at += value_bytes + _COUNTERS.size
        rows[path] = row
    return rows
