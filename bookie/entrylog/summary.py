"""The content of a complete entry log: bytes of each ledger.

Inside: reading it from the log's map, or from the records if the map is invalid; a bounded cache of summaries
between rounds of garbage collection. Not inside: decisions of garbage collection.
Always: a summary exists only for a log that was read to its end; for others ``FormatError`` is raised. A
crash may tear the end of a log that was never completed: ``torn_at`` is the offset where its summary ends.
Such a summary is exhaustive only after a scan of the index has found no entry after that offset.

Source: EntryLogMetadata.java, GarbageCollectorThread.java (extractMetaFromEntryLogs); apache/bookkeeper#2264,
#3901, #4544, #4607.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

from bookie.disk.disk import Disk, File
from bookie.entrylog.format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    EntryLogScan,
    LogHeader,
    decode_header,
    decode_map,
    entry_log_name,
)
from bookie.errors import FormatError

_CACHED_LEDGERS_MAX = 1_000_000  # ledgers in all summaries together: 16 MB
_SCAN_BYTES = 1 << 20
_SECTOR_BYTES = 512  # a disk writes a sector atomically


class LogSummary:
    """Bytes of each ledger in one log, with 4 for each entry's length."""

    __slots__ = ("_bytes", "_ledgers", "has_map", "log_id", "torn_at", "total_bytes")

    def __init__(
        self, log_id: int, ledger_bytes: dict[int, int], *, has_map: bool, torn_at: int | None = None
    ) -> None:
        self.log_id = log_id
        self._ledgers = array("q", ledger_bytes.keys())
        self._bytes = array("q", ledger_bytes.values())
        self.total_bytes = sum(self._bytes)
        self.has_map = has_map
        # Only of a log without a map: it is torn or damaged from this offset on. ``index_scan`` tells which.
        self.torn_at = torn_at

    def __repr__(self) -> str:
        return f"<LogSummary {entry_log_name(self.log_id)}: {self.total_bytes} bytes, {len(self)} ledgers>"

    def __len__(self) -> int:
        return len(self._ledgers)

    def ledger_ids(self) -> Sequence[int]:
        """The ledgers that have entries in the log."""
        return self._ledgers

    def ledger_bytes(self) -> dict[int, int]:
        """Ledger -> its bytes."""
        return dict(zip(self._ledgers, self._bytes, strict=True))

    def live_bytes(self, is_live: Callable[[int], bool]) -> int:
        """Bytes of the ledgers that are live."""
        return sum(size for ledger, size in zip(self._ledgers, self._bytes, strict=True) if is_live(ledger))

    def has_live(self, is_live: Callable[[int], bool]) -> bool:
        """True if any ledger in the log is live."""
        return any(map(is_live, self._ledgers))


class SummaryScan:
    """Computes the summary of one log in bounded steps. A step blocks; any thread may call it."""

    def __init__(self, disk: Disk, directory: Path, log_id: int) -> None:
        self.log_id = log_id
        self._path = directory / entry_log_name(log_id)
        self._disk = disk
        self._file: File | None = None
        self._scan: EntryLogScan | None = None
        self._ledger_bytes: dict[int, int] = {}
        self._is_header_lost = False
        self._is_end_known = False

    def step(self) -> LogSummary | None:
        """Do one step; return the summary after the last one, None before.

        Raises:
            FormatError: The log cannot be parsed to its end.
            OSError: The log cannot be read.
        """
        if self._scan is None:
            self._file = file = self._disk.open(self._path)
            size = file.size()
            header = file.pread(HEADER_BYTES, 0)
            head = self._decode_header(header)
            if head is not None and (ledgers := self._read_map(head, header, file, size)) is not None:
                return LogSummary(self.log_id, ledgers, has_map=True)
            # If our header gives the offset of the map, the records end there, even if the map is damaged.
            map_offset = head.map_offset if head is not None and head.map_crc else 0
            self._is_end_known = map_offset > 0
            self._scan = EntryLogScan(file.pread, size, map_offset=map_offset, piece_bytes=_SCAN_BYTES)
        if (piece := self._scan.step()) is not None:
            totals = self._ledger_bytes
            for ledger_id, _, _, size in piece.records:
                totals[ledger_id] = totals.get(ledger_id, 0) + size + LENGTH_BYTES
            return None
        scan = self._scan
        if scan.damage is not None and self._is_end_known:
            raise FormatError(f"{self._path}: {scan.damage}")
        # A power cut may leave holes in unsynced parts, with any bytes after them.
        torn_at = None if scan.damage is None and scan.torn_at is None else scan.position
        if self._is_header_lost:
            torn_at = 0
        return LogSummary(self.log_id, self._ledger_bytes, has_map=False, torn_at=torn_at)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _decode_header(self, header: bytes) -> LogHeader | None:
        if len(header) < HEADER_BYTES or not any(header[:_SECTOR_BYTES]):
            self._is_header_lost = True  # it never reached the disk: no sync of this log has completed
            return None
        try:
            return decode_header(header)
        except FormatError as exc:
            raise FormatError(f"{self._path}: {exc}") from exc

    def _read_map(self, head: LogHeader, header: bytes, file: File, size: int) -> dict[int, int] | None:
        ledgers = decode_map(header, file.pread, size)
        # A map without a checksum is Apache's. It is checked by the sum of its bytes.
        if (
            ledgers is not None
            and not head.map_crc
            and sum(ledgers.values()) != head.map_offset - HEADER_BYTES
        ):
            return None
        return ledgers


class LogSummaries:
    """A bounded cache of the summaries of one directory's complete logs; evicts the least recently used."""

    def __init__(self, *, ledgers_max: int = _CACHED_LEDGERS_MAX) -> None:
        self._ledgers_max = ledgers_max
        self._ledgers = 0
        self._summaries: dict[int, LogSummary] = {}  # in order of last use, latest last

    def get(self, log_id: int) -> LogSummary | None:
        """The cached summary; None if absent."""
        summary = self._summaries.pop(log_id, None)
        if summary is not None:
            self._summaries[log_id] = summary
        return summary

    def add(self, summary: LogSummary) -> None:
        """Cache a summary and evict others beyond the bound; the newest always stays."""
        self.forget(summary.log_id)
        self._summaries[summary.log_id] = summary
        self._ledgers += len(summary)
        while self._ledgers > self._ledgers_max and len(self._summaries) > 1:
            self.forget(next(iter(self._summaries)))

    def forget(self, log_id: int) -> None:
        """Remove the summary of a deleted log."""
        summary = self._summaries.pop(log_id, None)
        if summary is not None:
            self._ledgers -= len(summary)

    def __len__(self) -> int:
        return len(self._summaries)
