"""What a copy takes over besides records: properties, the seal, and cursors if they are wanted.

Always: a copy is sealed only when it has the last record of a sealed source; a cursor of the copy never goes
back; a log that is no copy is not touched. Each step may be repeated.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import attrs

import dlog
import dlog.blocking
from dlog.shards.layout import COUNT_KEY, HASH_KEY, STATE_KEY
from spark_integration.errors import PipelineError
from spark_integration.offsets import Position
from spark_integration.pipelines.copying.note import CopyNote, decode_note
from spark_integration.pipelines.places import Place
from spark_integration.pipelines.resuming import first_after

OWN = "dlog."  # properties of DLog itself: what was written to a log belongs to that log alone
LAYOUT = (COUNT_KEY, HASH_KEY, STATE_KEY)  # but the copies of shards are shards
LOCK_TIMEOUT_S = 10.0


@attrs.frozen(kw_only=True)
class StateCopy:
    """A log whose records are copied."""

    source: Place
    log: str
    target: Place
    into: str
    end: Position  # all records of the source through it are copied

    def take_over(self, *, cursors: bool) -> bool:
        """Make the copy like its source; return True if it is sealed.

        Raises:
            PipelineError: The log is no copy.
            dlog.DLogError: A step failed; the next run repeats it.
        """
        stored = self.target.call(lambda namespace: namespace.properties.get(self.into)).values
        there = self.target.call(lambda namespace: namespace.describe_log(self.into))
        note = decode_note(self.into, stored)
        if note is None and there.segments:
            raise not_a_copy(self.into, self.target)
        wanted = self.source.call(lambda namespace: namespace.properties.get(self.log)).values
        changes: dict[str, str | None] = {
            name: text
            for name, text in wanted.items()
            if (name in LAYOUT or not name.startswith(OWN)) and stored.get(name) != text
        }
        if changes:
            self.target.call(lambda namespace: namespace.properties.change(self.into, changes))
        if cursors and note is not None:
            self._take_cursors(note)
        if there.is_sealed:
            return True
        if not self._is_source_over():
            return False
        self.target.call(lambda namespace: namespace.seal_log(self.into, lock_timeout_s=LOCK_TIMEOUT_S))
        return True

    def _is_source_over(self) -> bool:
        """True if no record can follow those that are copied."""
        if not self.source.call(lambda namespace: namespace.describe_log(self.log)).is_sealed:
            return False
        return self.source.log(self.log).tail() <= self.end  # after the seal, so nothing comes after it

    def _take_cursors(self, note: CopyNote) -> None:
        copied_before = first_after(note.position)
        for cursor in self.source.call(lambda namespace: namespace.cursors(self.log).list()):
            start, left = cursor.position, 0
            if start < copied_before:
                left = self.source.call(
                    lambda namespace, start=start: namespace.count_records(  # type: ignore[misc]
                        self.log, start=start, end=copied_before
                    )
                )
            position = self.target.call(
                lambda namespace, left=left: place_of_record(  # type: ignore[misc]
                    namespace, self.into, max(0, note.records - left)
                )
            )
            if position is None:
                continue
            own = self.target.call(lambda namespace: namespace.cursors(self.into))
            before = own.get(cursor.name)
            if before is None or before.position < position:
                own.set(cursor.name, position)


def not_a_copy(into: str, target: Place) -> PipelineError:
    """The error for a log that has other records than those of a copy."""
    return PipelineError(
        f"log {into!r} in {target.uri} exists and is no copy; nothing was copied. Give the copies a prefix"
    )


def place_of_record(namespace: dlog.blocking.Namespace, log: str, number: int) -> dlog.DLSN | None:
    """The position of a record by its number in the log, from 0; the place after the last one.

    None if the log has no record. If the record is not in the log any more, the first one that is left.
    """
    description = namespace.describe_log(log)
    left = description.first_dlsn
    for segment in description.segments:
        first, count = segment.start_sequence_id, segment.record_count
        if left is None or first is None or not count or number >= first + count:
            continue
        if number < first:
            return max(left, dlog.DLSN(segment.segment_seqno, 0, 0))
        return _place_in(namespace, log, segment, number - first, left)
    last = description.last_dlsn
    return None if last is None else last.next_slot()


def _place_in(
    namespace: dlog.blocking.Namespace,
    log: str,
    segment: dlog.SegmentDescription,
    number: int,
    left: dlog.DLSN,
) -> dlog.DLSN:
    def through(entry: int) -> int:
        (totals,) = namespace.entry_totals(log, [(segment.segment_seqno, entry)])
        return 0 if totals is None else totals.records

    entry = bisect_right(range(segment.last_entry_id), number, key=through)
    before = through(entry - 1) if entry else 0
    # A large record begins in an entry before the one that it ends in.
    first = bisect_left(range(entry), before, key=through) + 1 if before else 0
    start = dlog.DLSN(segment.segment_seqno, first, 0)
    if start < left:  # records before it are truncated
        start = left
        before = namespace.count_records(log, start=dlog.DLSN(segment.segment_seqno, 0, 0), end=left)
    skipped = max(0, number - before)
    with namespace.open_reader(log, start=start, follow=False) as reader:
        while batch := reader.read_batch(skipped + 1):
            if skipped < len(batch):
                return batch.dlsn(skipped)
            skipped -= len(batch)
    return start
