"""A log segment: its values, the text stored in its node, and the node's name.

The text is decimal numbers joined by ``;``. Field 0 is a packed head:

bits   meaning
 0-7   metadata version, 1 to 5
 8-15  status; its low two bits are the truncation status
16-27  unused
28-31  region id
32-63  record count; 0 in progress

version  in progress: after the head                completed: after the head
      1  ledger, first txid                         ledger, first txid, last txid, completion time
      2  ledger, first txid, seqno                  v1 + seqno, last entry, last slot
   3, 4  v2 + min active entry, min active slot     v2 + min active entry, min active slot
      5  v4 + start sequence id (always -1)         v4 + start sequence id

Version 1 has no status and no region in its head. From version 4 on the entries are enveloped.
Always: ``decode_segment(encode_segment(s)) == s``; a segment keeps the version it was started with.

Source: DistributedLog, LogSegmentMetadata.java.
"""

from __future__ import annotations

import enum
import re

import attrs

from namespace.dlsn import DLSN
from namespace.errors import LogMetadataError

INVALID_TXID = -999  # the last txid of a segment in progress
EMPTY_SEGMENT_TXID = -99
MAX_TXID = 2**63 - 1  # the txid of the end-of-stream record: a sealed log's greatest
UNASSIGNED_SEGMENT_SEQNO = 0  # stored by a log without segments; the number of a segment of version 1
FIRST_SEGMENT_SEQNO = 1
UNASSIGNED_START_SEQUENCE_ID = -1
VERSION_MIN, VERSION_CURRENT = 1, 5
VERSION_ENVELOPED, VERSION_SEQUENCE_ID = 4, 5
IN_PROGRESS_PREFIX, COMPLETED_PREFIX = "inprogress", "logrecs"

_FIELD_COUNTS = {1: (3, 5), 2: (4, 8), 3: (6, 10), 4: (6, 10), 5: (7, 11)}  # in progress, completed
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_RESERVED_BITS = 0x0FFF_FC00  # of the head: the unused bits, and the upper six bits of the status


class TruncationStatus(enum.IntEnum):
    """How much of a segment is truncated. Truncated records exist until the segment is purged."""

    ACTIVE = 0
    PARTIALLY_TRUNCATED = 1  # the records before ``min_active_dlsn``
    TRUNCATED = 2
    UNKNOWN = 3  # written by a newer release


@attrs.frozen(kw_only=True)
class LogSegment:
    """A contiguous part of a log, held by exactly one ledger. Times are epoch milliseconds."""

    segment_seqno: int  # 0 in version 1, which does not store it
    ledger_id: int
    first_txid: int  # chosen when the segment was started; no record need have it
    in_progress: bool = True
    last_txid: int = INVALID_TXID  # of the last record; not always the greatest
    completed_ms: int = 0
    record_count: int = 0  # user records
    last_entry_id: int = -1  # of the last user record; the ledger may continue (control records)
    last_slot_id: int = -1
    min_active_entry_id: int = 0
    min_active_slot_id: int = 0
    start_sequence_id: int = UNASSIGNED_START_SEQUENCE_ID
    truncation: TruncationStatus = TruncationStatus.ACTIVE
    region_id: int = 0
    version: int = VERSION_CURRENT
    reserved_bits: int = 0  # of the head, kept unchanged
    # The name of its node, if this release would give it another one (legacy names).
    stored_name: str | None = attrs.field(default=None, eq=False)

    @property
    def name(self) -> str:
        """The name of its node below the log's ``ledgers``."""
        return self.stored_name or segment_name(self.segment_seqno, in_progress=self.in_progress)

    @property
    def first_dlsn(self) -> DLSN:
        """The first position of the segment."""
        return DLSN(self.segment_seqno, 0, 0)

    @property
    def last_dlsn(self) -> DLSN:
        """The position of the last user record; entry and slot are -1 in progress or without a record."""
        return DLSN(self.segment_seqno, self.last_entry_id, self.last_slot_id)

    @property
    def min_active_dlsn(self) -> DLSN:
        """The first position that a partial truncation keeps."""
        return DLSN(self.segment_seqno, self.min_active_entry_id, self.min_active_slot_id)

    @property
    def enveloped(self) -> bool:
        """True if its entries have an envelope around their records."""
        return self.version >= VERSION_ENVELOPED

    def completed(
        self,
        *,
        last_txid: int,
        record_count: int,
        last_entry_id: int,
        last_slot_id: int,
        completed_ms: int,
        start_sequence_id: int,
    ) -> LogSegment:
        """This segment completed; version, region and status stay."""
        assert self.in_progress  # a segment is completed once
        return attrs.evolve(
            self,
            in_progress=False,
            last_txid=last_txid,
            record_count=record_count,
            last_entry_id=last_entry_id,
            last_slot_id=last_slot_id,
            completed_ms=completed_ms,
            start_sequence_id=(
                start_sequence_id if self.version >= VERSION_SEQUENCE_ID else UNASSIGNED_START_SEQUENCE_ID
            ),
            stored_name=None,
        )

    def truncated(self) -> LogSegment:
        """This segment marked as truncated."""
        return attrs.evolve(self, truncation=TruncationStatus.TRUNCATED)

    def partially_truncated(self, first_kept: DLSN) -> LogSegment:
        """This segment marked as truncated before a position in it."""
        assert first_kept.segment_seqno == self.segment_seqno  # the caller cuts the segment that holds it
        return attrs.evolve(
            self,
            truncation=TruncationStatus.PARTIALLY_TRUNCATED,
            min_active_entry_id=first_kept.entry_id,
            min_active_slot_id=first_kept.slot_id,
        )


def segment_name(segment_seqno: int, *, in_progress: bool) -> str:
    """The name of a segment's node. It changes when the segment is completed."""
    return f"{IN_PROGRESS_PREFIX if in_progress else COMPLETED_PREFIX}_{segment_seqno:018d}"


def is_segment_name(name: str) -> bool:
    """True if a child of ``ledgers`` is a segment; legacy names count."""
    return name.startswith((IN_PROGRESS_PREFIX, COMPLETED_PREFIX))


def segment_seqno_of(name: str) -> int | None:
    """The sequence number in a node's name; None for a legacy name or a node that is no segment."""
    prefix, _, number = name.partition("_")
    if prefix in (IN_PROGRESS_PREFIX, COMPLETED_PREFIX) and re.fullmatch("[0-9]{18,19}", number):
        return int(number)
    return None


def encode_segment(segment: LogSegment) -> bytes:
    """The text to store, in the segment's own version.

    Raises:
        TypeError: A value is no integer. Stored, its text would make the log unreadable.
        LogMetadataError: So would a number that does not fit.
    """
    # decode_segment and new segments have a known one
    assert segment.version in _FIELD_COUNTS, segment.version
    version, head = segment.version, segment.version
    if not segment.in_progress:
        if not 0 <= segment.record_count < 2**31:
            raise LogMetadataError(
                f"a log segment has {segment.record_count} records; it holds up to 2**31 - 1"
            )
        head |= segment.record_count << 32
    if version > 1:
        assert 0 <= segment.region_id < 16, segment.region_id  # four bits were decoded
        assert segment.reserved_bits & ~_RESERVED_BITS == 0, segment.reserved_bits  # decoded with the mask
        head |= segment.truncation << 8 | segment.region_id << 28 | segment.reserved_bits
    fields = [head, segment.ledger_id, segment.first_txid]
    if not segment.in_progress:
        fields += [segment.last_txid, segment.completed_ms]
    if version >= 2:
        fields.append(segment.segment_seqno)
        if not segment.in_progress:
            fields += [segment.last_entry_id, segment.last_slot_id]
    if version >= 3:
        fields += [segment.min_active_entry_id, segment.min_active_slot_id]
    if version >= 5:
        # While the segment is in progress, readers compute this id from the segment before it.
        fields.append(UNASSIGNED_START_SEQUENCE_ID if segment.in_progress else segment.start_sequence_id)
    # the branches above follow the table
    assert len(fields) == _FIELD_COUNTS[version][not segment.in_progress]
    if not all(isinstance(field, int) for field in fields):
        raise TypeError(f"a log segment has a value that is no integer: {segment}")
    if not all(-(2**63) <= field < 2**63 for field in fields):
        raise LogMetadataError(f"a log segment has a number that does not fit into 64 bits: {segment}")
    return ";".join(map(str, fields)).encode("ascii")


def decode_segment(data: bytes, name: str | None = None) -> LogSegment:
    """Read a segment that a release of version 1 to 5 stored.

    Args:
        name: The node's name. It is kept if this release would give the segment another name.

    Raises:
        LogMetadataError: The text is invalid, of an unknown version, or has too few or too many fields.
    """
    fields = _numbers(data)
    head = fields[0]
    version = head & 0xFF
    if head < 0 or version not in _FIELD_COUNTS:
        raise _refusal(data, f"metadata version {version} is not one of 1 to {VERSION_CURRENT}")
    count_in_progress, count_completed = _FIELD_COUNTS[version]
    if len(fields) not in (count_in_progress, count_completed):
        raise _refusal(
            data,
            f"{len(fields)} fields, version {version} has {count_in_progress} in progress "
            f"and {count_completed} completed",
        )
    in_progress = len(fields) == count_in_progress
    last_txid, completed_ms, segment_seqno = INVALID_TXID, 0, UNASSIGNED_SEGMENT_SEQNO
    last_entry_id = last_slot_id = -1
    min_active_entry_id = min_active_slot_id = 0
    rest = iter(fields[1:])
    ledger_id, first_txid = next(rest), next(rest)
    if not in_progress:
        last_txid, completed_ms = next(rest), next(rest)
    if version >= 2:
        segment_seqno = next(rest)
        if not in_progress:
            last_entry_id, last_slot_id = next(rest), next(rest)
    if version >= 3:
        min_active_entry_id, min_active_slot_id = next(rest), next(rest)
    start_sequence_id = next(rest) if version >= 5 else UNASSIGNED_START_SEQUENCE_ID
    segment = LogSegment(
        version=version,
        in_progress=in_progress,
        segment_seqno=segment_seqno,
        ledger_id=ledger_id,
        first_txid=first_txid,
        last_txid=last_txid,
        completed_ms=completed_ms,
        record_count=0 if in_progress else head >> 32,
        last_entry_id=last_entry_id,
        last_slot_id=last_slot_id,
        min_active_entry_id=min_active_entry_id,
        min_active_slot_id=min_active_slot_id,
        start_sequence_id=UNASSIGNED_START_SEQUENCE_ID if in_progress else start_sequence_id,
        truncation=TruncationStatus(head >> 8 & 3) if version > 1 else TruncationStatus.ACTIVE,
        region_id=head >> 28 & 0xF if version > 1 else 0,
        reserved_bits=head & _RESERVED_BITS if version > 1 else 0,
    )
    return segment if name in (None, segment.name) else attrs.evolve(segment, stored_name=name)


def start_sequence_id_after(previous: LogSegment | None) -> int:
    """The start sequence id of the segment after a completed one, or of the first segment."""
    if previous is None or previous.version < VERSION_SEQUENCE_ID:
        return 0
    if previous.in_progress:
        raise LogMetadataError(
            f"segment {previous.segment_seqno} is in progress, and another one follows it;"
            " `dlog log check` says more"
        )
    return sequence_id_base(previous, None) + previous.record_count


def sequence_id_base(segment: LogSegment, previous: LogSegment | None) -> int:
    """The sequence id of a segment's first user record, as readers compute it.

    Args:
        previous: The completed segment before it; needed only if it is in progress.
    """
    if segment.version >= VERSION_SEQUENCE_ID:
        if segment.in_progress:
            return start_sequence_id_after(previous)
        if segment.start_sequence_id != UNASSIGNED_START_SEQUENCE_ID:
            return segment.start_sequence_id
    # The id is not stored: use a negative number that grows from segment to segment.
    return -(2**63) + (segment.segment_seqno << 32)


def _numbers(data: bytes) -> list[int]:
    try:
        parts = data.decode("ascii").split(";")
    except UnicodeDecodeError as exc:
        raise _refusal(data, "not ASCII") from exc
    numbers = []
    for part in parts:
        if not _NUMBER.fullmatch(part) or not -(2**63) <= (number := int(part)) < 2**63:
            raise _refusal(data, f"{part[:30]!r} is not a signed 64-bit decimal number")
        numbers.append(number)
    return numbers


def _refusal(data: bytes, reason: str) -> LogMetadataError:
    return LogMetadataError(f"log segment metadata {data[:120]!r}: {reason}")
