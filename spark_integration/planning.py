"""Planning: the sizes of ranges, the end of a trigger, and ranges of many streams as partitions.

Inside: pieces of segments, the shares of streams in a limited trigger, the search for a cut, splitting and
merging. Not inside: reading sizes (``measuring``).
Pure. Always: the parts of a range (start, end] are in order, cover it and do not overlap. A segment with an
unknown last entry is not cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from spark_integration.offsets import WHOLE_ENTRY, Position


@attrs.frozen
class Extent:
    """A log segment's number, its last entry that may hold records, and its number of records.

    They are -1 and None if unknown.
    """

    segment: int
    last_entry: int
    records: int | None = None


@attrs.frozen
class Range:
    """The records after ``start`` and through ``end``."""

    start: Position
    end: Position

    @property
    def is_empty(self) -> bool:
        return self.end <= self.start


@attrs.frozen
class StreamRange:
    """A range of one stream."""

    stream: str
    range: Range


@attrs.frozen
class Amount:
    """How much a range holds."""

    records: int = 0
    size_bytes: int = 0  # stored
    entries: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.records + other.records, self.size_bytes + other.size_bytes, self.entries + other.entries
        )


@attrs.frozen
class Piece:
    """Consecutive entries of one segment, and how much they hold."""

    segment: int
    first: int
    last: int
    amount: Amount
    before: int = 0  # records of its first entry that are before the range; ``amount`` has them not


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


def total(measured: Sequence[Piece]) -> Amount:
    """The sum of all pieces."""
    return sum((piece.amount for piece in measured), Amount())


def shares(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """A limit divided over streams in proportion to their backlogs, at least 1 for each.

    The sum is the limit, or the number of streams if there are more of them.
    """
    whole = sum(backlogs.values())
    if whole <= limit:
        return dict(backlogs)
    found = {stream: max(1, limit * backlog // whole) for stream, backlog in backlogs.items()}
    rest = limit - sum(found.values())
    for stream in sorted(found, key=lambda each: (-backlogs[each], each)):
        less, more = 1 - found[stream], max(0, backlogs[stream] - found[stream])
        change = min(max(rest, less), more)
        found[stream] += change
        rest -= change
    return found


class CutSearch:
    """Finds the last entry of a piece at which a cumulative amount is at most a target.

    The caller measures ``next_entry`` until it is None. Guesses go by interpolation, then by halves, so the
    number of measurements is bounded by the logarithm of the number of entries.
    """

    GUESSES_MAX = 3  # by interpolation

    def __init__(self, first: int, last: int, amount: int, target: int) -> None:
        """``amount`` is that of all entries from first to last."""
        self._low, self._high = first - 1, last  # known to be at most the target; the greatest candidate
        self._low_amount, self._high_amount = 0, amount
        self._target = target
        self._guesses = 0
        if amount <= target:
            self._low = last

    @property
    def next_entry(self) -> int | None:
        """The entry to measure next; None when the search is over."""
        if self._low >= self._high:
            return None
        width = self._high - self._low
        if self._guesses < self.GUESSES_MAX:
            rise = max(1, self._high_amount - self._low_amount)
            guess = self._low + width * (self._target - self._low_amount) // rise
        else:
            guess = self._low + (width + 1) // 2
        return min(max(guess, self._low + 1), self._high)

    def measured(self, amount: int) -> None:
        """``amount`` is that from the first entry through ``next_entry``."""
        entry = self.next_entry
        assert entry is not None  # the range is not empty
        self._guesses += 1
        if amount <= self._target:
            self._low, self._low_amount = entry, amount
        else:
            self._high, self._high_amount = entry - 1, amount

    @property
    def found(self) -> int:
        """The last entry within the target; the one before the first if there is none."""
        return self._low


def split(ranges: Sequence[tuple[StreamRange, Sequence[Piece]]], parts: int) -> list[list[StreamRange]]:
    """Cut ranges with their pieces into at most ``parts`` partitions with about equally many bytes.

    The ranges are laid one after the other, and the line is cut at entry boundaries. So a partition holds a
    part of a long range, or several short ones.
    """
    line = [(each, list(measured)) for each, measured in ranges if not each.range.is_empty]
    weights = [sum(_weight(piece) for piece in measured) or 1 for _, measured in line]
    whole, laid, number = sum(weights), 0, 1
    partitions: list[list[StreamRange]] = [[]]
    for (each, measured), weight in zip(line, weights, strict=True):
        start, end, at = each.range.start, each.range.end, laid
        for piece in measured:
            heavy = _weight(piece)
            while number < parts and whole * number < (at + heavy) * parts:
                count = piece.last - piece.first + 1
                # The entries of the piece that come before the cut, rounded down.
                before = max(0, (whole * number - at * parts) * count // (heavy * parts))
                cut = Position(piece.segment, piece.first + before - 1, WHOLE_ENTRY)
                if start < cut < end:
                    partitions[-1].append(StreamRange(each.stream, Range(start, cut)))
                    start = cut
                partitions.append([])
                number += 1
            at += heavy
        partitions[-1].append(StreamRange(each.stream, Range(start, end)))
        laid += weight
    return [partition for partition in partitions if partition]


def _weight(piece: Piece) -> int:
    return max(piece.amount.size_bytes, piece.last - piece.first + 1)
