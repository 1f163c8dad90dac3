"""Planning: splits a range of a stream into partitions, and bounds the range of a trigger.

Pure. Always: the parts of a range (start, end] are in order, cover it and do not overlap. A segment with an
unknown last entry is not cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs

from spark_integration.offsets import WHOLE_ENTRY, Position


@attrs.frozen
class Extent:
    """A log segment's number and its last entry that may hold records; -1 if that is unknown."""

    segment: int
    last_entry: int


@attrs.frozen
class Range:
    """The records after ``start`` and through ``end``."""

    start: Position
    end: Position

    @property
    def is_empty(self) -> bool:
        return self.end <= self.start


def pieces(whole: Range, extents: Sequence[Extent]) -> list[tuple[int, int, int]]:
    """(segment, first entry, last entry) of each segment in the range, in stream order."""
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
    """Split a range at entry boundaries into at most ``parts`` ranges with about equally many entries."""
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
    """The end of the next trigger: after about ``entries_max`` entries, at most ``whole.end``."""
    if entries_max is None or whole.is_empty:
        return max(whole.end, whole.start)
    touched = pieces(whole, extents)
    if sum(last - first + 1 for _, first, last in touched) <= entries_max:
        return whole.end
    return min(_nth_entry(touched, entries_max), whole.end)


def _nth_entry(touched: Sequence[tuple[int, int, int]], count: int) -> Position:
    """The position after ``count`` >= 1 entries of the touched segments."""
    for segment, first, last in touched:
        here = last - first + 1
        if count <= here:
            return Position(segment, first + count - 1, WHOLE_ENTRY)
        count -= here
    raise AssertionError("the range has fewer entries than the caller counted")
