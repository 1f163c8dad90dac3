"""Checking a range of a segment's entries on all of their replicas, for a check in many processes.

Inside: one range: its replicas, the positions and transaction ids of its records, the end of the segment.
Not inside: a whole log in one process (``verifier``), what lies between segments (the caller).
Always: nothing is changed; every entry of the range was read from each bookie that should have it, or that
bookie is named; a replica that was moved during the check is not called missing.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import enum

import attrs

from dlog.errors import EntryFormatError, LogMetadataError, translated
from dlog.format.record import TXID_MAX, Record
from dlog.read.read_only_log import ReadOnlyLog
from dlog.read.segment_reader import PositionGapError, SegmentReader, last_record_of
from ledger.errors import NoSuchLedgerError
from ledger.read.replica_check import CheckedEntry, ReplicaCheck
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment

FAULTS_MAX = 1_000  # in one result
ATTEMPTS_MAX = 3  # each is lost to a change of the ledger's ensembles


class FaultKind(enum.Enum):
    """A fault of an entry or of a segment."""

    MISSING = "missing"  # a bookie does not have its replica
    CORRUPT = "corrupt"  # a replica does not match its digest, or its bookie cannot read it
    DIFFERENT = "different"  # two replicas match their digests and are not equal
    UNREACHABLE = "unreachable"  # a bookie does not say; nothing is known of its replica
    LOST = "lost"  # no replica can be read
    FORMAT = "format"  # the records do not decode
    POSITION = "position"  # a record is missing before one of the entry
    TXID = "txid"  # a transaction id is less than the one before it
    METADATA = "metadata"  # the metadata of the segment do not fit its ledger


@attrs.frozen
class EntryFault:
    """One thing that is wrong."""

    entry_id: int  # -1: the segment as a whole
    bookie: str | None  # None: it is in all replicas
    kind: FaultKind
    evidence: str


@attrs.frozen(kw_only=True)
class EntryVerification:
    """The findings of a check of a range of entries."""

    log: str
    segment_seqno: int
    ledger_id: int
    is_closed: bool  # the ledger is closed: nothing will be added
    last_entry_id: int  # of the ledger; of one that is not closed, the last confirmed one
    length_bytes: int  # of the ledger, payloads of entries; 0 if it is not closed
    entries: int = 0  # in the range
    records: int = 0  # user records in the range
    replicas: int = 0  # with good bytes
    size_bytes: int = 0  # of the entries' payloads
    first_txid: int | None = None  # of the range's records
    last_txid: int | None = None
    faults: tuple[EntryFault, ...] = ()
    faults_left_out: int = 0  # beyond ``FAULTS_MAX``

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong, and every replica was read."""
        return not self.faults


async def verify_entries(
    log: ReadOnlyLog, segment_seqno: int, first_entry_id: int, last_entry_id: int | None
) -> EntryVerification:
    """Check a range of entries; see ``Namespace.repair.verify_entries``."""
    with translated(log.name, f"verifying segment {segment_seqno}"):
        for segment in await log.segments():
            if segment.segment_seqno == segment_seqno:
                break
        else:
            raise LogMetadataError(f"log {log.name!r} has no segment {segment_seqno}")
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                check = await log.replica_check(segment)
                found = await _RangeCheck(log.name, segment, check).run(first_entry_id, last_entry_id)
                if found.is_sound or attempt == ATTEMPTS_MAX or await check.is_current():
                    return found
            except NoSuchLedgerError as exc:
                return EntryVerification(
                    log=log.name,
                    segment_seqno=segment_seqno,
                    ledger_id=segment.ledger_id,
                    is_closed=False,
                    last_entry_id=-1,
                    length_bytes=0,
                    faults=(EntryFault(-1, None, FaultKind.METADATA, f"the ledger is gone: {exc}"),),
                )
        raise AssertionError  # the last attempt returns


class _RangeCheck:
    def __init__(self, log: str, segment: LogSegment, check: ReplicaCheck) -> None:
        self._log, self._segment, self._check = log, segment, check
        self._faults: list[EntryFault] = []
        self._left_out = self._entries = self._records = self._replicas = self._size_bytes = 0
        self._first_txid: int | None = None
        self._last_txid: int | None = None
        self._before_txid = -1
        self._last_dlsn: DLSN | None = None

    async def run(self, first: int, last: int | None) -> EntryVerification:
        metadata, end = self._check.metadata, self._check.last_entry_id
        stop = end if last is None else min(last, end)
        reader = await self._reader_at(first)
        reader.confirmed(end, closed=metadata.is_closed)
        async for entry in self._check.entries(first, stop):
            self._take(entry, reader)
        if stop == end and not self._segment.in_progress:
            self._check_end(reader, is_whole=first == 0)
        return EntryVerification(
            log=self._log,
            segment_seqno=self._segment.segment_seqno,
            ledger_id=self._segment.ledger_id,
            is_closed=metadata.is_closed,
            last_entry_id=end,
            length_bytes=metadata.length_bytes,
            entries=self._entries,
            records=self._records,
            replicas=self._replicas,
            size_bytes=self._size_bytes,
            first_txid=self._first_txid,
            last_txid=self._last_txid,
            faults=tuple(self._faults),
            faults_left_out=self._left_out,
        )

    async def _reader_at(self, first: int) -> SegmentReader:
        """A reader that knows the position and the transaction id before the range."""
        segment = self._segment
        reader = SegmentReader(
            segment.segment_seqno,
            1,
            start=DLSN(segment.segment_seqno, first, 0) if first else None,
            enveloped=segment.enveloped,
            joins=False,
        )
        if first and first <= self._check.last_entry_id:
            # Its faults belong to the range that it is in.
            payload = (await self._check.entry(first - 1)).payload
            try:
                last = None if payload is None else last_record_of(payload, enveloped=segment.enveloped)
            except EntryFormatError:
                last = None
            if last is not None:
                _, reader.last_position, self._before_txid, _ = last
        return reader

    def _take(self, entry: CheckedEntry, reader: SegmentReader) -> None:
        self._entries += 1
        self._replicas += entry.replicas
        # The writer of an open ledger may be about to write the last replicas of confirmed entries.
        is_settling = not self._check.metadata.is_closed and entry.replicas >= self._check.metadata.ack_quorum
        for each in entry.faults:
            kind = FaultKind(each.fault.value)
            if not (is_settling and kind is FaultKind.MISSING):
                self._fault(entry.entry_id, each.bookie, kind, each.evidence)
        if entry.payload is None:
            if all(each.fault.value != "unreachable" for each in entry.faults):
                self._fault(entry.entry_id, None, FaultKind.LOST, "no bookie has good bytes of it")
            self._skip(entry.entry_id, reader)
            return
        self._size_bytes += len(entry.payload)
        records: list[Record] = []
        try:
            reader.decode(entry.payload, records)
        except PositionGapError as exc:
            self._fault(entry.entry_id, None, FaultKind.POSITION, str(exc))
            self._skip(entry.entry_id, reader)
        except EntryFormatError as exc:
            self._fault(entry.entry_id, None, FaultKind.FORMAT, str(exc))
            self._skip(entry.entry_id, reader)
        self._take_records(entry.entry_id, records)

    def _take_records(self, entry_id: int, records: list[Record]) -> None:
        for record in records:
            if record.txid < self._before_txid:
                evidence = f"slot {record.dlsn.slot_id}: txid {record.txid} after txid {self._before_txid}"
                self._fault(entry_id, None, FaultKind.TXID, evidence)
            self._before_txid = max(self._before_txid, record.txid)
        if records:
            self._records += len(records)
            self._last_txid, self._last_dlsn = records[-1].txid, records[-1].dlsn
            if self._first_txid is None:
                self._first_txid = records[0].txid

    def _skip(self, entry_id: int, reader: SegmentReader) -> None:
        """Continue after an entry that was not decoded; the position there is not known."""
        reader.next_entry_id = entry_id + 1
        reader.last_position = 0

    def _check_end(self, reader: SegmentReader, *, is_whole: bool) -> None:
        segment, metadata = self._segment, self._check.metadata
        if not metadata.is_closed:
            self._fault(-1, None, FaultKind.METADATA, "the segment is completed and its ledger is not closed")
            return
        if self._faults:
            return  # what is wrong above may be the cause of what would be wrong here
        if (is_whole or reader.last_position) and segment.record_count != reader.last_position:
            self._fault(
                -1,
                None,
                FaultKind.METADATA,
                f"the metadata count {segment.record_count} records, the ledger has {reader.last_position}",
            )
        if self._last_dlsn not in (None, segment.last_dlsn) and segment.last_txid != TXID_MAX:
            self._fault(
                -1,
                None,
                FaultKind.METADATA,
                f"the last record is {self._last_dlsn} in the ledger and {segment.last_dlsn} in the metadata",
            )

    def _fault(self, entry_id: int, bookie: str | None, kind: FaultKind, evidence: str) -> None:
        if len(self._faults) < FAULTS_MAX:
            self._faults.append(EntryFault(entry_id, bookie, kind, evidence))
        else:
            self._left_out += 1
