"""Which segments a run archives, whether what it wrote is right, and what may be truncated afterwards.

Pure. Always: a hole between the archive and the log is an error; nothing after the last archived segment, or
that a cursor has not read, is truncated.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from dlog import DLSN, LogDescription, SegmentDescription
from spark_integration.errors import ArchiveGapError, PipelineError
from spark_integration.pipelines.archives.manifest import ArchivedSegment, Content, Manifest


@attrs.frozen
class PlannedSegment:
    """A completed segment to archive."""

    description: SegmentDescription
    first: DLSN  # records from here on: the first position of the segment, or of what truncation left

    @property
    def segment(self) -> int:
        """Its sequence number."""
        return self.description.segment_seqno

    @property
    def is_whole(self) -> bool:
        """True if no truncation has taken a part of it."""
        return self.first == DLSN(self.segment, 0, 0)


def planned(manifest: Manifest, log: LogDescription) -> list[PlannedSegment]:
    """The completed segments that the archive does not have, in order.

    Raises:
        ArchiveGapError: Records between the archive and the log were truncated.
        PipelineError: The log is not the one of the archive.
    """
    check_joined(manifest, log)
    found: list[PlannedSegment] = []
    if log.first_dlsn is None:
        return found
    start = max(log.first_dlsn, DLSN((manifest.last_segment or 0) + 1, 0, 0))
    for segment in log.segments:
        if not segment.is_completed:
            break
        if segment.segment_seqno >= start.segment_seqno:
            found.append(PlannedSegment(segment, max(start, DLSN(segment.segment_seqno, 0, 0))))
    return found


def check_joined(manifest: Manifest, log: LogDescription) -> None:
    """Raise unless the log continues where the archive ends.

    Raises:
        ArchiveGapError: Records between the archive and the log were truncated.
        PipelineError: The log is not the one of the archive.
    """
    if manifest.log != log.name:
        raise PipelineError(f"the archive is of log {manifest.log!r}, not of {log.name!r}")
    ledgers = {segment.segment: segment.ledger_id for segment in manifest.segments}
    for each in log.segments:
        if each.is_completed and ledgers.get(each.segment_seqno, each.ledger_id) != each.ledger_id:
            raise PipelineError(
                f"log {log.name!r} is not the log of this archive: segment {each.segment_seqno} is ledger"
                f" {each.ledger_id}, but the archived one was {ledgers[each.segment_seqno]}. The log was"
                " created again, or moved; archive it into another directory"
            )
    last = manifest.last_segment
    if last is None:
        return
    following = DLSN(last + 1, 0, 0)
    if log.first_dlsn is not None and log.first_dlsn > following:
        raise ArchiveGapError(
            f"the archive of log {log.name!r} ends with segment {last}, but the log begins at"
            f" {log.first_dlsn}: the records between them were truncated. Keep this archive, and begin"
            " another one"
        )
    if not log.segments or log.segments[-1].segment_seqno < last:
        raise PipelineError(
            f"log {log.name!r} is not the log of this archive: it has no segment {last}, which is archived."
            " The log was created again; archive it into another directory"
        )
    if not any(each.segment_seqno in ledgers for each in log.segments):
        _check_number_of_records(manifest, log)


def _check_number_of_records(manifest: Manifest, log: LogDescription) -> None:
    """Compare what the log counts before its first segment with the archive, if no ledger tells."""
    last, first = manifest.last_segment, manifest.segments[0]
    assert last is not None  # the list is not empty
    for each in log.segments:
        # 0: the log counts from here, because all of its segments were purged before, or its format is old.
        if each.segment_seqno != last + 1 or not each.start_sequence_id or each.start_sequence_id < 0:
            continue
        before, archived = each.start_sequence_id, manifest.records
        is_from_beginning = first.segment == 1 and first.content is not None and first.content.first == (0, 0)
        if before < archived or (is_from_beginning and before != archived):
            raise PipelineError(
                f"log {log.name!r} is not the log of this archive: it had {before} records before segment"
                f" {each.segment_seqno}, and the archive has {archived}. The log was created again; archive"
                " it into another directory"
            )


def check_written(segment: PlannedSegment, content: Content | None, records: int) -> None:
    """Raise unless the rows that were read are all those of the segment.

    Args:
        records: The number of records that the log has from ``segment.first`` on.

    Raises:
        PipelineError: A record is missing, or there is one too many.
    """
    about = segment.description
    found = 0 if content is None else content.records
    wrong = None
    if found != records:
        wrong = f"{found} records were read, but the log has {records}"
    elif content is not None:
        # The last position in the metadata may be that of a record without a row (the end of the stream), or
        # of a whole set of records. So only its entry bounds the rows; their number says that all are there.
        if content.last[0] > about.last_entry_id:
            wrong = f"the last record was {content.last}, but the log ends at entry {about.last_entry_id}"
        elif content.first < (segment.first.entry_id, segment.first.slot_id):
            wrong = f"the first record was {content.first}, before {segment.first}"
    if wrong is not None:
        raise PipelineError(f"segment {segment.segment}: {wrong}. The archive and the log are unchanged")


@attrs.frozen
class Truncation:
    """The segments that may be truncated."""

    before: DLSN
    segments: tuple[ArchivedSegment, ...]  # that go; their files are to be read back first


def truncation(
    manifest: Manifest, log: LogDescription, *, keep_segments: int, cursors: Iterable[DLSN]
) -> Truncation | None:
    """The segments of the archive that the log may give up now; None if there are none.

    Args:
        keep_segments: So many of the newest archived segments stay in the log.
        cursors: The first position that each reader has not consumed; its segment and those after it stay.
    """
    going: Sequence[ArchivedSegment] = manifest.segments[: max(0, len(manifest.segments) - keep_segments)]
    if not going or log.first_dlsn is None:
        return None
    last = min([going[-1].segment, *(cursor.segment_seqno - 1 for cursor in cursors)])
    if log.is_sealed:
        last = min(
            last, log.segments[-1].segment_seqno - 1
        )  # readers see the end of the stream in the last one
    live = {
        each.segment_seqno
        for each in log.segments
        if each.is_completed and log.first_dlsn.segment_seqno <= each.segment_seqno <= last
    }
    gone = tuple(each for each in manifest.segments if each.segment in live)
    return Truncation(DLSN(last + 1, 0, 0), gone) if gone else None
