"""Targets of what lies on a bookie's disks: journal, entry logs, index pages, marks, cookies, small files."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from crc32c import crc32c

from bookie.bookie_status import decode_status
from bookie.embedded.bound_metadata import decode_binding
from bookie.entrylog.columnar import decode_columns
from bookie.entrylog.compaction_files import unfinished_compactions
from bookie.entrylog.format import (
    HEADER_BYTES,
    EntryLogScan,
    decode_header,
    decode_map,
    encode_header,
    encode_map,
)
from bookie.errors import CookieError, FormatError, JournalCorruptError
from bookie.gc.tombstones import TombstonesFile
from bookie.identity.cookie import Cookie, decode_cookie, encode_cookie
from bookie.identity.incarnation import decode_incarnation
from bookie.index.chunk_index import IndexChunk
from bookie.index.page_file import PAGE_FILE_HEADER_BYTES, decode_page_file_header, page_file_ranges
from bookie.journal.format import (
    FIRST_GROUP_OFFSET,
    PADDING_HEADER,
    JournalMark,
    Predecessor,
    decode_mark,
    decode_special,
    decode_synced,
    encode_first_block,
    encode_group_end,
    encode_mark,
    encode_synced,
    explicit_lac_record,
    fence_record,
    group_bytes,
    key_record,
)
from bookie.journal.replay import JournalScan
from bookie.ledger_record import LedgerData, decode_ledger_data, encode_ledger_data
from bookie.limits import RECORD_BYTES_MAX
from bookie.storage.directory_set import Stamp, decode_stamp, encode_stamp
from tests.fuzz.engine import Target
from tests.places import GOLDEN_FILES

JOURNAL_ID = 5
GOLDEN = GOLDEN_FILES / "bookie_files"


@cache
def golden_files(ending: str, bytes_max: int = 8192) -> list[bytes]:
    """The beginnings of Apache's files."""
    found = set()
    for path in sorted(GOLDEN.glob(f"*{ending}.hex")):
        first, *lines = path.read_text().splitlines()
        data = bytearray(int(first.removeprefix("size ")))
        for line in lines:
            offset, content = line.split()
            data[int(offset, 16) : int(offset, 16) + len(content) // 2] = bytes.fromhex(content)
        found.add(bytes(data[:bytes_max]))
    return sorted(found)


def reading(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, at: data[at : at + size]


def our_journal() -> bytes:
    """A file with two groups of records of every kind, with trailers whose checksums match."""
    data = bytearray(encode_first_block(JOURNAL_ID, Predecessor(4, 4096)))
    groups = [
        [key_record(1, b"k" * 20), b"\0" * 15 + b"\x01" + b"\0" * 40, fence_record(1)],
        [explicit_lac_record(1, bytes(20)), b"\0" * 7 + b"\x02" + b"\0" * 300],
    ]
    durable = 0
    for records in groups:
        start = len(data)
        body = b"".join(len(record).to_bytes(4, "big") + record for record in records)
        end = encode_group_end(JOURNAL_ID, start, durable, len(records), len(body), crc32c(body))
        data += (body + end).ljust(group_bytes(len(body)), b"\0")
        durable = len(data)
    return bytes(data)


def journals() -> list[bytes]:
    return [our_journal(), *golden_files(".txn", 3000)]


def scan_journal(data: bytes) -> None:
    scan = JournalScan(reading(data), len(data), JOURNAL_ID)
    for records in scan.groups():
        for record in records:
            assert 16 <= len(record) <= len(data)
            if record[8] & 0x80:
                decode_special(record)
    # Padding may claim more bytes than the file has left: only zeros are missing then.
    assert 0 <= scan.end <= max(len(data), FIRST_GROUP_OFFSET) + PADDING_HEADER.size + RECORD_BYTES_MAX


def our_entry_log() -> bytes:
    records = b"".join(
        (20 + index).to_bytes(4, "big") + (1).to_bytes(8, "big") + index.to_bytes(8, "big") + bytes(4 + index)
        for index in range(5)
    )
    same = b"".join(
        b"\0\0\0\x20" + (2).to_bytes(8, "big") + n.to_bytes(8, "big") + bytes(16) for n in range(20)
    )
    body = records + same
    found_map = encode_map({1: len(records), 2: len(same)})
    return encode_header(HEADER_BYTES + len(body), 2) + body + found_map


def entry_logs() -> list[bytes]:
    return [our_entry_log(), *golden_files(".log", 5000)]


def scan_entry_log(data: bytes) -> None:
    head = decode_header(data[:HEADER_BYTES])
    decode_map(data[:HEADER_BYTES], reading(data), len(data))
    scan = EntryLogScan(reading(data), len(data), map_offset=head.map_offset if head else 0, piece_bytes=512)
    for entry in scan.entries():
        assert HEADER_BYTES + 4 <= entry.offset <= entry.offset + entry.size_bytes <= len(data)
        assert entry.ledger_id >= 0
        assert entry.entry_id >= 0
    columns = decode_columns(data[HEADER_BYTES:], HEADER_BYTES)
    assert columns is None or columns.stop <= len(data)


def with_header_checksum(data: bytes) -> bytes:
    if len(data) < HEADER_BYTES:
        return data
    return (
        data[: HEADER_BYTES - 4] + crc32c(data[: HEADER_BYTES - 4]).to_bytes(4, "big") + data[HEADER_BYTES:]
    )


def read_page_file(data: bytes) -> None:
    decode_page_file_header(data[:PAGE_FILE_HEADER_BYTES])
    for entry_range in page_file_ranges(reading(data), 1):
        assert len(entry_range.entry_ids) == len(entry_range.locations)


def with_checksum(data: bytes) -> bytes:
    return data[:-4] + crc32c(data[:-4]).to_bytes(4, "big") if len(data) > 4 else data


class OneFile:
    """Stands in for a disk with one file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_file(self, path: Path) -> bytes:
        return self._data

    def replace_file(self, path: Path, data: bytes) -> None:
        assert len(data) <= len(self._data)


def read_tombstones(data: bytes) -> None:
    disk: Any = OneFile(data)
    found = TombstonesFile(disk, Path("tombstones"), lambda: 5).read()
    assert len(found) <= len(data) // 20


def tombstones() -> list[bytes]:
    return [with_tombstone_checksums(bytes(7) + b"\x05" + bytes(12) + bytes(7) + b"\x09" + bytes(12)), b""]


def with_tombstone_checksums(data: bytes) -> bytes:
    out = bytearray(data)
    for at in range(0, len(data) - 19, 20):
        out[at + 16 : at + 20] = zlib.crc32(out[at : at + 16]).to_bytes(4, "big")
    return bytes(out)


def read_chunk(data: bytes) -> None:
    chunk = IndexChunk(7, data)
    assert len(chunk.entry_ids()) == len(chunk.locations(0, chunk.count)) == chunk.count


def chunks() -> list[bytes]:
    return [bytes(8), bytes(range(32)), b"\0" * 7 + b"\x01" + bytes(16)]


def cookies() -> list[bytes]:
    cookie = Cookie("bk1:3181", ("/a/j",), ("/a/l", "/b/l"), ("/a/i",), "5-6-7")
    return [encode_cookie(cookie), b"3\nbk1:3181\n/a/j\n2\t/a/l\t/b/l\n"]


def storage_target(
    name: str, seeds: Callable[[], list[bytes]], decode: Callable[[bytes], object], **more: Any
) -> Target:
    return Target(name=name, seeds=seeds, decode=decode, **{"errors": (FormatError,), **more})


STORAGE_TARGETS = [
    storage_target(
        "journal",
        journals,
        scan_journal,
        errors=(FormatError, JournalCorruptError),
        memory_base=4 * RECORD_BYTES_MAX,
    ),
    storage_target("entry_log", entry_logs, scan_entry_log, repair=with_header_checksum),
    storage_target("page_file", lambda: golden_files(".idx", 3000), read_page_file),
    storage_target(
        "last_mark", lambda: [encode_mark(JournalMark(1, 2)), bytes(16)], decode_mark, repair=with_checksum
    ),
    storage_target(
        "last_synced", lambda: [encode_synced(JournalMark(1, 2))], decode_synced, repair=with_checksum
    ),
    storage_target("tombstones", tombstones, read_tombstones, repair=with_tombstone_checksums),
    storage_target("index_chunk", chunks, read_chunk),
    storage_target(
        "ledger_data",
        lambda: [encode_ledger_data(LedgerData(b"k" * 20, True, bytes(36), 5, 6, True))],
        decode_ledger_data,
    ),
    storage_target("directory_stamp", lambda: [encode_stamp(Stamp(1, 2))], decode_stamp),
    storage_target("bookie_status", lambda: [b"1,READ_ONLY,1700000000000,true\n"], decode_status),
    storage_target(
        "cookie", cookies, decode_cookie, errors=(CookieError,), tokens=[b"4\n", b'ledgerDirs: "']
    ),
    storage_target("incarnation", lambda: [b"1700000000000 3\n"], decode_incarnation),
    storage_target("metadata_binding", lambda: [b"c2765d2f-dcc0 17\n"], decode_binding),
    storage_target(
        "file_names",
        lambda: [b"1.log.compacting\n2.log.3.compacted\n4.log"],
        lambda data: unfinished_compactions(data.decode("utf-8", "replace").split("\n")),
    ),
]
