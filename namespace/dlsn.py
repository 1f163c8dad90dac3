"""DLSN: where a record sits in its log, and the forms in which that is stored.

version  bytes  layout (all big-endian, signed)
      1     25  0x01, segment sequence number (8), entry id (8), slot id (8)
      0    200  0x00, the same three, then 175 zero bytes

The text form is the standard base64, padded, of those bytes.

Version 0's length is a slip of the original that became format: it adds up bits and calls them bytes.

Source: DistributedLog, DLSN.java.
"""

from __future__ import annotations

import base64
import binascii
import struct

import attrs

from namespace.errors import FormatError

DLSN_V1 = struct.Struct(">bqqq")
assert DLSN_V1.size == 25
DLSN_V0 = struct.Struct(">bqqq175x")
assert DLSN_V0.size == 200


@attrs.frozen(order=True, repr=False)
class DLSN:
    """Where a record sits in its log; compares in log order. Each part is a signed 64-bit number."""

    segment_seqno: int  # 1-based: a log's first segment is normally number 1
    entry_id: int  # 0-based in the segment's ledger
    slot_id: int  # 0-based in the entry

    def __repr__(self) -> str:
        return f"DLSN({self.segment_seqno}, {self.entry_id}, {self.slot_id})"

    def next_slot(self) -> DLSN:
        """The least DLSN greater than this one; there need be no such record."""
        return DLSN(self.segment_seqno, self.entry_id, self.slot_id + 1)

    def next_segment(self) -> DLSN:
        """Where the next log segment starts."""
        return DLSN(self.segment_seqno + 1, 0, 0)

    def to_bytes(self, version: int = 1) -> bytes:
        """The stored form of the version, 0 or 1."""
        if version not in (0, 1):
            raise ValueError(f"there is no version {version!r} of a stored DLSN, only 0 and 1")
        layout = DLSN_V1 if version == 1 else DLSN_V0
        try:
            return layout.pack(version, self.segment_seqno, self.entry_id, self.slot_id)
        except struct.error:
            raise ValueError(f"{self!r} does not fit into signed 64-bit numbers") from None

    @staticmethod
    def from_bytes(data: bytes) -> DLSN:
        """Read either version's stored form.

        Raises:
            FormatError: Unknown version, a length that is not the version's, or filling that is not zero.
        """
        layout = {0: DLSN_V0, 1: DLSN_V1}.get(data[0]) if data else None
        if layout is None:
            version = f"version {data[0]}" if data else "no bytes"
            raise FormatError(f"stored DLSN: {version}, only versions 0 and 1 are known")
        if len(data) != layout.size:
            raise FormatError(f"stored DLSN: {len(data)} bytes, version {data[0]} has {layout.size}")
        if any(data[DLSN_V1.size :]):
            raise FormatError("stored DLSN: version 0 ends with 175 zero bytes")
        return DLSN(*layout.unpack(data)[1:])

    def to_text(self, version: int = 1) -> str:
        """The stored form in base64."""
        return base64.b64encode(self.to_bytes(version)).decode("ascii")

    @staticmethod
    def from_text(text: str) -> DLSN:
        """Read what ``to_text`` gives.

        Raises:
            FormatError: Not base64, or not a DLSN in it.
        """
        try:
            data = base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError) as exc:
            raise FormatError(f"stored DLSN: {text[:60]!r} is not base64") from exc
        return DLSN.from_bytes(data)


INITIAL_DLSN = DLSN(1, 0, 0)  # where a new log starts
NON_INCLUSIVE_LOWER_BOUND = DLSN(1, 0, -1)  # a subscription that has committed nothing
INVALID_DLSN = DLSN(0, -1, -1)  # no DLSN; less than any real one
