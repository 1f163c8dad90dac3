"""The moves after which the bookies of a cluster are about equally full.

A bookie is as full as the metadata say: the bytes of the replicas that they place on it, divided by the size
of its disks. The space that a bookie reports is late by a day or more, because it keeps a replica that has
left it until its garbage collection and a compaction. A plan from that would move the same bytes twice. So
the reported space only limits the bookies that get replicas.

Inside: the choice of the moves, as a pure function. Not inside: reading metadata and disks (``survey``),
copying (``balance``), the rules of placement (``placing``).
Always: all replicas that a ledger has on a bookie move together, to one bookie, because only then does the
old bookie delete them; no replica moves to a bookie that the ledger names, or twice; a bookie gets replicas
only if it is writable, and keeps ``FREE_SHARE_MIN`` of its disks free; every move makes the shares more
equal, so that a plan has an end; there is no move in a cluster whose shares are equal enough.

Source: our own; docs/running.md.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs

FREE_SHARE_MIN = 0.1  # of a bookie's disks; at 0.05 a bookie becomes read-only by itself
WITHIN = 0.05  # of the mean: between the fullest and the emptiest bookie


@attrs.frozen
class BookieUse:
    """A registered bookie, before the moves."""

    bookie: str
    capacity_bytes: int
    free_bytes: int  # as the bookie reports them
    is_writable: bool
    other_bytes: int = 0  # of replicas that cannot move, such as those of open ledgers


@attrs.frozen
class Segment:
    """The part of a ledger that one ensemble holds."""

    first_entry: int
    bookies: tuple[str, ...]
    replica_bytes: int  # on each of them


@attrs.frozen
class ClosedLedger:
    """A ledger whose replicas may move."""

    ledger_id: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]


@attrs.frozen
class Move:
    """One replica of a segment goes from a bookie to another one."""

    ledger_id: int
    first_entry: int
    source: str
    target: str
    size_bytes: int


@attrs.frozen
class Plan:
    """The moves in their order, and the bytes of each bookie by the metadata before and after them."""

    moves: tuple[Move, ...]
    before: Mapping[str, int] = attrs.field(hash=False)
    after: Mapping[str, int] = attrs.field(hash=False)
    uses: tuple[BookieUse, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes that are copied."""
        return sum(move.size_bytes for move in self.moves)


MayMove = Callable[[ClosedLedger, Sequence[str], Sequence[str]], bool]
"""Whether an ensemble of the ledger may become this other one, by the policy of placement."""


class _Unit(NamedTuple):
    """All replicas of one ledger on one bookie; the smaller ones first."""

    size_bytes: int
    number: int  # of the ledger


def plan_moves(
    uses: Sequence[BookieUse],
    ledgers: Sequence[ClosedLedger],
    may_move: MayMove,
    *,
    within: float = WITHIN,
) -> Plan:
    """Choose the moves; no more bytes than the shares need, where the sizes and the policy allow that.

    Args:
        uses: All registered bookies; the ledgers name no other one.
        within: The plan is complete if the fullest and the emptiest share differ by this part of the mean.
    """
    planner = _Planner(uses, ledgers, may_move, within)
    before = dict(planner.stored)
    planner.move_surplus()
    planner.even_out()
    return Plan(tuple(planner.moves), before, dict(planner.stored), tuple(uses))


class _Planner:
    def __init__(
        self, uses: Sequence[BookieUse], ledgers: Sequence[ClosedLedger], may_move: MayMove, within: float
    ) -> None:
        self.moves: list[Move] = []
        self.stored = {use.bookie: use.other_bytes for use in uses}
        self._capacity = {use.bookie: max(1, use.capacity_bytes) for use in uses}
        self._room = {
            use.bookie: use.free_bytes - int(FREE_SHARE_MIN * use.capacity_bytes)
            for use in uses
            if use.is_writable
        }
        self._ledgers, self._may_move = ledgers, may_move
        self._ensembles = [[segment.bookies for segment in ledger.segments] for ledger in ledgers]
        self._named = [{one for each in ledger.segments for one in each.bookies} for ledger in ledgers]
        self._units: dict[str, list[_Unit]] = {use.bookie: [] for use in uses}
        for index, ledger in enumerate(ledgers):
            for bookie in self._named[index]:
                size = sum(each.replica_bytes for each in ledger.segments if bookie in each.bookies)
                self.stored[bookie] += size
                if size:
                    self._units[bookie].append(_Unit(size, index))
        for units in self._units.values():
            units.sort()
        self._level = sum(self.stored.values()) / sum(self._capacity.values()) if uses else 0.0
        self._tolerance = within * self._level

    def _share(self, bookie: str) -> float:
        return self.stored[bookie] / self._capacity[bookie]

    def _surplus(self, bookie: str) -> float:
        """The bytes above the mean; below zero if the bookie has less."""
        return self.stored[bookie] - self._level * self._capacity[bookie]

    def _is_even(self) -> bool:
        shares = [self._share(bookie) for bookie in self.stored]
        return not shares or max(shares) - min(shares) <= self._tolerance

    def move_surplus(self) -> None:
        """Move large units from above the mean to below it, none across it: no byte moves in vain."""
        if self._is_even():
            return
        for source in sorted(self.stored, key=self._share, reverse=True):
            for unit in reversed(self._units[source].copy()):
                if self._surplus(source) <= 0:
                    break
                if unit.size_bytes > self._surplus(source):
                    continue
                for target in self._emptiest():
                    if self._surplus(target) + unit.size_bytes > 0:
                        continue
                    if self._is_allowed(unit, source, target):
                        self._move(unit, source, target)
                        break

    def even_out(self) -> None:
        """Move single units between bookies that are still too far apart, also across the mean."""
        while not self._is_even() and (best := self._best_move()) is not None:
            self._move(*best)

    def _best_move(self) -> tuple[_Unit, str, str] | None:
        """A move between the two bookies that are the farthest apart and have one."""
        pairs = sorted(
            (
                (self._share(source) - self._share(target), source, target)
                for source, target in itertools.product(self.stored, self._room)
                if self._share(source) - self._share(target) > self._tolerance
            ),
            reverse=True,
        )
        for apart, source, target in pairs:
            # The sum of the squares of the shares, weighted by the capacities, falls by this many bytes times
            # ``2 * apart - bytes * weight``: the most at half of the bytes at which it would rise again.
            weight = 1 / self._capacity[source] + 1 / self._capacity[target]
            for unit in self._about(source, apart / weight):
                if unit.size_bytes * weight < 2 * apart and self._is_allowed(unit, source, target):
                    return unit, source, target
        return None

    def _about(self, source: str, wanted_bytes: float) -> Iterator[_Unit]:
        """The units of a bookie, those of about this size first."""
        units = self._units[source]
        above = bisect.bisect_left(units, wanted_bytes, key=lambda unit: unit.size_bytes)
        below = above - 1
        while below >= 0 or above < len(units):
            is_above = below < 0 or (
                above < len(units)
                and units[above].size_bytes - wanted_bytes < wanted_bytes - units[below].size_bytes
            )
            yield units[above if is_above else below]
            above, below = (above + 1, below) if is_above else (above, below - 1)

    def _emptiest(self) -> list[str]:
        return sorted(self._room, key=self._share)

    def _is_allowed(self, unit: _Unit, source: str, target: str) -> bool:
        if target in self._named[unit.number] or unit.size_bytes > self._room[target]:
            return False
        ledger = self._ledgers[unit.number]
        return all(
            self._may_move(ledger, before, _replaced(before, source, target))
            for before in self._ensembles[unit.number]
            if source in before
        )

    def _move(self, unit: _Unit, source: str, target: str) -> None:
        ensembles = self._ensembles[unit.number]
        ledger = self._ledgers[unit.number]
        for number, before in enumerate(ensembles):
            if source in before:
                segment = ledger.segments[number]
                self.moves.append(
                    Move(ledger.ledger_id, segment.first_entry, source, target, segment.replica_bytes)
                )
                ensembles[number] = _replaced(before, source, target)
        # Both names stay: a bookie that gave a replica away still has its copy, and no replica moves twice.
        self._named[unit.number].add(target)
        del self._units[source][bisect.bisect_left(self._units[source], unit)]
        self.stored[source] -= unit.size_bytes
        self.stored[target] += unit.size_bytes
        self._room[target] -= unit.size_bytes


def _replaced(bookies: tuple[str, ...], source: str, target: str) -> tuple[str, ...]:
    return tuple(target if bookie == source else bookie for bookie in bookies)
