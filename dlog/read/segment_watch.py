"""Following the segments of a log: which appeared, was completed, was truncated or is gone.

Inside: the difference of two lists, the wait for the next list. Not inside: listing (``read_only_log``).
Always: a list is compared with the one before it in one step after the read, so a cancelled wait loses no
change; what happened between two lists comes as their difference.

Source: DistributedLog, LogSegmentListener.java, ZKLogSegmentMetadataStore.java (docs/stream-format.md 7.1).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from dlog.description import SegmentDescription
from ledger.pickling import ProcessBound
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment, TruncationStatus

LOOK_S = 60.0  # between two lists although no watch fired: a watch may be lost with its server

Look = Callable[[trio.Event], Awaitable[Sequence[LogSegment]]]
"""Lists the segments, and sets the event when the list changes."""


class SegmentChangeKind(enum.Enum):
    """The ways in which a list of segments changes."""

    APPEARED = "appeared"
    COMPLETED = "completed"
    TRUNCATED = "truncated"  # marked, in part or as a whole; its records are not read from the start any more
    DELETED = "deleted"


@attrs.frozen
class SegmentChange:
    """One change of one segment."""

    kind: SegmentChangeKind
    segment: SegmentDescription  # as it is now; as it was last, if it is deleted
    first_dlsn: DLSN  # the first position that is left in it


def segment_changes(before: Sequence[LogSegment], now: Sequence[LogSegment]) -> Iterator[SegmentChange]:
    """The changes from one list to another, by the segments' numbers."""
    old = {each.segment_seqno: each for each in before}
    new = {each.segment_seqno: each for each in now}
    for number in sorted(old.keys() | new.keys()):
        was, is_now = old.get(number), new.get(number)
        if is_now is None:
            assert was is not None  # the number is of one of the two lists
            yield _change(SegmentChangeKind.DELETED, was)
            continue
        if was is None:
            yield _change(SegmentChangeKind.APPEARED, is_now)
        if not is_now.in_progress and (was is None or was.in_progress):
            yield _change(SegmentChangeKind.COMPLETED, is_now)
        truncated = TruncationStatus.ACTIVE if was is None else was.truncation
        first = is_now.first_dlsn if was is None else was.min_active_dlsn
        if is_now.truncation is not truncated or is_now.min_active_dlsn > first:
            yield _change(SegmentChangeKind.TRUNCATED, is_now)


def _change(kind: SegmentChangeKind, segment: LogSegment) -> SegmentChange:
    return SegmentChange(kind, SegmentDescription.of(segment), segment.min_active_dlsn)


class SegmentWatch(ProcessBound):
    """An endless asynchronous iterator of ``SegmentChange``. Made by ``Namespace.watch_segments``.

    The next change raises as ``Namespace.segments`` does, such as ``LogNotFoundError`` once the log is
    deleted. A cancelled wait loses no change. One task waits at a time.
    """

    def __init__(self, log: str, look: Look, listed: Sequence[LogSegment], changed: trio.Event) -> None:
        """For ``open_segment_watch``."""
        self.log = log
        self._look, self._listed, self._changed = look, tuple(listed), changed
        self._reported: list[SegmentDescription] = [SegmentDescription.of(each) for each in listed]
        self._changes: deque[SegmentChange] = deque()

    def __repr__(self) -> str:
        return f"<SegmentWatch of {self.log!r}, {len(self._reported)} segments>"

    @property
    def segments(self) -> list[SegmentDescription]:
        """The segments after the changes that were returned so far, oldest first; at first, those that were
        there when the watch was opened."""
        return list(self._reported)

    def __aiter__(self) -> SegmentWatch:
        return self

    async def __anext__(self) -> SegmentChange:
        return await self.next_change()

    async def next_change(self) -> SegmentChange:
        """Wait for the next change, and return it."""
        while not self._changes:
            with trio.move_on_after(LOOK_S):
                await self._changed.wait()
            changed = trio.Event()
            listed = await self._look(changed)
            self._changes += segment_changes(self._listed, listed)
            self._listed, self._changed = tuple(listed), changed
        change = self._changes.popleft()
        self._reported = _after(self._reported, change)
        return change


def _after(segments: Sequence[SegmentDescription], change: SegmentChange) -> list[SegmentDescription]:
    others = [each for each in segments if each.segment_seqno != change.segment.segment_seqno]
    if change.kind is not SegmentChangeKind.DELETED:
        others.append(change.segment)
    return sorted(others, key=lambda each: each.segment_seqno)


@asynccontextmanager
async def open_segment_watch(log: str, look: Look) -> AsyncIterator[SegmentWatch]:
    """Watch a log's segments for the duration of the block."""
    changed = trio.Event()
    listed = await look(changed)
    yield SegmentWatch(log, look, listed, changed)
