"""Index files in BookKeeper's original layout: one for each ledger, a slot for each entry id.

A file is ``<bits 8..15 of the ledger id>/<bits 0..7>/<ledger id>.idx``, all in hex without padding. All
integers are big-endian and signed.

offset   size  field
     0      4  BKLE
     4      4  version                 0, or 1: the explicit LAC may follow
     8      4  master key length k
    12      k  master key
  12+k      4  state bits              0x1: fenced
  16+k      4  explicit LAC length n   version 1 only; 0: none, otherwise at least 16
  20+k      n  explicit LAC packet
   ...         zero up to 1024
1024+8e     8  location of entry e     0: no such entry

A page, usually 8 KiB with 1024 locations, is only a unit of writing: the file is the same for each page size.
The file has no checksum.

Source: FileInfo.java, IndexPersistenceMgr.java, LedgerEntryPage.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct, pack_into, unpack_from

import attrs

from bookie.errors import FormatError
from bookie.index.entry_index import EntryRange

PAGE_FILE_HEADER_BYTES = 1024
LOCATION_BYTES = 8
SECTOR_BYTES = 512  # a page has a multiple of it

_PREFIX = Struct(">4sii")  # magic, version, length of the key
_NUMBER = Struct(">i")
_MAGIC = b"BKLE"
_FENCED = 1
_LAC_BYTES_MIN = 16
_READ_BYTES = 8192
_ZEROS = bytes(SECTOR_BYTES)
_NAME = re.compile(r"([0-9a-f]{1,16})\.idx")


@attrs.frozen
class PageFileHeader:
    """The ledger data in the header of an index file."""

    master_key: bytes = attrs.field(repr=False)
    fenced: bool
    explicit_lac: bytes | None


def page_file_path(directory: Path, ledger_id: int) -> Path:
    """The path of the ledger's file below an index directory."""
    return directory / f"{ledger_id >> 8 & 0xFF:x}" / f"{ledger_id & 0xFF:x}" / f"{ledger_id:x}.idx"


def page_file_ledger_id(name: str) -> int | None:
    """The ledger id in a file's name; None if it is no index file."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def page_file_ranges(read: Callable[[int, int], bytes], ledger_id: int) -> Iterator[EntryRange]:
    """The entries of a file, read without checksums, so damage is not detected.

    ``read(size, offset)`` is shorter than ``size`` only at the end of the file. A partial slot is ignored.
    """
    first, offset = 0, PAGE_FILE_HEADER_BYTES
    while data := read(_READ_BYTES, offset):
        count = len(data) // LOCATION_BYTES
        locations: tuple[int, ...] = unpack_from(f">{count}q", data)
        slots = [slot for slot, location in enumerate(locations) if location]
        if slots:
            yield EntryRange(ledger_id, [first + s for s in slots], [locations[s] for s in slots])
        first, offset = first + count, offset + _READ_BYTES


def encode_page_file_header(header: PageFileHeader) -> bytes:
    """All 1024 bytes. An explicit LAC that does not fit is omitted; if the key does not fit, all are zero."""
    key = header.master_key
    data = _PREFIX.pack(_MAGIC, 1, len(key)) + key + _NUMBER.pack(_FENCED if header.fenced else 0)
    lac = header.explicit_lac or b""
    if len(data) + _NUMBER.size + len(lac) > PAGE_FILE_HEADER_BYTES:
        lac = b""
    data += _NUMBER.pack(len(lac)) + lac
    return (data if len(data) <= PAGE_FILE_HEADER_BYTES else b"").ljust(PAGE_FILE_HEADER_BYTES, b"\0")


def decode_page_file_header(data: bytes) -> PageFileHeader:
    """Decode a header from the first 1024 bytes of a file. ``FormatError`` if they are no header."""
    if len(data) < _PREFIX.size:
        raise FormatError(f"an index file of {len(data)} bytes has no header")
    magic, version, key_bytes = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise FormatError(f"the file begins with {magic!r}, not {_MAGIC!r}")
    if version not in (0, 1):
        raise FormatError(f"index file header of version {version}")
    end = _PREFIX.size + key_bytes
    stop = min(len(data), PAGE_FILE_HEADER_BYTES)
    if key_bytes < 0 or end + _NUMBER.size > stop:
        raise FormatError(f"index file header: master key of {key_bytes} bytes")
    key = data[_PREFIX.size : end]
    fenced = bool(_NUMBER.unpack_from(data, end)[0] & _FENCED)
    if version == 0:
        return PageFileHeader(key, fenced, None)
    start = end + 2 * _NUMBER.size
    lac_bytes = _NUMBER.unpack_from(data, start - _NUMBER.size)[0] if start <= stop else -1
    if (lac_bytes and lac_bytes < _LAC_BYTES_MIN) or start + lac_bytes > stop:
        raise FormatError(f"index file header: explicit LAC of {lac_bytes} bytes")
    return PageFileHeader(key, fenced, data[start : start + lac_bytes] if lac_bytes else None)


def put_locations(data: bytearray, first: int, entry_ids: Sequence[int], locations: Sequence[int]) -> None:
    """Put locations into a page's slots; consecutive ids with one call."""
    count = len(entry_ids)
    if entry_ids[-1] - entry_ids[0] == count - 1:
        pack_into(f">{count}q", data, LOCATION_BYTES * (entry_ids[0] - first), *locations)
        return
    for entry_id, location in zip(entry_ids, locations, strict=True):
        pack_into(">q", data, LOCATION_BYTES * (entry_id - first), location)


def used_page_bytes(data: bytes | bytearray) -> int:
    """The bytes of a page up to its last location; 0 if it has none."""
    stop = len(data)
    while stop and data[stop - SECTOR_BYTES : stop] == _ZEROS:  # ``rstrip`` of a whole page takes longer
        stop -= SECTOR_BYTES
    used_bytes = len(data[:stop].rstrip(b"\0"))
    return used_bytes + -used_bytes % LOCATION_BYTES
