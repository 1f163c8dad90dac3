"""How much ranges hold, found by reading single entries; and where a limited trigger ends.

Inside: totals of entries, remembered because entries never change; pieces with amounts; cuts at a number of
records or bytes. Not inside: the arithmetic (``planning``), reading records (``client``).
Always: at most ``SEGMENTS_MEASURED`` segments of a range are opened, so the cost of planning is bounded; a
limited trigger ends within these segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

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


class Measures:
    """The totals of one log's entries."""

    def __init__(self, log: Measurable) -> None:
        self._log = log
        self._known: dict[Entry, EntryTotals | None] = {}

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
        """The end of the part of a range that holds at most this much, and at least one entry.

        Args:
            measured: The pieces of the range, of which the first ``SEGMENTS_MEASURED`` count.
        """
        left = most
        end = whole.end
        for index, piece in enumerate(measured):
            if index == SEGMENTS_MEASURED:
                break
            last = self._last_within(piece, left)
            if index == 0:
                last = max(last, piece.first)
            if last < piece.last:
                end = Position(piece.segment, last, WHOLE_ENTRY)
                break
            amount = piece.amount
            left = Amount(
                left.records - amount.records,
                left.size_bytes - amount.size_bytes,
                left.entries - amount.entries,
            )
            end = Position(piece.segment, piece.last, WHOLE_ENTRY)
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
        """The last entry of a piece up to which it holds at most this much; ``first - 1`` if none does."""
        last = min(piece.last, piece.first + max(0, most.entries) - 1)
        for name, target in (("records", most.records), ("size_bytes", most.size_bytes)):
            if last < piece.first:
                break
            search = CutSearch(piece.first, last, self._part(piece, last, name), max(0, target))
            while (entry := search.next_entry) is not None:
                search.measured(self._part(piece, entry, name))
            last = search.found
        return last

    def _part(self, piece: Piece, last: int, name: str) -> int:
        if last == piece.last:
            return int(getattr(piece.amount, name))
        self._load({(piece.segment, last)})
        return int(getattr(self._amount(piece.segment, piece.first, last), name))

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
