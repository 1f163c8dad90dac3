"""The changes of a log's segments for asyncio: an asynchronous iterator."""

from __future__ import annotations

from dlog.aio.face import Face, forwarded
from dlog.description import SegmentDescription
from dlog.read.segment_watch import SegmentChange
from dlog.read.segment_watch import SegmentWatch as TrioWatch
from ledger.runtime.tasks.face import Shown, attribute, shown


class SegmentWatch(Face[TrioWatch]):
    """See ``dlog.SegmentWatch``. Made by ``Namespace.watch_segments``."""

    log: Shown[str] = attribute("log", "The log's name.")
    segments: Shown[list[SegmentDescription]] = shown(TrioWatch.segments)

    next_change = forwarded(TrioWatch.next_change)

    def __aiter__(self) -> SegmentWatch:
        return self

    async def __anext__(self) -> SegmentChange:
        return await self.next_change()
