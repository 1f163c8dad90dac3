"""How much ranges hold, found by reading single entries; and where a limited trigger ends.

Inside: totals of entries, remembered because entries never change; pieces with amounts; cuts at a number of
bytes between entries, and at a number of records also inside an entry, which is then read. Not inside: the
arithmetic (``planning``), reading records (``client``).
Always: at most ``SEGMENTS_MEASURED`` segments of a range are opened, so the cost of planning is bounded; a
limited trigger ends within these segments. A limit of records is exact, unless an entry cannot be read: then
reading its range says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

from dlog import EntryTotals
from spark_integration.offsets import WHOLE_ENTRY, Position
from spark_integration.planning import Amount, CutSearch, Extent, Piece, Range, pieces, total

SEGMENTS_MEASURED = 16
REMEMBERED_MAX = 10_000

Entry = tuple[int, int]  # segment, entry


class Measurable(Protocol):
    """The log in the form that this module needs."""

    def entry_totals(self, entries: Iterable[Entry]) -> list[EntryTotals | None]:
        """Records and bytes of segments up to and including an entry; None for an entry that is missing."""

    def slots(self, segment: int, entry: int) -> list[int]:
        """The slots of an entry's records; none if they cannot be read any more."""


class Measures:
    """The totals of one log's entries."""

    def __init__(self, log: Measurable) -> None:
        self._log = log
        self._known: dict[Entry, EntryTotals | None] = {}
        self._slots: dict[Entry, list[int]] = {}

    def backlog(self, whole: Range, extents: Sequence[Extent]) -> list[Piece]:
        """As ``range``, but without the records of the first entry that are before the range."""
        start = whole.start
        if start.slot == WHOLE_ENTRY:
            return self.range(whole, extents)
        left = self._slots_after(start, start.segment, start.entry)
        if not left:  # all of the entry is read
            start = Position(start.segment, start.entry, WHOLE_ENTRY)
            return [] if start >= whole.end else self.range(Range(start, whole.end), extents)
        found = self.range(whole, extents)
        before = len(self._slots[start.segment, start.entry]) - len(left)
        if found and (found[0].segment, found[0].first) == (start.segment, start.entry):
            found[0] = attrs.evolve(found[0], before=before, amount=found[0].amount + Amount(records=-before))
        return found

    def range(self, whole: Range, extents: Sequence[Extent]) -> list[Piece]:
        """The pieces of a range, with exact amounts of the first segments and estimates of the others."""
        found = pieces(whole, extents)
        near = found[:SEGMENTS_MEASURED]
        self._load(
            {(segment, last) for segment, _, last in near}
            | {(segment, first - 1) for segment, first, _ in near if first}
        )
        measured = [
            Piece(segment, first, last, self._amount(segment, first, last)) for segment, first, last in near
        ]
        known = total(measured)
        records_of = {extent.segment: extent.records for extent in extents}
        for segment, first, last in found[SEGMENTS_MEASURED:]:
            entries = last - first + 1
            records = records_of[segment]
            if records is None:
                records = known.records * entries // max(1, known.entries)
            size = known.size_bytes * entries // max(1, known.entries)
            measured.append(Piece(segment, first, last, Amount(records, size, entries)))
        return measured

    def limited_end(self, whole: Range, measured: Sequence[Piece], most: Amount) -> Position:
        """The end of the part of a range that holds at most this much.

        It holds at least one record, and of bytes at least one entry, which cannot be divided by bytes.

        Args:
            measured: The ``backlog`` of the range, of which the first ``SEGMENTS_MEASURED`` pieces count.
        """
        left = most
        end = whole.end
        for index, piece in enumerate(measured):
            if index == SEGMENTS_MEASURED:
                break
            last = self._last_within(piece, left)
            if index == 0:
                last = max(last, piece.first)
            found = self._through_records(whole.start, piece, last, left.records)
            if found.entry < piece.first:  # nothing of this piece
                if index == 0:  # its records are unknown: the query continues, and reading says why
                    end = Position(piece.segment, piece.first, WHOLE_ENTRY)
                break
            if found != Position(piece.segment, piece.last, WHOLE_ENTRY):
                end = found
                break
            amount = piece.amount
            left = Amount(
                left.records - amount.records,
                left.size_bytes - amount.size_bytes,
                left.entries - amount.entries,
            )
            end = found
        else:
            return whole.end
        return min(end, whole.end)

    def last_txid(self, position: Position) -> int | None:
        """The transaction id at a position; None if there is no such entry."""
        if position.entry < 0:
            return None
        self._load({(position.segment, position.entry)})
        found = self._known.get((position.segment, position.entry))
        return None if found is None else found.last_txid

    def _last_within(self, piece: Piece, most: Amount) -> int:
        """The last entry of a piece up to which its bytes and entries are at most this many, or none is."""
        last = min(piece.last, piece.first + max(0, most.entries) - 1)
        if last < piece.first:
            return last
        return self._cut(piece, last, "size_bytes", most.size_bytes)

    def _cut(self, piece: Piece, last: int, name: str, target: int) -> int:
        search = CutSearch(piece.first, last, self._part(piece, last, name), max(0, target))
        while (entry := search.next_entry) is not None:
            search.measured(self._part(piece, entry, name))
        return search.found

    def _through_records(self, start: Position, piece: Piece, last: int, records: int) -> Position:
        """The position in a piece, at most the end of entry ``last``, through which there are this many."""
        whole = last if last < piece.first else self._cut(piece, last, "records", records)
        if whole < last:
            left = records - (self._part(piece, whole, "records") if whole >= piece.first else 0)
            slots = self._slots_after(start, piece.segment, whole + 1)
            if 0 < left <= len(slots):
                return Position(piece.segment, whole + 1, slots[left - 1])
        return Position(piece.segment, whole, WHOLE_ENTRY)

    def _slots_after(self, start: Position, segment: int, entry: int) -> list[int]:
        if (segment, entry) not in self._slots:
            if len(self._slots) > REMEMBERED_MAX:
                self._slots.clear()
            self._slots[segment, entry] = self._log.slots(segment, entry)
        return [slot for slot in self._slots[segment, entry] if Position(segment, entry, slot) > start]

    def _part(self, piece: Piece, last: int, name: str) -> int:
        if last == piece.last:
            return int(getattr(piece.amount, name))
        self._load({(piece.segment, last)})
        part = self._amount(piece.segment, piece.first, last)
        return part.records - piece.before if name == "records" else int(getattr(part, name))

    def _amount(self, segment: int, first: int, last: int) -> Amount:
        through = self._known.get((segment, last))
        before = self._known.get((segment, first - 1)) if first else None
        if through is None:  # not visible to this client yet; its size decides nothing but the order of work
            return Amount(entries=last - first + 1)
        records, size = through.records, through.size_bytes
        if before is not None:
            records, size = records - before.records, size - before.size_bytes
        return Amount(max(0, records), max(0, size), last - first + 1)

    def _load(self, wanted: set[Entry]) -> None:
        missing = sorted(wanted - self._known.keys())
        if not missing:
            return
        if len(self._known) > REMEMBERED_MAX:
            self._known.clear()
            missing = sorted(wanted)
        totals = self._log.entry_totals(missing)
        # An entry that is not visible yet may be so later, so only what was found is remembered.
        self._known.update((entry, found) for entry, found in zip(missing, totals, strict=True) if found)
