"""Decodes neighbouring records of equal length as columns, without an object for each record.

Inside: decoding. Not inside: records of mixed lengths, and unusual records. For those the caller falls back
to ``EntryLogScan`` (``entrylog.format``).
Always: the decoded records are those that ``EntryLogScan`` would find. The length of each record is checked,
so each record begins where the columns assume.

A strided slice of bytes is one loop in C. Eight interleaved slices form a column of integers.
"""

from __future__ import annotations

import sys
from array import array

import attrs

from bookie.entrylog.format import ENTRY_BYTES_MIN, LENGTH_BYTES, RECORD_PREFIX
from bookie.limits import RECORD_BYTES_MAX

_COUNT_MIN = 16  # for fewer records, columns cost more than they save


@attrs.frozen
class RecordColumns:
    """Neighbouring records of one length."""

    ledger_ids: array[int]
    entry_ids: array[int]
    start: int  # offset of the first record
    stride: int  # bytes from one record to the next
    stop: int  # offset after the last record

    def locations(self, log_id: int) -> array[int]:
        """The locations of the entries in this log."""
        first = (log_id << 32) + self.start + LENGTH_BYTES
        return array("q", range(first, first + self.stride * len(self.ledger_ids), self.stride))


def decode_columns(data: bytes, start: int) -> RecordColumns | None:
    """The records at the beginning of ``data`` that are as long as the first; None if they are too few.

    ``start``: the offset of ``data`` in the log.
    """
    if len(data) < RECORD_PREFIX.size:
        return None
    length = int.from_bytes(data[:LENGTH_BYTES], "big", signed=True)
    stride = LENGTH_BYTES + length
    if not ENTRY_BYTES_MIN <= length <= RECORD_BYTES_MAX:
        return None
    count = _equal_lengths(data, len(data) // stride, stride)
    if count < _COUNT_MIN:
        return None
    ledger_ids = _column(data, LENGTH_BYTES, count, stride)
    entry_ids = _column(data, LENGTH_BYTES + 8, count, stride)
    if min(ledger_ids) < 0 or min(entry_ids) < 0:
        count = next(at for at in range(count) if ledger_ids[at] < 0 or entry_ids[at] < 0)
        if count < _COUNT_MIN:
            return None
        del ledger_ids[count:], entry_ids[count:]
    return RecordColumns(ledger_ids, entry_ids, start, stride, start + stride * count)


def _equal_lengths(data: bytes, count: int, stride: int) -> int:
    for at in range(LENGTH_BYTES):
        column = data[at : stride * count : stride]
        byte = column[:1]
        if column.count(byte) != len(column):
            count = len(column) - len(column.lstrip(byte))
    return count


def _column(data: bytes, offset: int, count: int, stride: int) -> array[int]:
    raw = bytearray(8 * count)
    for at in range(8):
        raw[at::8] = data[offset + at : stride * count : stride]
    column = array("q", bytes(raw))
    if sys.byteorder == "little":
        column.byteswap()
    return column
