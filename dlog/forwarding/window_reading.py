"""Filling the window of a new owner from the end of its log.

Inside: where the end begins, reading it. Not inside: the window.
Always: it is read after the recovery of the log's segments, so it holds all that earlier owners stored.

Source: our own; docs/shared.md, "Once".
"""

from __future__ import annotations

from collections.abc import Sequence

from dlog.config import ReaderConfig
from dlog.encryption import PayloadOpener
from dlog.errors import DecryptionError, EncryptionKeyError
from dlog.format.attributes import encode_attributes
from dlog.forwarding.window import RECORDS_MAX, ProducerWindow
from dlog.read.log_reader import open_log_reader
from dlog.read.read_only_log import ReadOnlyLog
from dlog.write.repeats import repeat_checksum
from namespace.dlsn import DLSN, INVALID_DLSN
from namespace.segments.segment import LogSegment
from namespace.segments.truncation import first_left

BYTES_MAX = 16 * 1024 * 1024  # of entries that are read to fill a window
READ_RECORDS = 4096


async def read_window(
    log: ReadOnlyLog,
    opener: PayloadOpener | None,
    *,
    records_max: int = RECORDS_MAX,
    bytes_max: int = BYTES_MAX,
) -> ProducerWindow:
    """The window of a log whose segments are all closed.

    Args:
        opener: Decrypts the producers of its records; None: the log's writer does not encrypt.

    Raises:
        LogNotFoundError, LogUnavailableError, LogMetadataError, CorruptLogError, LogReaderStalledError
    """
    segments = [each for each in await log.segments() if not each.in_progress]
    start = await _start(log, segments, records_max, bytes_max)
    window = ProducerWindow(start, records_max)
    if not segments:
        return window
    begin = max(start, first_left(segments) or start)
    async with open_log_reader(log, ReaderConfig(), start=begin, follow=False) as reader:
        while records := await reader.read_batch(READ_RECORDS):
            for record in records:
                if opener is not None:
                    try:
                        record = opener.open_record(record)
                    except (DecryptionError, EncryptionKeyError):
                        continue  # of a time before this encryption, or its key is gone
                if record.producer is not None:
                    attributes = encode_attributes(record.key, record.headers)
                    checksum = repeat_checksum(record.payload, attributes)
                    window.add(*record.producer, record.dlsn, [checksum])
    return window


async def _start(
    log: ReadOnlyLog, segments: Sequence[LogSegment], records_left: int, bytes_left: int
) -> DLSN:
    """From where on the log has about this much; INVALID_DLSN for all of it."""
    for segment in reversed(segments):
        number, last = segment.segment_seqno, segment.last_entry_id
        if last < 0:
            continue
        records, size_bytes = await _totals(log, segment, last)
        if records > records_left or size_bytes > bytes_left:
            low, high = 0, last  # the start is after an entry in this range
            while low < high:
                middle = (low + high) // 2
                before, bytes_before = await _totals(log, segment, middle)
                if records - before > records_left or size_bytes - bytes_before > bytes_left:
                    low = middle + 1
                else:
                    high = middle
            return DLSN(number, low + 1, 0)
        records_left, bytes_left = records_left - records, bytes_left - size_bytes
    left = first_left(segments)
    is_whole = left is None or left == segments[0].first_dlsn
    return INVALID_DLSN if is_whole or left is None else left


async def _totals(log: ReadOnlyLog, segment: LogSegment, entry_id: int) -> tuple[int, int]:
    (found,) = await log.entry_totals([segment], [(segment.segment_seqno, entry_id)])
    # A segment that was purged just now holds nothing that a producer still waits for.
    return (0, 0) if found is None else (found.records, found.size_bytes)
