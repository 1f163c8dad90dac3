"""Every field of every file of a bookie, and the kinds of damage that a disk can do to it.

Inside: the offsets of the fields, found by parsers that share no code with the engine; the kinds of damage.
Not inside: the reaction of the engine (``damaged_store``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import attrs

SECTOR = 512
_PADDING = -0x100


@attrs.frozen
class Field:
    """One field of a file."""

    file: str  # relative to the store's directory
    kind: str  # type of file; a row of the table
    name: str  # name of the field; a row of the table
    offset: int
    size_bytes: int
    is_length: bool = False  # an absurd value may cause a large allocation


@attrs.frozen
class Damage:
    """One kind of damage to one field."""

    field: Field
    method: str  # flip a bit, zero the field, zero its sector, cut the file there, absurd length
    detail: int = 0  # the bit, the offset of the cut, or the absurd value

    def __str__(self) -> str:
        return f"{self.field.file}: {self.field.name} at {self.field.offset}: {self.method} {self.detail}"

    def apply(self, root: Path) -> None:
        """Damage the file."""
        path = root / self.field.file
        data = bytearray(path.read_bytes())
        start, stop = self.field.offset, self.field.offset + self.field.size_bytes
        match self.method:
            case "flip":
                data[start + self.detail // 8] ^= 1 << self.detail % 8
            case "zero":
                data[start:stop] = bytes(stop - start)
            case "sector":
                first = start // SECTOR * SECTOR
                last = min(first + SECTOR, len(data))
                data[first:last] = bytes(last - first)
            case "cut":
                del data[self.detail :]
            case "absurd":
                data[start:stop] = self.detail.to_bytes(self.field.size_bytes, "big", signed=True)
            case _:
                raise AssertionError(self.method)
        path.write_bytes(data)


def damages_of(field: Field, *, every_bit: bool) -> Iterator[Damage]:
    """All kinds of damage to one field; ``every_bit`` flips each of its bits instead of three."""
    bits = 8 * field.size_bytes
    chosen = range(min(bits, 256)) if every_bit else sorted({0, bits // 2 + 3, bits - 1})
    for bit in chosen:
        yield Damage(field, "flip", bit)
    yield Damage(field, "zero")
    yield Damage(field, "sector")
    yield Damage(field, "cut", field.offset)
    if field.size_bytes > 1:
        yield Damage(field, "cut", field.offset + field.size_bytes // 2)
    if field.is_length:
        most = (1 << 8 * field.size_bytes - 1) - 1
        for value in (most, -1, -most - 1, 16 << 20):
            yield Damage(field, "absurd", value)


# --- journal --------------------------------------------------------------------------------------


def journal_fields(file: str, data: bytes, mark_offset: int) -> Iterator[Field]:
    """Fields of the header, the file trailer, three groups behind the mark and one below it."""

    def field(name: str, offset: int, size_bytes: int, *, is_length: bool = False) -> Field:
        return Field(file, "journal", name, offset, size_bytes, is_length)

    yield field("magic", 0, 4)
    yield field("version", 4, 4)
    yield field("rest of the header", 8, 504)
    yield field("file trailer's padding length", 512, 8, is_length=True)
    yield field("file trailer: magic and version", 520, 8)
    yield field("file trailer: journal id", 528, 8)
    yield field("file trailer: previous file", 536, 16)
    yield field("file trailer: CRC", 552, 4)
    yield field("file trailer: zeros", 556, 4096 - 556)
    groups = list(_groups(data))
    below = [group for group in groups if group[1] <= mark_offset]
    replayed = [group for group in groups if group[0] >= mark_offset]
    chosen = {"replayed group": replayed[:-1][:1] + replayed[:-1][-1:], "last group": replayed[-1:]}
    if below:
        chosen["group below the mark"] = below[-1:]
    for zone, some in chosen.items():
        for start, _ in some:
            yield from _group_fields(file, data, start, zone)
    if groups:
        yield field("zeros after the last group", groups[-1][1], 4096)


def _groups(data: bytes) -> Iterator[tuple[int, int]]:
    start = at = 4096
    while at + 8 <= len(data):
        (length,) = struct.unpack_from(">i", data, at)
        if length == 0:
            return
        if length == _PADDING:
            (size,) = struct.unpack_from(">i", data, at + 4)
            at += 8 + size
            yield start, at
            start = at
        else:
            at += 4 + length


def _group_fields(file: str, data: bytes, start: int, zone: str) -> Iterator[Field]:
    def field(name: str, offset: int, size_bytes: int, *, is_length: bool = False) -> Field:
        return Field(file, "journal", f"{zone}: {name}", offset, size_bytes, is_length)

    at = start
    is_first = True
    while True:
        (length,) = struct.unpack_from(">i", data, at)
        if length == _PADDING:
            (size,) = struct.unpack_from(">i", data, at + 4)
            yield field("padding marker", at, 4)
            yield field("padding length", at + 4, 4, is_length=True)
            yield field("trailer: magic and version", at + 8, 8)
            yield field("trailer: journal id", at + 16, 8)
            yield field("trailer: start", at + 24, 8)
            yield field("trailer: durable below", at + 32, 8)
            yield field("trailer: record count", at + 40, 4, is_length=True)
            yield field("trailer: CRC", at + 44, 4)
            yield field("padding", at + 48, size - 40)
            return
        if is_first:
            yield field("record length", at, 4, is_length=True)
            yield field("record ids", at + 4, 16)
            yield field("record body", at + 20, length - 16)
        is_first = False
        at += 4 + length


# --- entry logs -----------------------------------------------------------------------------------


def entry_log_fields(file: str, data: bytes) -> Iterator[Field]:
    """Fields of the header, the map, and the first, a middle and the last entry."""
    (map_offset,) = struct.unpack_from(">q", data, 8)
    kind = "complete entry log" if map_offset else "open entry log"
    if Path(file).suffix in (".compacting", ".compacted"):
        kind = f"compaction's N.log{'.M' if file.endswith('ed') else ''}{Path(file).suffix}"

    def field(name: str, offset: int, size_bytes: int, *, is_length: bool = False) -> Field:
        return Field(file, kind, name, offset, size_bytes, is_length)

    yield field("magic", 0, 4)
    yield field("version", 4, 4)
    yield field("map offset", 8, 8, is_length=True)
    yield field("ledger count", 16, 4, is_length=True)
    yield field("zeros of the header", 20, 996)
    yield field("CRC of the map", 1016, 4)
    yield field("CRC of the header", 1020, 4)
    records = list(entries_of(data))
    for at, length, _, _ in (records[0], records[len(records) // 2], records[-1]):
        yield field("entry length", at, 4, is_length=True)
        yield field("ledger id", at + 4, 8)
        yield field("entry id", at + 12, 8)
        yield field("LAC, length and digest", at + 20, 20)
        yield field("payload", at + 40, length - 36)
    if map_offset:
        yield field("map: group length", map_offset, 4, is_length=True)
        yield field("map: markers", map_offset + 4, 16)
        yield field("map: count", map_offset + 20, 4, is_length=True)
        yield field("map: ledger id", map_offset + 24, 8)
        yield field("map: ledger's bytes", map_offset + 32, 8)


def entries_of(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Offset of the length field, length, ledger id and entry id of each record."""
    at = 1024
    while at + 20 <= len(data):
        length, ledger_id, entry_id = struct.unpack_from(">iqq", data, at)
        if length <= 0 or ledger_id < 0:
            return
        yield at, length, ledger_id, entry_id
        at += 4 + length


# --- small files -------------------------------------------------------------------------------


def small_file_fields(file: str, data: bytes, kind: str) -> Iterator[Field]:
    """Three parts of a file of a few bytes."""
    if not data:
        return
    third = max(1, len(data) // 3)
    for name, start in (("beginning", 0), ("middle", third), ("end", len(data) - third)):
        yield Field(file, kind, name, start, min(third, len(data) - start))


def mark_fields(file: str) -> Iterator[Field]:
    """Fields of ``lastMark``."""
    yield Field(file, "lastMark", "journal id", 0, 8)
    yield Field(file, "lastMark", "offset", 8, 8)
    yield Field(file, "lastMark", "magic", 16, 4)
    yield Field(file, "lastMark", "CRC", 20, 4)


def page_file_fields(file: str, data: bytes) -> Iterator[Field]:
    """Fields of a ledger's file of the page index: its header, and slots of its page."""

    def field(name: str, offset: int, size_bytes: int, *, is_length: bool = False) -> Field:
        return Field(file, "index: .idx file", name, offset, size_bytes, is_length)

    (key_bytes,) = struct.unpack_from(">i", data, 8)
    yield field("magic", 0, 4)
    yield field("version", 4, 4)
    yield field("key length", 8, 4, is_length=True)
    yield field("master key", 12, key_bytes)
    yield field("state", 12 + key_bytes, 4)
    yield field("rest of the header", 16 + key_bytes, 1024 - 16 - key_bytes)
    for slot in (0, 7, 15):
        yield field("location", 1024 + 8 * slot, 8)
    if len(data) > 1024 + 128:
        yield field("rest of the page", 1024 + 128, len(data) - 1024 - 128)


def database_fields(file: str, data: bytes, pieces: int) -> Iterator[Field]:
    """Pieces, from beginning to end, of a file of the index's database, whose layout is unknown here."""
    name = Path(file).name
    kind = next(
        (
            kind
            for start, kind in (
                ("MANIFEST", "index: manifest"),
                ("CURRENT", "index: CURRENT"),
                ("OPTIONS", "index: options"),
                ("IDENTITY", "index: identity"),
                ("LOG", "index: text log"),
                ("LOCK", "index: lock"),
                ("synced", "index: count of syncs"),
            )
            if name.startswith(start)
        ),
        f"index: {Path(name).suffix[1:]} file",
    )
    if not data:
        return
    size = max(1, min(8, len(data)))
    for number in range(pieces):
        offset = (len(data) - size) * number // max(1, pieces - 1)
        yield Field(file, kind, "anywhere", offset, size)
