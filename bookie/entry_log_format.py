"""Entry logs on disk: names, header, records, the map of ledgers.

A file is ``<id in hex>.log``. All integers are big-endian and signed.

offset  size  header (1024 bytes)
     0     4  BKLO
     4     4  version            1; version 0 has no map
     8     8  map offset         0 until the log is complete
    16     4  ledgers in the map
    20   996  zero
  1016     4  CRC32C of the map  ours; Apache leaves zero and does not look
  1020     4  CRC32C of 0..1019  ours, likewise

from 1024: ``length i32``, entry bytes (ledger id, entry id, ...), back to back; then the map in groups:

     0     4  length of the rest of the group
     4     8  -1
    12     8  -2
    20     4  count, at most 10,000
    24  16*n  ledger id, bytes of that ledger in this log with 4 for each entry's length

A location is ``log id << 32 | offset of the entry's first byte`` (behind its length). 0 means "none".

Crash rules. Only what a synced index names is ever read, and ids are compared on each read. A header
without a map, or a map that does not hold, means: scan. A scan that meets what it cannot parse says so,
and nobody deletes that log.

Source: DefaultEntryLogger.java, EntryLogManagerBase.java; direct logs: DIR/Header.java, LogReaderScan.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from struct import Struct

import attrs
from crc32c import crc32c

from bookie.errors import FormatError
from bookie.journal_format import RECORD_BYTES_MAX

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

Read = Callable[[int, int], bytes]  # size, offset: shorter only at the end of the file


def entry_log_name(log_id: int) -> str:
    """The log's file name."""
    return f"{log_id:x}.log"


def entry_log_id_of(name: str) -> int | None:
    """The id in a file's name; None if it is no entry log."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def split_location(location: int) -> tuple[int, int]:
    """Log id and offset of the entry's first byte."""
    return location >> 32, location & 0xFFFF_FFFF


def encode_header(map_offset: int = 0, ledger_count: int = 0, map_crc: int = 0) -> bytes:
    """The header of a log; without arguments of one that is still being written."""
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


def decode_map(header: bytes, read: Read, file_bytes: int) -> dict[int, int] | None:
    """Bytes of each ledger, if the log is complete and its map is beyond doubt; None: scan instead.

    ``FormatError`` if the header is no entry log's at all.
    """
    if len(header) < HEADER_BYTES:
        return None
    magic, version, offset, ledger_count = _HEADER.unpack_from(header)
    if magic != _MAGIC:
        raise FormatError(f"the file begins with {magic!r}, not {_MAGIC!r}")
    (header_crc,) = _CRC.unpack_from(header, _HEADER_CRC_OFFSET)
    if header_crc and header_crc != crc32c(header[:_HEADER_CRC_OFFSET]):
        return None
    # An empty map is suspicious, not a proof that nothing lives here (apache/bookkeeper#4607).
    if version < 1 or not HEADER_BYTES <= offset < file_bytes or ledger_count <= 0:
        return None
    data = read(file_bytes - offset, offset)
    (map_crc,) = _CRC.unpack_from(header, _MAP_CRC_OFFSET)
    if map_crc and map_crc != crc32c(data):
        return None
    ledgers: dict[int, int] = {}
    at = 0
    while at + _GROUP.size <= len(data) and len(ledgers) < ledger_count:
        length, first_mark, second_mark, count = _GROUP.unpack_from(data, at)
        end = at + 4 + length
        if (first_mark, second_mark) != (-1, -2) or not 0 < count <= _GROUP_COUNT_MAX:
            return None
        if length != _GROUP.size - 4 + _MAP_ENTRY.size * count or end > len(data):
            return None
        ledgers.update(_MAP_ENTRY.iter_unpack(data[at + _GROUP.size : end]))
        at = end
    return ledgers if len(ledgers) == ledger_count else None


@attrs.frozen
class FoundEntry:
    """An entry met by a scan."""

    ledger_id: int
    entry_id: int
    offset: int  # of its first byte
    size_bytes: int


class EntryLogScan:
    """Walks the records of a log; ``damage`` tells afterwards whether it could follow to the end."""

    def __init__(self, read: Read, file_bytes: int) -> None:
        self._read = read
        self._file_bytes = file_bytes
        self.damage: str | None = None

    def entries(self) -> Iterator[FoundEntry]:
        """All entries up to the end or the damage. A record cut short at the end is a torn tail."""
        at = HEADER_BYTES
        window, base = b"", at
        while at + RECORD_PREFIX.size <= self._file_bytes:
            if at + RECORD_PREFIX.size > base + len(window):
                window, base = self._read(_SCAN_BYTES, at), at
                if len(window) < RECORD_PREFIX.size:
                    return
            length, ledger_id, entry_id = RECORD_PREFIX.unpack_from(window, at - base)
            if length < 0:
                # Direct logs fill the gap up to the next block so that a length read there is negative.
                next_block = (at // _DIRECT_BLOCK_BYTES + 1) * _DIRECT_BLOCK_BYTES
                if set(self._read(next_block - at, at)) != {_DIRECT_FILLER}:
                    self.damage = f"length {length} at offset {at}"
                    return
                at = next_block
                continue
            if length == 0 and self._is_zero_from(at):
                return
            if not ENTRY_BYTES_MIN <= length <= RECORD_BYTES_MAX:
                self.damage = f"length {length} at offset {at}"
                return
            if at + LENGTH_BYTES + length > self._file_bytes:
                return
            if ledger_id != -1:  # -1: a group of the map, or a direct log's filler
                if ledger_id < 0 or entry_id < 0:
                    self.damage = f"ids {ledger_id}, {entry_id} at offset {at}"
                    return
                yield FoundEntry(ledger_id, entry_id, at + LENGTH_BYTES, length)
            at += LENGTH_BYTES + length

    def _is_zero_from(self, at: int) -> bool:
        while chunk := self._read(_SCAN_BYTES, at):
            if any(chunk):
                return False
            at += len(chunk)
        return True
