"""What to read: cutting a range of a stream into partitions, and bounding a trigger.

Pure rules over segment extents. A range is (start, end]; its parts, in order, cover it once and without
overlap, whatever the segments are: where nothing is known of a segment it is simply not cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs

from spark_integration.offsets import WHOLE_ENTRY, Position


@attrs.frozen
class Extent:
    """A log segment's number and its last entry that may hold records, -1 if none is known."""

    segment: int
    last_entry: int


@attrs.frozen
class Range:
    """Records after ``start``, through ``end``."""

    start: Position
    end: Position

    @property
    def is_empty(self) -> bool:
        return self.end <= self.start


def pieces(whole: Range, extents: Sequence[Extent]) -> list[tuple[int, int, int]]:
    """(segment, first entry, last entry) of what the range touches, in stream order."""
    found = []
    for extent in extents:
        if extent.segment < whole.start.segment or extent.segment > whole.end.segment:
            continue
        first = 0
        if extent.segment == whole.start.segment:
            first = whole.start.entry + (1 if whole.start.slot == WHOLE_ENTRY else 0)
        last = extent.last_entry
        if extent.segment == whole.end.segment:
            last = whole.end.entry
        if first <= last:
            found.append((extent.segment, first, last))
    return found


def split(whole: Range, extents: Sequence[Extent], parts: int) -> list[Range]:
    """Cut a range at entry boundaries into at most ``parts`` ranges of about as many entries each."""
    if whole.is_empty:
        return []
    touched = pieces(whole, extents)
    entries = sum(last - first + 1 for _, first, last in touched)
    parts = max(1, min(parts, entries))
    cuts: list[Position] = []
    for number in range(1, parts):
        cut = _nth_entry(touched, entries * number // parts)
        if (cuts[-1] if cuts else whole.start) < cut < whole.end:
            cuts.append(cut)
    bounds = [whole.start, *cuts, whole.end]
    return [Range(start, end) for start, end in pairwise(bounds)]


def bounded_end(whole: Range, extents: Sequence[Extent], entries_max: int | None) -> Position:
    """The end of the next trigger: ``whole.end``, or sooner, after about ``entries_max`` entries."""
    if entries_max is None or whole.is_empty:
        return max(whole.end, whole.start)
    touched = pieces(whole, extents)
    if sum(last - first + 1 for _, first, last in touched) <= entries_max:
        return whole.end
    return min(_nth_entry(touched, entries_max), whole.end)


def _nth_entry(touched: Sequence[tuple[int, int, int]], count: int) -> Position:
    """The position after ``count`` >= 1 entries of what is touched."""
    for segment, first, last in touched:
        here = last - first + 1
        if count <= here:
            return Position(segment, first + count - 1, WHOLE_ENTRY)
        count -= here
    raise AssertionError("asked for more entries than there are")
