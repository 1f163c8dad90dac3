"""Checking a whole log: digests, positions, transaction ids, metadata, and the hash chain if it has one.

Inside: the check, and its findings. Not inside: the chain (``format.hash_chain``), printing (``cli``).
Always: nothing is changed; the first problem ends the check and names its position; a log without a problem
was read completely, up to what readers see now.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dlog.errors import EntryFormatError, LogUnavailableError, as_dlog_error, translated
from dlog.format.envelope import open_envelope
from dlog.format.hash_chain import CHAIN_RECORD_BYTES, ChainValue, chain_start, chain_value_in, parse_head
from dlog.format.record import Record
from dlog.read.read_only_log import ReadOnlyLog
from dlog.read.segment_reader import SegmentReader
from ledger.errors import (
    BookieUnavailableError,
    CorruptEntryError,
    LedgerError,
    LedgerReadError,
    NoSuchLedgerError,
)
from ledger.handle import ReadHandle
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment
from namespace.segments.truncation import first_left

READ_BYTES_MAX = 512 * 1024


@attrs.frozen
class LogProblem:
    """The first thing that is wrong."""

    dlsn: DLSN  # of the entry's first record
    evidence: str


@attrs.define
class LogVerification:
    """The findings of a check of a log."""

    log: str
    segments: int = 0
    entries: int = 0
    records: int = 0  # user records
    chained_records: int = 0  # of these, in the hash chain
    records_before: int = 0  # in the chain, but truncated: their entries are gone
    head: str | None = None  # the chain's last value, for a later check; None without a chain
    problem: LogProblem | None = None

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong."""
        return self.problem is None


class _Found(Exception):  # noqa: N818 - ends the check
    def __init__(self, dlsn: DLSN, evidence: str) -> None:
        self.problem = LogProblem(dlsn, evidence)


class LogVerifier:
    """One check of a log.

    Args:
        expect_head: A ``head`` noted earlier: the log must still hold the chain up to it.

    Raises:
        ValueError: ``expect_head`` is no head.
    """

    def __init__(self, log: ReadOnlyLog, expect_head: str | None = None) -> None:
        self._log = log
        self._expected = None if expect_head is None else parse_head(expect_head)
        self._expected_seen = False
        self._found = LogVerification(log.name)
        self._chain: ChainValue | None = None  # None: no entry with a value yet
        self._origin = log.name
        self._last_txid = -1
        self._at = DLSN(0, 0, 0)

    async def verify(self) -> LogVerification:
        """Read and check the log.

        Raises:
            LogNotFoundError, LogMetadataError
            LogUnavailableError: Bookies or the metadata store are out of reach; nothing is known to be wrong.
        """
        segments = await self._log.segments()
        self._origin = await self._log.origin()
        left = first_left(segments)
        try:
            for segment in segments:
                if left is not None and segment.segment_seqno >= left.segment_seqno:
                    first = left.entry_id if segment.segment_seqno == left.segment_seqno else 0
                    await self._check_segment(segments, segment, max(first, 0))
            self._check_expected()
        except _Found as found:
            self._found.problem = found.problem
        if self._chain is not None:
            self._found.head = str(self._chain)
        return self._found

    async def _check_segment(
        self, segments: Sequence[LogSegment], segment: LogSegment, first_entry_id: int
    ) -> None:
        self._found.segments += 1
        base = await self._log.start_sequence_id(segments, segment)
        self._at = start = DLSN(segment.segment_seqno, first_entry_id, 0)
        reader = SegmentReader(
            segment.segment_seqno,
            base,
            start=start if first_entry_id else None,
            enveloped=segment.enveloped,
            joins=False,
        )
        try:
            handle = await self._log.open(segment)
        except NoSuchLedgerError:
            raise _Found(start, f"ledger {segment.ledger_id} of the segment is gone") from None
        except LedgerError as exc:
            raise as_dlog_error(exc, self._log.name, f"opening segment {segment.segment_seqno}") from None
        async with handle:
            reader.confirmed(handle.last_confirmed, closed=handle.is_closed)
            while reader.has_more:
                for entry in await self._next_entries(handle, reader):
                    self._at = DLSN(segment.segment_seqno, reader.next_entry_id, 0)
                    self._check_entry(entry, reader, segment, base)
        # Without an entry after the truncated ones there is no position to compare with.
        if not segment.in_progress and (reader.last_position or not first_entry_id):
            self._check_metadata(segment, reader)

    async def _next_entries(self, handle: ReadHandle, reader: SegmentReader) -> list[bytes]:
        first = reader.next_entry_id
        self._at = DLSN(reader.segment_seqno, first, 0)
        try:
            return await handle.read_payloads(first, reader.last_entry_id, size_bytes_max=READ_BYTES_MAX)
        except CorruptEntryError as exc:
            raise _Found(self._at, str(exc)) from None
        except LedgerReadError as exc:
            if any(isinstance(each, BookieUnavailableError) for each in exc.reasons.values()):
                raise LogUnavailableError(f"log {self._log.name!r}, {self._at}: {exc}") from None
            raise _Found(self._at, str(exc)) from None
        except LedgerError as exc:
            raise as_dlog_error(exc, self._log.name, f"reading {self._at}") from None

    def _check_entry(self, entry: bytes, reader: SegmentReader, segment: LogSegment, base: int) -> None:
        entry_id, records = reader.next_entry_id, list[Record]()
        try:
            body, begin, stop = open_envelope(entry) if segment.enveloped else (entry, 0, len(entry))
            reader.decode(entry, records)
            value = chain_value_in(body, begin, stop)
        except EntryFormatError as exc:
            raise _Found(self._at, str(exc)) from None
        for record in records:
            if record.txid < self._last_txid:
                raise _Found(record.dlsn, f"txid {record.txid} after txid {self._last_txid}")
            self._last_txid = record.txid
        if value is None:
            if records and self._chain is not None:
                raise _Found(self._at, "records without a hash chain behind records with one")
        else:
            records_before = base + reader.last_position - len(records) if reader.last_position else base
            chained = memoryview(body)[begin : stop - CHAIN_RECORD_BYTES]
            self._check_chain(value, segment.segment_seqno, entry_id, chained, len(records), records_before)
            self._found.chained_records += len(records)
        self._found.entries += 1
        self._found.records += len(records)

    def _check_chain(
        self, value: ChainValue, seqno: int, entry_id: int, body: memoryview, records: int, before: int
    ) -> None:
        previous = self._chain
        if previous is None:
            previous = chain_start(self._origin)
            if value.count != records and self._found.entries == 0 and before >= value.count - records > 0:
                # Records before this one were truncated, so there is no value to compare this one with.
                self._found.records_before = value.count - records
                self._note(value)
                return
        expected = previous.after(seqno, entry_id, body, records)
        if value != expected:
            raise _Found(
                self._at,
                f"the hash chain does not match: the entry has {value}, its records give {expected}. This"
                " entry, or an entry before it, was changed, moved or removed",
            )
        self._note(value)

    def _note(self, value: ChainValue) -> None:
        self._chain = value
        if value == self._expected:
            self._expected_seen = True

    def _check_metadata(self, segment: LogSegment, reader: SegmentReader) -> None:
        if segment.record_count != reader.last_position:
            raise _Found(
                self._at,
                f"the metadata of segment {segment.segment_seqno} counts {segment.record_count} records, the"
                f" ledger has {reader.last_position}",
            )

    def _check_expected(self) -> None:
        expected = self._expected
        if expected is None or self._expected_seen:
            return
        if self._found.records_before > expected.count:
            raise _Found(self._at, f"the expected head {expected} is before the first record that is left")
        raise _Found(
            self._at,
            f"the log does not hold the expected head {expected}: records up to there were removed, or the"
            f" chain was written again. Its head is {self._chain or 'missing'}",
        )


async def verify_log(log: ReadOnlyLog, expect_head: str | None = None) -> LogVerification:
    """Check a whole log; see ``LogVerifier``."""
    with translated(log.name, "verifying"):
        return await LogVerifier(log, expect_head).verify()
