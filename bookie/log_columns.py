"""Records of equal length, taken out of an entry log in columns: no object is made for a single one.

Inside: the taking. Not inside: records of mixed lengths, anything unusual (``entry_log_format``), which is
where whoever reads a log goes on when nothing is taken here.
Always: what is taken is what ``EntryLogScan`` would have found. If the first n records have one length, then
each of them begins where that says, so that nothing is guessed.

A strided slice of bytes is one loop in C. Eight of them laid beside each other are a column of integers.
"""

from __future__ import annotations

import sys
from array import array

import attrs

from bookie.entry_log_format import ENTRY_BYTES_MIN, LENGTH_BYTES, RECORD_PREFIX
from bookie.journal_format import RECORD_BYTES_MAX

_COUNT_MIN = 16  # below that the columns cost more than they save


@attrs.frozen
class Columns:
    """Neighbouring records of one length."""

    ledger_ids: array[int]
    entry_ids: array[int]
    start: int  # offset of the first record
    stride: int  # from one record to the next
    stop: int  # offset behind the last record

    def locations(self, log_id: int) -> array[int]:
        """Where the entries lie."""
        first = (log_id << 32) + self.start + LENGTH_BYTES
        return array("q", range(first, first + self.stride * len(self.ledger_ids), self.stride))


def take_columns(data: bytes, start: int) -> Columns | None:
    """The records at the beginning of ``data`` that have the length of the first; None if they are too few.

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
    return Columns(ledger_ids, entry_ids, start, stride, start + stride * count)


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
