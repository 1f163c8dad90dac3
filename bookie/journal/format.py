"""The bytes of the journal: names, header, records, padding, our group trailer, ``lastMark``.

A file is ``<id in hex>.txn``. All integers are big-endian and signed.

offset  size  header (512 bytes)
     0     4  BKLG
     4     4  version           written: 6; read: 5 and 6 (1 to 4 have no padded header)
     8   504  zero

then records, back to back:

     0     4  length            0: end of file; PADDING: a padding record, whose length follows
     4     *  entry bytes, or a special record, which has a negative entry id at its offset 8:

     0     8  ledger id
     8     8  -0x1000 ledger key, -0x2000 fence, -0x8000 explicit LAC; other negative ids are skipped
    16     4  length            key and explicit LAC only
    20     *  master key, or the LAC packet

Each group ends with a padding record up to the next multiple of 4096: ``-0x100``, length, body. Apache's
reader skips the body, so our group trailer is there:

     0     4  DLJT
     4     2  version           1
     6     2  zero
     8     8  journal id        of this file: the old groups of a recycled file have another
    16     8  group start       file offset of the group's first record
    24     8  durable below     file offset below which all was synced when this group was written
    32     4  record count
    36     4  CRC32C            of the group from its start through the padding's two lengths, then of
                                bytes 0 to 35 of this trailer
    40     *  zero

and the padding record that fills the header's block has the file trailer:

     0     4  DLJF
     4     2  version           1
     6     2  zero
     8     8  journal id
    16     8  previous id       0: there was none
    24     8  previous end      the previous file was synced up to here before this one was created
    32     4  CRC32C            of bytes 0 to 31

Crash rules. A group whose trailer does not match is a torn tail, with two exceptions: a later group of the
same file says that it was durable (``durable below``), or the next file says that this file was longer
(``previous end``). Then it is damage, and damage is never skipped silently. A block of zeros follows each
group, so that a reader without trailers stops there as well.

``lastMark``: everything below it is in ledger storage. The CRC detects a flipped bit, which could move the
mark past records that are not:

     0     8  journal id
     8     8  offset
    16     4  DLJM or DLJC      ours from here on; Apache's reader reads the first 16 bytes
    20     4  CRC32C            of bytes 0 to 19

DLJC: the journal was closed in order at this position, so nothing in it is needed. A start writes DLJM before
the first record.

``lastSynced`` (see the module ``last_synced``) has the same form with DLJS.

Source: Journal.java, JournalChannel.java, LogMark.java; trailers and checksums are ours.
"""

from __future__ import annotations

import enum
import re
from struct import Struct

import attrs
from crc32c import crc32c

from bookie.errors import FormatError
from bookie.limits import RECORD_BYTES_MAX

FILE_HEADER_BYTES = 512
FIRST_GROUP_OFFSET = 4096  # of files written here; Apache's begin at FILE_HEADER_BYTES
ALIGNMENT_BYTES = 4096

_HEADER = Struct(">4si")
_MAGIC = b"BKLG"
VERSION_WRITTEN = 6
VERSIONS_READ = (5, 6)

PADDING = -0x100
PADDING_HEADER = Struct(">ii")
RECORD_IDS = Struct(">qq")
RECORD_HEADER = Struct(">qqq")  # ledger id, entry id, LAC of an entry
_SPECIAL = Struct(">qqi")
SPECIAL_KEY = -0x1000
SPECIAL_FENCE = -0x2000
SPECIAL_EXPLICIT_LAC = -0x8000
LAC_PACKET_BYTES_MAX = RECORD_BYTES_MAX - _SPECIAL.size

_TRAILER_BODY = Struct(">4sHHqqqI")
_TRAILER_MAGIC = b"DLJT"
TRAILER_BYTES = 40
assert _TRAILER_BODY.size + 4 == TRAILER_BYTES  # two constants of this module
_FILE_TRAILER_BODY = Struct(">4sHHqqq")
_FILE_TRAILER_MAGIC = b"DLJF"
_CRC = Struct(">I")
_FORMAT_VERSION = 1

_NAME = re.compile(r"([0-9a-f]{1,16})\.txn")
_MARK = Struct(">qq")
_MARK_MAGIC = b"DLJM"
_CLOSED_MAGIC = b"DLJC"
_SYNCED_MAGIC = b"DLJS"
_MARK_BYTES = _MARK.size + len(_MARK_MAGIC) + 4


# --- names and the mark ---------------------------------------------------------------------------


def journal_name(journal_id: int) -> str:
    """The name of the file with this id."""
    return f"{journal_id:x}.txn"


def journal_id_of(name: str) -> int | None:
    """The id in a file's name; None if the name is not that of a journal file."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


@attrs.frozen(order=True)
class JournalMark:
    """A position in the journal. It stands for everything before it, in this file and in earlier files."""

    journal_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.journal_id:x}.txn:{self.offset}"


NO_MARK = JournalMark(0, 0)  # replay every file present


def encode_mark(mark: JournalMark, *, is_closed: bool = False) -> bytes:
    """The content of ``lastMark``; ``is_closed``: the journal ends there, and was closed in order."""
    return _encode_position(mark, _CLOSED_MAGIC if is_closed else _MARK_MAGIC)


def decode_mark(data: bytes) -> JournalMark:
    """The mark. ``FormatError`` unless it is Apache's 16 bytes, or ours with a matching CRC."""
    if len(data) not in (_MARK.size, _MARK_BYTES):
        raise FormatError(f"lastMark has {len(data)} bytes, not {_MARK.size} or {_MARK_BYTES}")
    if len(data) == _MARK_BYTES:
        return _decode_position(data, _CLOSED_MAGIC if is_closed_mark(data) else _MARK_MAGIC)
    return _position(data)


def is_closed_mark(data: bytes) -> bool:
    """True if the bytes of ``lastMark`` say that its journal ends there, and was closed in order."""
    return data[_MARK.size : -_CRC.size] == _CLOSED_MAGIC


def encode_synced(position: JournalMark) -> bytes:
    """The content of ``lastSynced``."""
    return _encode_position(position, _SYNCED_MAGIC)


def decode_synced(data: bytes) -> JournalMark:
    """The position. ``FormatError`` unless the CRC matches."""
    return _decode_position(data, _SYNCED_MAGIC)


def _encode_position(position: JournalMark, magic: bytes) -> bytes:
    data = _MARK.pack(position.journal_id, position.offset) + magic
    return data + _CRC.pack(crc32c(data))


def _decode_position(data: bytes, magic: bytes) -> JournalMark:
    if len(data) != _MARK_BYTES or data[_MARK.size : -_CRC.size] != magic:
        raise FormatError(f"{len(data)} bytes that are not a position marked {magic!r}")
    if _CRC.unpack(data[-_CRC.size :])[0] != crc32c(data[: -_CRC.size]):
        raise FormatError("damaged: the checksum does not match")
    return _position(data)


def _position(data: bytes) -> JournalMark:
    journal_id, offset = _MARK.unpack_from(data)
    if journal_id < 0 or offset < 0:
        raise FormatError(f"file {journal_id}, offset {offset}")
    return JournalMark(journal_id, offset)


# --- header ---------------------------------------------------------------------------------------


@attrs.frozen
class Predecessor:
    """The synced length of the previous file when this file was created; id 0: there was none."""

    journal_id: int
    end: int


def encode_first_block(journal_id: int, previous: Predecessor) -> bytes:
    """The first 4096 bytes of a file: the header, and the padding record with the file trailer."""
    header = _HEADER.pack(_MAGIC, VERSION_WRITTEN).ljust(FILE_HEADER_BYTES, b"\0")
    body_bytes = FIRST_GROUP_OFFSET - FILE_HEADER_BYTES - PADDING_HEADER.size
    body = _FILE_TRAILER_BODY.pack(
        _FILE_TRAILER_MAGIC, _FORMAT_VERSION, 0, journal_id, previous.journal_id, previous.end
    )
    body += _CRC.pack(crc32c(body))
    return header + PADDING_HEADER.pack(PADDING, body_bytes) + body.ljust(body_bytes, b"\0")


def has_header(start_of_file: bytes) -> bool:
    """True if a file begins with a header that this program can read.

    An empty or zeroed file has no header: it was created just before a crash and has no records.

    Raises:
        FormatError: The header is zeros, but later bytes are not: the header is synced before any group. Or
            the version is below 5: these versions have other headers and no padding.
    """
    if len(start_of_file) < FILE_HEADER_BYTES:
        return False
    if not any(start_of_file[: _HEADER.size]):
        if start_of_file.count(0) != len(start_of_file):
            raise FormatError("its header is zeros, but not all that follows is: the disk has damaged it")
        return False
    magic, version = _HEADER.unpack_from(start_of_file)
    if magic != _MAGIC:
        raise FormatError(f"the file begins with {magic!r}, not {_MAGIC!r}")
    if version not in VERSIONS_READ:
        raise FormatError(
            f"journal format version {version}; only {VERSIONS_READ} can be read. Start the bookie that"
            " wrote it and stop it cleanly, so that nothing is left to replay"
        )
    return True


def decode_file_trailer(start_of_file: bytes, journal_id: int) -> Predecessor | None:
    """The predecessor noted in the first block; None if Apache or another file's life wrote the block."""
    offset = FILE_HEADER_BYTES + PADDING_HEADER.size
    if len(start_of_file) < FIRST_GROUP_OFFSET:
        return None
    body = start_of_file[offset : offset + _FILE_TRAILER_BODY.size]
    magic, version, _, stored_id, previous_id, previous_end = _FILE_TRAILER_BODY.unpack(body)
    if magic != _FILE_TRAILER_MAGIC or version != _FORMAT_VERSION or stored_id != journal_id:
        return None
    (crc,) = _CRC.unpack_from(start_of_file, offset + _FILE_TRAILER_BODY.size)
    return Predecessor(previous_id, previous_end) if crc == crc32c(body) else None


# --- records --------------------------------------------------------------------------------------


class RecordKind(enum.Enum):
    """The kinds of journal records."""

    ENTRY = "entry"
    KEY = "ledger key"
    FENCE = "fence"
    EXPLICIT_LAC = "explicit LAC"
    UNKNOWN = "unknown"


def key_record(ledger_id: int, master_key: bytes) -> bytes:
    """The record that binds a ledger to its master key."""
    return _SPECIAL.pack(ledger_id, SPECIAL_KEY, len(master_key)) + master_key


def fence_record(ledger_id: int) -> bytes:
    """The record that fences a ledger."""
    return RECORD_IDS.pack(ledger_id, SPECIAL_FENCE)


def explicit_lac_record(ledger_id: int, body: bytes) -> bytes:
    """The record that stores a LAC packet."""
    return _SPECIAL.pack(ledger_id, SPECIAL_EXPLICIT_LAC, len(body)) + body


def decode_special(record: bytes) -> tuple[RecordKind, bytes]:
    """Kind and content of a record with a negative entry id. ``FormatError`` if its inner length is wrong."""
    _, special = RECORD_IDS.unpack_from(record)
    if special == SPECIAL_FENCE:
        return RecordKind.FENCE, b""
    kind = {SPECIAL_KEY: RecordKind.KEY, SPECIAL_EXPLICIT_LAC: RecordKind.EXPLICIT_LAC}.get(special)
    if kind is None:
        return RecordKind.UNKNOWN, b""
    if len(record) < _SPECIAL.size:
        raise FormatError(f"{kind.value} record of {len(record)} bytes")
    _, _, length = _SPECIAL.unpack_from(record)
    if length < 0 or length != len(record) - _SPECIAL.size:
        raise FormatError(f"{kind.value} record says {length} bytes and has {len(record) - _SPECIAL.size}")
    return kind, record[_SPECIAL.size :]


# --- groups --------------------------------------------------------------------------------------


def group_bytes(records_bytes: int) -> int:
    """Size of a group on disk whose records, with their lengths, take ``records_bytes``."""
    least = records_bytes + PADDING_HEADER.size + TRAILER_BYTES
    return -(-least // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def encode_group_end(
    journal_id: int, start: int, durable_below: int, record_count: int, records_bytes: int, records_crc: int
) -> bytes:
    """The padding header and the trailer at the end of a group; zeros follow up to ``group_bytes``."""
    padding = PADDING_HEADER.pack(PADDING, group_bytes(records_bytes) - records_bytes - PADDING_HEADER.size)
    trailer = _TRAILER_BODY.pack(
        _TRAILER_MAGIC, _FORMAT_VERSION, 0, journal_id, start, durable_below, record_count
    )
    return padding + trailer + _CRC.pack(crc32c(trailer, crc32c(padding, records_crc)))


@attrs.frozen
class Trailer:
    """The fields of a group's trailer, not checked yet."""

    journal_id: int
    start: int
    durable_below: int
    record_count: int
    crc: int


def trailer_mark(journal_id: int) -> bytes:
    """The first 16 bytes of each trailer of this file."""
    return _TRAILER_BODY.pack(_TRAILER_MAGIC, _FORMAT_VERSION, 0, journal_id, 0, 0, 0)[:16]


def decode_trailer(padding_body: bytes) -> Trailer | None:
    """The trailer at the start of a padding body; None for Apache's padding."""
    if len(padding_body) < TRAILER_BYTES or padding_body[:4] != _TRAILER_MAGIC:
        return None
    _, version, _, journal_id, start, durable_below, count = _TRAILER_BODY.unpack_from(padding_body)
    if version != _FORMAT_VERSION:
        return None
    return Trailer(journal_id, start, durable_below, count, _CRC.unpack_from(padding_body, 36)[0])


def trailer_matches(trailer: Trailer, group: bytes | memoryview, padding_body: bytes) -> bool:
    """True if the CRC matches. ``group``: from its start through the padding's two lengths."""
    return crc32c(padding_body[: _TRAILER_BODY.size], crc32c(group)) == trailer.crc
