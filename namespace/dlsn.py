"""DLSN: the position of a record in its log, and its stored forms.

version  bytes  layout (all big-endian, signed)
      1     25  0x01, segment sequence number (8), entry id (8), slot id (8)
      0    200  0x00, the same three, then 175 zero bytes

The stored text form is the standard base64, padded, of those bytes. The form for people, ``7:42:0``, is never
stored.

Version 0 is so long because of a mistake in the original: it uses a number of bits as a number of bytes.

Source: DistributedLog, DLSN.java.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
import struct

import attrs

from namespace.errors import LogMetadataError

DLSN_V1 = struct.Struct(">bqqq")
assert DLSN_V1.size == 25  # a constant
DLSN_V0 = struct.Struct(">bqqq175x")
assert DLSN_V0.size == 200  # a constant

_NUMBER = r"(-?[0-9]{1,19})"
_FORMS = (
    re.compile(rf"{_NUMBER}\s*:\s*{_NUMBER}\s*:\s*{_NUMBER}"),
    re.compile(rf"(?:\[|DLSN\()?\s*{_NUMBER}\s*,\s*{_NUMBER}\s*,\s*{_NUMBER}\s*[])]?"),
    re.compile(rf"\[\s*{_NUMBER}\s*:\s*{_NUMBER}\s*:\s*{_NUMBER}\s*\]"),
    re.compile(rf"DLSN{{logSegmentSequenceNo={_NUMBER}, entryId={_NUMBER}, slotId={_NUMBER}}}"),  # Java's
)


@functools.total_ordering  # that of attrs makes tuples of both by name: it takes 7 times as long
@attrs.frozen(repr=False)
class DLSN:
    """The position of a record in its log; compares in log order. Each part is a signed 64-bit number."""

    segment_seqno: int  # 1-based: a log's first segment is normally number 1
    entry_id: int  # 0-based in the segment's ledger
    slot_id: int  # 0-based in the entry

    @property
    def segment(self) -> int:
        """``segment_seqno``, by the name of the column in tables of records (Arrow, Spark, SQL)."""
        return self.segment_seqno

    @property
    def entry(self) -> int:
        """``entry_id``, by the name of the column in tables of records."""
        return self.entry_id

    @property
    def slot(self) -> int:
        """``slot_id``, by the name of the column in tables of records."""
        return self.slot_id

    def __lt__(self, other: object) -> bool:
        if other.__class__ is not DLSN:
            return NotImplemented
        if self.segment_seqno != other.segment_seqno:
            return self.segment_seqno < other.segment_seqno
        return (self.entry_id, self.slot_id) < (other.entry_id, other.slot_id)

    def __repr__(self) -> str:
        return f"DLSN({self.segment_seqno}, {self.entry_id}, {self.slot_id})"

    def __str__(self) -> str:
        return f"{self.segment_seqno}:{self.entry_id}:{self.slot_id}"

    @staticmethod
    def parse(text: str) -> DLSN:
        """Read a position in any form that a program, a command or a node shows.

        The forms are ``7:42:0``, ``[7, 42, 0]``, ``DLSN(7, 42, 0)``, base64 as in a stored cursor, and
        ``DLSN{logSegmentSequenceNo=7, entryId=42, slotId=0}`` as Java prints it.

        Raises:
            ValueError: The text has none of these forms.
        """
        for form in _FORMS:
            if found := form.fullmatch(text.strip()):
                parts = [int(number) for number in found.groups()]
                if all(-(2**63) <= part < 2**63 for part in parts):
                    return DLSN(*parts)
        try:
            return DLSN.from_text(text.strip())
        except LogMetadataError:
            raise ValueError(f"{text[:60]!r} is no position; give a DLSN such as 7:42:0") from None

    def next_slot(self) -> DLSN:
        """The least DLSN greater than this one. A record need not exist there."""
        return DLSN(self.segment_seqno, self.entry_id, self.slot_id + 1)

    def next_segment(self) -> DLSN:
        """The first position of the next log segment."""
        return DLSN(self.segment_seqno + 1, 0, 0)

    def to_bytes(self, version: int = 1) -> bytes:
        """The stored form in version 0 or 1."""
        if version not in (0, 1):
            raise ValueError(f"there is no version {version!r} of a stored DLSN, only 0 and 1")
        layout = DLSN_V1 if version == 1 else DLSN_V0
        try:
            return layout.pack(version, self.segment_seqno, self.entry_id, self.slot_id)
        except struct.error:
            raise ValueError(f"{self!r} does not fit into signed 64-bit numbers") from None

    @staticmethod
    def from_bytes(data: bytes) -> DLSN:
        """Read the stored form of either version.

        Raises:
            LogMetadataError: Unknown version, wrong length for the version, or padding that is not zero.
        """
        layout = {0: DLSN_V0, 1: DLSN_V1}.get(data[0]) if data else None
        if layout is None:
            version = f"version {data[0]}" if data else "no bytes"
            raise LogMetadataError(f"stored DLSN: {version}, only versions 0 and 1 are known")
        if len(data) != layout.size:
            raise LogMetadataError(f"stored DLSN: {len(data)} bytes, version {data[0]} has {layout.size}")
        if any(data[DLSN_V1.size :]):
            raise LogMetadataError("stored DLSN: version 0 ends with 175 zero bytes")
        return DLSN(*layout.unpack(data)[1:])

    def to_text(self, version: int = 1) -> str:
        """The stored form in base64."""
        return base64.b64encode(self.to_bytes(version)).decode("ascii")

    @staticmethod
    def from_text(text: str) -> DLSN:
        """Read the text that ``to_text`` returns.

        Raises:
            LogMetadataError: The text is not base64, or its bytes are no stored DLSN.
        """
        try:
            data = base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError) as exc:
            raise LogMetadataError(f"stored DLSN: {text[:60]!r} is not base64") from exc
        return DLSN.from_bytes(data)


INVALID_DLSN = DLSN(0, -1, -1)  # no DLSN; less than any real one
