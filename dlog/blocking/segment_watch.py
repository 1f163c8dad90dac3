"""The changes of a log's segments without ``async``: an iterator."""

from __future__ import annotations

from dlog.description import SegmentDescription
from dlog.read.segment_watch import SegmentChange
from dlog.read.segment_watch import SegmentWatch as TrioWatch
from ledger.runtime.tasks.blocking_face import HeldFace, forwarded
from ledger.runtime.tasks.face import Shown, attribute, shown


class SegmentWatch(HeldFace[TrioWatch]):
    """See ``dlog.SegmentWatch``: an iterator. Closed by ``close`` or the end of a ``with`` block."""

    log: Shown[str] = attribute("log", "The log's name.")
    segments: Shown[list[SegmentDescription]] = shown(TrioWatch.segments)

    next_change = forwarded(TrioWatch.next_change)

    def __iter__(self) -> SegmentWatch:
        return self

    def __next__(self) -> SegmentChange:
        return self.next_change()
