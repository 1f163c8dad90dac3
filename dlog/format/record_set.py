"""Several records in one slot: the payload of a record with the record-set flag.

Inside: packing and unpacking the sub-records. Not inside: their DLSNs (slots s, s+1, ...;
``segment_reader``).
Always: sub-records share the txid of the set and have no flags of their own, so a set never holds a set. The
sets of one entry expand to at most ``SETS_BYTES_MAX`` bytes and ``SETS_RECORDS_MAX`` records in all.

offset  size  field
     0     4  0x1000 (version) + compression code in bits 0-1
     4     4  number of sub-records
     8     4  length of the body when expanded
    12     4  length of the body as stored, n
    16     n  body: for each sub-record its length (4 bytes) and its bytes; compressed as a whole

Source: DistributedLog, LogRecordSet.java, EnvelopedRecordSetWriter.java, EnvelopedRecordSetReader.java.
"""

from __future__ import annotations

from struct import Struct

from dlog.errors import EntryFormatError
from dlog.format.compression import CODEC_MASK, expand
from dlog.format.envelope import ENTRY_BYTES_MAX

SET_HEADER = Struct(">Iiii")
SET_HEADER_BYTES = 16
assert SET_HEADER.size == SET_HEADER_BYTES  # a constant

SET_VERSION = 0x1000
SET_VERSION_MASK = 0xF000
LENGTH = Struct(">i")

# Apache limits a finished set, not its expanded size. An entry full of sets that LZ4 shrinks 16-fold fits.
SETS_BYTES_MAX = 16 * ENTRY_BYTES_MAX
# As many empty records as one set without compression can hold.
SETS_RECORDS_MAX = ENTRY_BYTES_MAX // LENGTH.size


class SetBudget:
    """The bytes to which the record sets of one entry may still expand. One budget serves all its sets."""

    __slots__ = ("bytes_left", "records_left")

    def __init__(self) -> None:
        self.bytes_left, self.records_left = SETS_BYTES_MAX, SETS_RECORDS_MAX

    def take(self, size_bytes: int, records: int) -> None:
        """Take a set's expanded length and its number of records from the budget.

        Raises:
            EntryFormatError: The sets of the entry claim more than one entry may expand to.
        """
        if size_bytes > self.bytes_left:
            raise EntryFormatError(
                f"the record set claims to expand to {size_bytes} bytes, {self.bytes_left} are left of the"
                f" limit of {SETS_BYTES_MAX} for all sets of an entry"
            )
        if records > self.records_left:
            raise EntryFormatError(
                f"the record set claims {records} records, {self.records_left} are left of the limit of"
                f" {SETS_RECORDS_MAX} for all sets of an entry"
            )
        self.bytes_left -= size_bytes
        self.records_left -= records


def decode_record_set(data: bytes, budget: SetBudget) -> list[bytes]:
    """The sub-records in a set's payload.

    Args:
        budget: The bytes to which the sets of the same entry may still expand; this set takes its share.

    Raises:
        EntryFormatError: Another version, lengths and counts that do not fit, or more than the budget has
            left. A set beyond the budget is not expanded.
    """
    if len(data) < SET_HEADER_BYTES:
        raise EntryFormatError(f"a record set of {len(data)} bytes is shorter than its header")
    word, count, size_bytes, stored_bytes = SET_HEADER.unpack_from(data)
    if word & SET_VERSION_MASK != SET_VERSION:
        raise EntryFormatError(f"record set with version bits {word:#x}, only version 1 is known")
    if stored_bytes != len(data) - SET_HEADER_BYTES:
        raise EntryFormatError(
            f"the record set claims {stored_bytes} bytes, the payload has {len(data) - SET_HEADER_BYTES}"
        )
    if count < 0 or count * LENGTH.size > size_bytes:
        raise EntryFormatError(f"the record set claims {count} records in {size_bytes} bytes")
    budget.take(size_bytes, count)
    body = expand(word & CODEC_MASK, data[SET_HEADER_BYTES:], size_bytes, SETS_BYTES_MAX)
    payloads: list[bytes] = []
    offset = 0
    for _ in range(count):
        if offset + LENGTH.size > len(body):
            raise EntryFormatError(f"the record set ends after {len(payloads)} of {count} records")
        (size,) = LENGTH.unpack_from(body, offset)
        offset += LENGTH.size
        if size < 0 or offset + size > len(body):
            raise EntryFormatError(
                f"the sub-record {len(payloads)} claims {size} bytes, {len(body) - offset} are left"
            )
        payloads.append(body[offset : offset + size])
        offset += size
    if offset != len(body):
        raise EntryFormatError(f"there are {len(body) - offset} bytes after the last sub-record")
    return payloads
