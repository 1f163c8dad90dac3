"""Finding missing data: a second look after a reader failed.

Inside: deciding whether data are gone, and where reading continues. Not inside: the first failure
(``read_ahead``, ``log_reader``), the restart after a gap (``log_reader``).
Always: data that may only be out of reach are no gap: each replica, by the newest metadata, must deny the
entry or return damaged bytes, twice; a gap ends before the next record that can be read; nothing is changed.
"""

from __future__ import annotations

from dlog.errors import CorruptLogError, DLogError, LogTruncatedError, SegmentGapError, translated
from dlog.read.gaps import Gap, GapCause
from dlog.read.positioning import ID_MAX, last_before
from dlog.read.read_only_log import ReadOnlyLog, why_gone
from dlog.read.segment_reader import PositionGapError
from ledger.causes import cause_of
from ledger.errors import LedgerReadError, NoSuchLedgerError
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment


class GapFinder:
    """Decides, after a reader's error, which data are missing."""

    def __init__(self, log: ReadOnlyLog) -> None:
        self._log = log

    async def gap(self, error: DLogError, position: DLSN | None) -> Gap | None:
        """The gap at which a reader failed; None if nothing is known to be missing for good.

        Args:
            position: The reader's position.

        Raises:
            DLogError: The log, or data that may exist, are out of reach.
        """
        match error:
            case LogTruncatedError(position=DLSN() as first, first_left=DLSN() as left):
                return Gap(first, last_before(left), GapCause.TRUNCATED, str(error), left)
            case SegmentGapError(position=DLSN() as first):
                return await self._missing_segments(first)
            case CorruptLogError(position=DLSN() as at):
                match cause_of(error):
                    case NoSuchLedgerError():
                        return await self._missing_ledger(at)
                    case LedgerReadError():
                        return await self._missing_entries(at)
                    case PositionGapError() if position is not None and position < at:
                        # No position lies between the record before and this one, but records do.
                        last = max(position, last_before(at))
                        return Gap(position, last, GapCause.RECORDS_MISSING, error.evidence, at)
                    case _:
                        return _entries(at, at.entry_id + 1, GapCause.ENTRY_DAMAGED, error.evidence)
        return None

    async def _missing_segments(self, first: DLSN) -> Gap | None:
        for segment in await self._log.segments():
            if segment.segment_seqno == first.segment_seqno:
                return None
            if segment.segment_seqno > first.segment_seqno:
                return Gap(
                    first,
                    last_before(segment.first_dlsn),
                    GapCause.SEGMENT_MISSING,
                    f"the log has no segment before {segment.segment_seqno}",
                    segment.first_dlsn,
                )
        return None

    async def _missing_ledger(self, at: DLSN) -> Gap | None:
        segment = await self._segment(at)
        if segment is None:
            return None
        with translated(self._log.name, f"looking for ledger {segment.ledger_id}"):
            try:
                await (await self._log.open(segment)).close()
            except NoSuchLedgerError as exc:
                last = last_before(segment.first_dlsn.next_segment())
                return Gap(at, last, GapCause.LEDGER_MISSING, str(exc), segment.first_dlsn.next_segment())
        return None

    async def _missing_entries(self, at: DLSN) -> Gap | None:
        segment = await self._segment(at)
        if segment is None:
            return None
        evidence, stop = "", at.entry_id
        with translated(self._log.name, f"looking for entries behind {at}"):
            # A new handle has the newest metadata: the entry may have been copied to other bookies since.
            async with await self._log.open(segment) as handle:
                while stop <= handle.last_confirmed and (reason := await why_gone(handle, stop)):
                    evidence = evidence or reason
                    stop += 1
        return _entries(at, stop, GapCause.ENTRY_MISSING, evidence) if evidence else None

    async def _segment(self, at: DLSN) -> LogSegment | None:
        listed = await self._log.segments()
        return next((each for each in listed if each.segment_seqno == at.segment_seqno), None)


def _entries(at: DLSN, stop: int, cause: GapCause, evidence: str) -> Gap:
    """A gap from a position up to, not including, an entry."""
    return Gap(
        at,
        DLSN(at.segment_seqno, stop - 1, ID_MAX),
        cause,
        evidence,
        DLSN(at.segment_seqno, stop, 0),
    )
