"""Entry logs on disk: names, header, records, the map of ledgers.

A file is ``<id in hex>.log``. All integers are big-endian and signed.

offset  size  header (1024 bytes)
     0     4  BKLO
     4     4  version            1; version 0 has no map
     8     8  map offset         0 until the log is complete
    16     4  ledgers in the map
    20   996  zero
  1016     4  CRC32C of the map  ours; Apache writes zero and ignores it
  1020     4  CRC32C of 0..1019  ours, likewise

from 1024: ``length i32``, entry bytes (ledger id, entry id, ...), back to back; then the map in groups:

     0     4  length of the rest of the group
     4     8  -1
    12     8  -2
    20     4  count, at most 10,000
    24  16*n  ledger id, bytes of that ledger in this log with 4 for each entry's length

A location is ``log id << 32 | offset of the entry's first byte`` (after its length). 0 means "none".

Crash rules. A read uses only locations from a synced index, and compares the ids. If the header has no map,
or the map is invalid, the log is scanned. A scan reports bytes that it cannot parse; such a log is never
deleted.

Source: DefaultEntryLogger.java, EntryLogManagerBase.java; direct logs: DIR/Header.java, LogReaderScan.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from struct import Struct

import attrs
from crc32c import crc32c

from bookie.errors import FormatError
from bookie.limits import RECORD_BYTES_MAX

HEADER_BYTES = 1024
OFFSET_MAX = 2**31 - 1  # offsets in a location have 31 bits
RECORD_PREFIX = Struct(">iqq")  # length, ledger id, entry id
LENGTH_BYTES = 4
ENTRY_BYTES_MIN = 16

_HEADER = Struct(">4siqi")
_MAGIC = b"BKLO"
_VERSION = 1
_CRC = Struct(">I")
_MAP_CRC_OFFSET = 1016
_HEADER_CRC_OFFSET = 1020
_GROUP = Struct(">iqqi")
_MAP_ENTRY = Struct(">qq")
_GROUP_COUNT_MAX = 10_000
_DIRECT_BLOCK_BYTES = 4096
_DIRECT_FILLER = 0xF0
_SCAN_BYTES = 1 << 20

_NAME = re.compile(r"([0-9a-f]{1,8})\.log")

Read = Callable[[int, int], bytes]  # (size, offset) -> bytes; shorter only at the end of the file


def entry_log_name(log_id: int) -> str:
    """The log's file name."""
    return f"{log_id:x}.log"


def entry_log_id_of(name: str) -> int | None:
    """The id in a file's name; None if the file is no entry log."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def split_location(location: int) -> tuple[int, int]:
    """Log id and offset of the entry's first byte."""
    return location >> 32, location & 0xFFFF_FFFF


def encode_header(map_offset: int = 0, ledger_count: int = 0, map_crc: int = 0) -> bytes:
    """The header of a log; without arguments, of a log that is being written."""
    header = _HEADER.pack(_MAGIC, _VERSION, map_offset, ledger_count).ljust(_MAP_CRC_OFFSET, b"\0")
    header += _CRC.pack(map_crc)
    return header + _CRC.pack(crc32c(header))


def encode_map(ledger_bytes: Mapping[int, int]) -> bytes:
    """The map of a complete log: bytes of each ledger, in groups."""
    items = list(ledger_bytes.items())
    out = bytearray()
    for start in range(0, len(items), _GROUP_COUNT_MAX):
        group = items[start : start + _GROUP_COUNT_MAX]
        out += _GROUP.pack(_GROUP.size - 4 + _MAP_ENTRY.size * len(group), -1, -2, len(group))
        for ledger_id, size_bytes in group:
            out += _MAP_ENTRY.pack(ledger_id, size_bytes)
    return bytes(out)


@attrs.frozen
class LogHeader:
    """The fields of a log's header; all are 0 until the log is complete."""

    map_offset: int  # 0: the log was never completed
    ledger_count: int
    map_crc: int  # 0: not ours


def decode_header(header: bytes) -> LogHeader | None:
    """Decode a header; None if it is damaged or cut short. The entries after it may still be sound.

    ``FormatError`` if the file is no entry log.
    """
    if len(header) < HEADER_BYTES:
        return None
    magic, version, offset, ledger_count = _HEADER.unpack_from(header)
    if magic != _MAGIC:
        raise FormatError(f"the file begins with {magic!r}, not {_MAGIC!r}")
    (header_crc,) = _CRC.unpack_from(header, _HEADER_CRC_OFFSET)
    if header_crc and header_crc != crc32c(header[:_HEADER_CRC_OFFSET]):
        return None
    if version < 1:
        return LogHeader(0, 0, 0)
    return LogHeader(offset, ledger_count, _CRC.unpack_from(header, _MAP_CRC_OFFSET)[0])


def decode_map(header: bytes, read: Read, file_bytes: int) -> dict[int, int] | None:
    """Bytes of each ledger from a complete log's valid map; None if the caller must scan the log.

    Reads one group at a time, so a damaged count cannot cause a large read. ``FormatError`` as
    ``decode_header``.
    """
    head = decode_header(header)
    # An empty map does not prove that the log has no entries (apache/bookkeeper#4607).
    if head is None or not HEADER_BYTES <= head.map_offset < file_bytes or head.ledger_count <= 0:
        return None
    ledgers: dict[int, int] = {}
    found_crc = 0
    at = head.map_offset
    while len(ledgers) < head.ledger_count:
        group = read(_GROUP.size, at)
        if len(group) < _GROUP.size:
            return None
        length, first_mark, second_mark, count = _GROUP.unpack(group)
        if (first_mark, second_mark) != (-1, -2) or not 0 < count <= _GROUP_COUNT_MAX:
            return None
        size = _MAP_ENTRY.size * count
        items = read(size, at + _GROUP.size)
        if length != _GROUP.size - 4 + size or len(items) < size:
            return None
        ledgers.update(_MAP_ENTRY.iter_unpack(items))
        found_crc = crc32c(items, crc32c(group, found_crc))
        at += _GROUP.size + size
    if head.map_crc and (head.map_crc != found_crc or at != file_bytes):
        return None
    return ledgers if len(ledgers) == head.ledger_count else None


@attrs.frozen
class ScannedEntry:
    """An entry found by a scan."""

    ledger_id: int
    entry_id: int
    offset: int  # of its first byte
    size_bytes: int


Record = tuple[int, int, int, int]  # ledger id, entry id, offset of the first byte, size: a ``ScannedEntry``


@attrs.frozen
class ScannedPiece:
    """A part of a log: complete records and the bytes that contain them."""

    start: int  # offset of ``data`` in the file
    data: bytes
    records: list[Record]


class EntryLogScan:
    """Reads the records of a log, a piece at a time.

    Afterwards ``damage`` describes the bytes that could not be parsed; None if there are none. ``torn_at`` is
    the offset of an incomplete last record, or of zeros up to the end of the file. A power cut leaves such an
    end in a log that is being written, and some damage looks the same.
    """

    def __init__(
        self, read: Read, file_bytes: int, *, map_offset: int = 0, piece_bytes: int = _SCAN_BYTES
    ) -> None:
        """``map_offset``: the offset where the records must end; 0: unknown."""
        self._read = read
        self._stop = map_offset or file_bytes
        self._is_stop_known = map_offset > 0
        self._piece_bytes = piece_bytes
        self.position = HEADER_BYTES
        self.damage: str | None = None
        self.torn_at: int | None = None

    def entries(self) -> Iterator[ScannedEntry]:
        """All entries up to the end of the records or to damage."""
        while (piece := self.step()) is not None:
            for record in piece.records:
                yield ScannedEntry(*record)

    def step(self) -> ScannedPiece | None:
        """The next records, at least one; None at the end and at damage, and on each later call."""
        while self.damage is None and self.torn_at is None and self.position < self._stop:
            start = self.position
            wanted = min(self._piece_bytes, self._stop - start)
            data = self._read(wanted, start)
            if len(data) < wanted:
                self.damage = f"the file ends at offset {start + len(data)}, not at {self._stop}"
                return None
            records = self._parse(data, start)
            if not records and self.position == start and self.damage is None and self.torn_at is None:
                # The record is longer than a piece; ``_parse`` has checked its length.
                data = self._read(LENGTH_BYTES + RECORD_PREFIX.unpack_from(data)[0], start)
                records = self._parse(data, start)
                if self.position == start:
                    self.damage = f"the file ends at offset {start + len(data)}, not at {self._stop}"
            if records:
                return ScannedPiece(start, data, records)
        return None

    def _parse(self, data: bytes, start: int) -> list[Record]:
        """The complete records in ``data``; moves ``position`` after them."""
        records: list[Record] = []
        found, unpack = records.append, RECORD_PREFIX.unpack_from
        at, end = 0, len(data)
        last = end - RECORD_PREFIX.size
        while at <= last:
            length, ledger_id, entry_id = unpack(data, at)
            stop = at + LENGTH_BYTES + length
            if ENTRY_BYTES_MIN <= length <= RECORD_BYTES_MAX:
                if stop > end:
                    break
                if ledger_id >= 0 and entry_id >= 0:
                    found((ledger_id, entry_id, start + at + LENGTH_BYTES, length))
                elif ledger_id != -1:  # -1: a group of the map, or a direct log's filler
                    self.damage = f"ids {ledger_id}, {entry_id} at offset {start + at}"
                    break
                at = stop
            elif length < 0 and (after := self._after_filler(start + at)):
                self.position = after
                return records
            else:
                self.position = start + at
                if length == 0 and self._is_zero_from(self.position):
                    self._tear(self.position)
                else:
                    self.damage = f"length {length} at offset {self.position}"
                return records
        self.position = start + at
        if self.damage is None and at < end:
            needed = LENGTH_BYTES + unpack(data, at)[0] if at <= last else RECORD_PREFIX.size
            if self.position + needed > self._stop:
                self._tear(self.position)
        return records

    def _tear(self, offset: int) -> None:
        if self._is_stop_known:
            self.damage = f"the records end at offset {offset}, not at {self._stop}, where the map begins"
        else:
            self.torn_at = offset

    def _after_filler(self, offset: int) -> int | None:
        # Apache's direct logs fill the rest of a block with bytes that decode as a negative length.
        next_block = (offset // _DIRECT_BLOCK_BYTES + 1) * _DIRECT_BLOCK_BYTES
        if set(self._read(next_block - offset, offset)) == {_DIRECT_FILLER}:
            return min(next_block, self._stop)
        return None

    def _is_zero_from(self, at: int) -> bool:
        while at < self._stop and (chunk := self._read(min(_SCAN_BYTES, self._stop - at), at)):
            if any(chunk):
                return False
            at += len(chunk)
        return True
