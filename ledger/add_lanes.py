"""Adds in flight on one connection: counted by ledger, never listed.

A *lane* is what one sink has in flight for one ledger. Answers to adds say ledger and entry and nothing else,
so if two sinks add to one ledger (an old handle and a recovery in one process, say), one could take the
answer to the other's add for its own. Therefore each ledger has one lane at a time; the next sink's adds wait
until the lane is empty, also when its sink has been forgotten.

Inside: whose turn it is, how many answers are due, who has to be told of a loss, noticing a silent bookie.
Not inside: which entries are unanswered (the sink knows), bytes (``connection``), clocks.
Always: an answer goes to the sink whose add it answers, or to nobody; a sink is told of a loss exactly once.

Source: PerChannelBookieClient.java, EntryCompletionKey.java; reference section 2.7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs

from ledger.errors import WireError
from ledger.outbox import Outbox
from ledger.wire.codes import Code

SILENT_TICKS = 4  # of a quarter of the add timeout each


class AddSink(Protocol):
    """Who wants to know what became of adds. Called on the loop; must not block or raise."""

    def adds_answered(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        """The bookie answered these adds, all with ``code``."""

    def bookie_lost(self, bookie: str, cause: Exception) -> None:
        """The connection is gone: every add of this ledger unanswered there may or may not be stored."""


@attrs.frozen
class _WaitingAdds:
    sink: AddSink
    frames: list[bytes]
    size_bytes: int
    entry_ids: Sequence[int]


class AddLane:
    """The adds of one ledger and one sink in flight, and those that wait for their turn."""

    __slots__ = ("answered", "ledger_id", "marks", "posted", "sink", "waiting")

    def __init__(self, ledger_id: int, sink: AddSink) -> None:
        self.ledger_id = ledger_id
        self.sink: AddSink | None = sink  # None: forgotten; the answers still due are dropped
        self.posted = 0
        self.answered = 0
        self.marks: deque[tuple[int, int]] = deque()  # (tick, posted by then), of those not yet answered
        self.waiting: deque[_WaitingAdds] = deque()


@attrs.frozen
class AddsAnswered:
    """A run of answers; for ``lane.sink``, unless that has become None meanwhile."""

    lane: AddLane
    code: Code
    entry_ids: Sequence[int]


class AddLanes:
    """All lanes of one connection."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._lanes: dict[int, AddLane] = {}
        self._told: list[AddLane] = []  # lanes in what was given out last and is perhaps being told now
        self._ticks = 0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    @property
    def unanswered(self) -> int:
        """How many answers are due."""
        return sum(lane.posted - lane.answered for lane in self._lanes.values())

    def post(self, ledger_id: int, frames: list[bytes], entry_ids: Sequence[int], sink: AddSink) -> None:
        """Send these adds when it is the sink's turn. ``frames`` together are the adds of ``entry_ids``."""
        size_bytes = sum(map(len, frames))
        lane = self._lanes.get(ledger_id)
        if lane is None:
            lane = self._lanes[ledger_id] = AddLane(ledger_id, sink)
        elif lane.sink is not sink or lane.waiting:
            lane.waiting.append(_WaitingAdds(sink, frames, size_bytes, entry_ids))
            return
        lane.posted += len(entry_ids)
        self._outbox.put(frames, size_bytes)

    def take_answers(self, ledger_id: int, code: Code, entry_ids: Sequence[int]) -> AddsAnswered:
        """A run of answers for one ledger came in.

        Raises:
            WireError: More answers than adds. Nothing of the run was taken.
        """
        lane = self._lanes.get(ledger_id)
        if lane is None or len(entry_ids) > lane.posted - lane.answered:
            raise WireError(f"{len(entry_ids)} answers to adds of ledger {ledger_id}, more than were sent")
        lane.answered += len(entry_ids)
        while lane.marks and lane.marks[0][1] <= lane.answered:
            lane.marks.popleft()
        if lane.answered == lane.posted:
            del self._lanes[ledger_id]
            if lane.waiting:
                self._next_turn(lane)
        return AddsAnswered(lane, code, entry_ids)

    def _next_turn(self, before: AddLane) -> None:
        lane = AddLane(before.ledger_id, before.waiting[0].sink)
        self._lanes[lane.ledger_id] = lane
        lane.waiting, before.waiting = before.waiting, deque()
        while lane.waiting and lane.waiting[0].sink is lane.sink:
            adds = lane.waiting.popleft()
            lane.posted += len(adds.entry_ids)
            self._outbox.put(adds.frames, adds.size_bytes)

    def telling(self, lanes: list[AddLane]) -> None:
        """The sinks of these lanes are about to be called; ``forget`` reaches them until then."""
        self._told = lanes

    def forget(self, ledger_id: int, whose: Callable[[AddSink], bool]) -> None:
        """No more answers for this ledger to the sinks that ``whose`` picks, from this moment on."""
        lane = self._lanes.get(ledger_id)
        if lane is not None:
            lane.waiting = deque(adds for adds in lane.waiting if not whose(adds.sink))  # never sent
        for one in [lane, *self._told] if lane is not None else self._told:
            if one.ledger_id == ledger_id and one.sink is not None and whose(one.sink):
                one.sink = None

    def tick(self) -> str | None:
        """Called every quarter of the add timeout while connected; says what is overdue, if anything.

        A bookie is silent if it has not given, within ``SILENT_TICKS``, as many answers as were due before.
        Ticks instead of seconds, so that a loop that stood still does not take its own silence for the
        bookie's.
        """
        self._ticks += 1
        for lane in self._lanes.values():
            if lane.marks and self._ticks - lane.marks[0][0] >= SILENT_TICKS:
                return f"{lane.marks[0][1] - lane.answered} adds of ledger {lane.ledger_id} are unanswered"
            if not lane.marks or lane.marks[-1][1] < lane.posted:
                lane.marks.append((self._ticks, lane.posted))
        return None

    def lose(self) -> list[AddLane]:
        """The connection is no more; a lane for each ledger and sink that has to be told."""
        lost: list[AddLane] = []
        for lane in self._lanes.values():
            lost += _one_for_each_sink(
                [lane, *(AddLane(lane.ledger_id, adds.sink) for adds in lane.waiting)],
            )
        self._lanes = {}
        self._told = lost
        return lost


def _one_for_each_sink(lanes: Iterable[AddLane]) -> list[AddLane]:
    seen: dict[int, AddLane] = {}
    for lane in lanes:
        if lane.sink is not None:
            seen.setdefault(id(lane.sink), lane)
    return list(seen.values())
