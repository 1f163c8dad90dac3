"""The long polls of one connection: waiting, timeouts, and replies in slices.

Inside: one task for all long polls of a connection, the order of their deadlines, which are ready. Not
inside: which reply a long poll gets (``poll_replies``), the number of slices in one step of the loop
(``turns``).
Always: each long poll gets one last reply, or its connection ends; one that asks for several gets the others
before it, each for a greater LAC than the one before, at most ``REPLIES_MAX`` in all; a long poll that waits
has no task, event or timer of its own; an event of a ledger marks its long polls as ready at once, and their
replies are made in slices; the first slice is made in the step of the event if few connections wait.

Source: BookKeeper, LongPollReadEntryProcessorV3.java; docs/protocol.md 9.4.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from bookie.errors import raise_error
from bookie.requests.deferred import WokenPoll
from bookie.requests.lac_watch import LacWatches
from bookie.requests.turns import SLOW_FRAME_UNITS, UNIT_BYTES, Turns
from ledger.wire.messages import IncomingRequest, ReadRequest

SLICE_POLLS = 64  # answered in one slice
SLICE_BYTES = 1 << 20  # of entries in the replies of one slice
TIMEOUT_MS_MAX = 3_600_000
REPLIES_MAX = 64  # to one long poll
_SORTED_FOR_ONE = 32  # long polls that are looked at, in the time that one reply takes
_STALE_MAX = 64  # deadlines of answered long polls, besides as many as there are waiting ones


class Replying(Protocol):
    """The part of ``PollReplies`` that long polls need."""

    def is_due(self, request: ReadRequest) -> bool | None: ...
    def lac_to_wait_beyond(self, request: ReadRequest) -> int | None: ...
    def reply_now(self, poll: WokenPoll) -> int | None: ...


@attrs.define(eq=False)
class _Waiting:
    incoming: IncomingRequest
    request: ReadRequest
    seen_lac: int
    replies_left: int
    began_s: float
    is_waiting: bool = True


@attrs.define(eq=False)
class _LedgerPolls:
    """The waiting long polls of one ledger."""

    polls: list[_Waiting] = attrs.field(factory=list)
    stale_count: int = 0  # of ``polls``, those that no longer wait
    least_lac: float = math.inf  # that one of them has seen
    known_lac: float = -math.inf  # of the last event; infinite: answer all
    event_ms: int | None = None  # of the first event that is not sorted out yet


class LongPolls:
    """See the module. On the loop."""

    def __init__(
        self,
        watches: LacWatches,
        turns: Turns,
        replies: Replying,
        defer: Callable[[WokenPoll | IncomingRequest], None],
        wall_ms: Callable[[], int],
        *,
        long_polls_max: int,
        on_fault: Callable[[Exception], None] = raise_error,
    ) -> None:
        """
        Args:
            on_fault: Called with an error in an event, which must not reach the connection that caused it.
            defer: Takes a long poll whose reply needs the disk.
            wall_ms: The date that the replies of woken long polls carry.
        """
        self._watches = watches
        self._turns = turns
        self._replies = replies
        self._defer = defer
        self._wall_ms = wall_ms
        self._long_polls_max = long_polls_max
        self._on_fault = on_fault
        self._arrived: deque[tuple[IncomingRequest, ReadRequest]] = deque()
        self._ready: deque[tuple[_Waiting, int]] = deque()  # with the time of the event
        self._woken: deque[int] = deque()  # ledgers with an event
        self._ledgers: dict[int, _LedgerPolls] = {}
        self._deadlines: list[tuple[float, int, _Waiting]] = []
        self._sequence = 0
        self._waiting_count = 0
        self._count = 0  # arrived, waiting and ready
        self._idle: trio.lowlevel.Task | None = None  # while it sleeps
        self._alarm = trio.CancelScope()  # at the first deadline, or earlier
        self._is_closed = False
        self.is_running = False  # set by the caller that starts ``run``

    def __repr__(self) -> str:
        return f"<LongPolls, {self._count} of them {self._waiting_count} waiting>"

    def __len__(self) -> int:
        return self._count

    @property
    def kept_count(self) -> int:
        """How many objects are kept for long polls, those that are over included."""
        return len(self._deadlines) + sum(len(ledger.polls) for ledger in self._ledgers.values())

    def add(self, incoming: IncomingRequest, request: ReadRequest) -> bool:
        """Take a long poll. False if this connection, or all together, have too many."""
        if self._count >= min(self._long_polls_max, self._watches.share(self._count)):
            return False
        self._count_one()
        self._arrived.append((incoming, request))
        self._wake_task()
        return True

    def park(self, incoming: IncomingRequest, request: ReadRequest) -> None:
        """Wait for a ledger's LAC; ``add`` has handed the long poll on, because the disk had to be read."""
        if self._is_closed:
            return
        self._count_one()
        self._wait_for(incoming, request)
        self._wake_task()

    def lac_is(self, ledger_id: int, lac: float, *, now: bool = False) -> None:
        """An event of a watched ledger: its LAC. ``now``: answer at once, if nothing waits for a turn."""
        try:
            self._note_event(ledger_id, lac, now=now)
        except Exception as exc:  # the event comes from another connection, or from the garbage collection
            self._on_fault(exc)

    def _note_event(self, ledger_id: int, lac: float, *, now: bool) -> None:
        ledger = self._ledgers[ledger_id]
        if lac > ledger.known_lac:
            ledger.known_lac = lac
        if lac > ledger.least_lac and ledger.event_ms is None:
            ledger.event_ms = self._wall_ms()
            self._woken.append(ledger_id)
            if now and self._idle is not None and not self._turns.is_spent:
                self._turns.charge(self._slice())
                self._move_alarm()
                if not (self._woken or self._ready or self._arrived):
                    return
            self._wake_task()

    def ledger_changed(self, ledger_id: int) -> None:
        """An event of a watched ledger: it was fenced or deleted."""
        self.lac_is(ledger_id, math.inf)

    def close(self) -> None:
        """The connection has ended: forget all."""
        self._is_closed = True
        for ledger_id in self._ledgers:
            self._watches.forget(ledger_id, self)
        self._watches.long_polls -= self._count
        self._count = self._waiting_count = 0
        for held in (self._ledgers, self._deadlines, self._arrived, self._ready, self._woken):
            held.clear()

    async def run(self) -> None:
        """Answer long polls until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_clock)
            await self._answer_all()

    async def _answer_all(self) -> None:
        turns = self._turns
        is_first = True  # slice since the task slept
        while True:
            if not (self._arrived or self._ready or self._woken or self._due()):
                await self._sleep()
                is_first = True
                continue
            if turns.is_spent or not is_first:
                await turns.wait(
                    min(len(self._ready) + len(self._arrived) + 1, SLICE_POLLS) * SLOW_FRAME_UNITS
                )
            is_first = False
            turns.charge(self._slice())

    # One slice

    def _slice(self) -> int:
        """Do some of the work; return its units for ``Turns``."""
        left, left_bytes = SLICE_POLLS, SLICE_BYTES
        while left > 0 and left_bytes > 0:
            left -= 1
            if self._ready:
                waiting, now_ms = self._ready.popleft()
                left_bytes -= self._answer(waiting, now_ms)
            elif self._woken:
                left -= self._sort_out(self._woken.popleft())
            elif (due := self._due()) is not None:
                heapq.heappop(self._deadlines)
                self._leave(due)
                left_bytes -= self._finish(WokenPoll(due.incoming, due.request, None))  # the last reply
            elif self._arrived:
                left_bytes -= self._begin(*self._arrived.popleft())
            else:
                break
        return (SLICE_POLLS - left) * SLOW_FRAME_UNITS + (SLICE_BYTES - left_bytes) // UNIT_BYTES

    def _begin(self, incoming: IncomingRequest, request: ReadRequest) -> int:
        is_due = self._replies.is_due(request)
        if is_due is None:
            self._forget_one()
            self._defer(incoming)  # the LAC is on the disk only; ``park`` brings the long poll back
            return 0
        if is_due:
            assert request.previous_lac is not None  # ``is_long_poll`` takes no other
            left = _replies_of(request)
            now_s = trio.current_time()
            return self._answer(_Waiting(incoming, request, request.previous_lac, left, now_s), None)
        self._wait_for(incoming, request)
        return 0

    def _answer(self, waiting: _Waiting, now_ms: int | None) -> int:
        """Reply to a long poll whose LAC has grown; let it continue if it may have more replies."""
        incoming, request, left = waiting.incoming, waiting.request, waiting.replies_left - 1
        lac = self._replies.lac_to_wait_beyond(request) if left else None
        if lac is None or lac <= waiting.seen_lac:
            return self._finish(WokenPoll(incoming, request, now_ms))
        self._forget_one()
        size_bytes = self._replies.reply_now(WokenPoll(incoming, request, now_ms, more_follow=True))
        if size_bytes is None:
            self._defer(WokenPoll(incoming, request, now_ms))  # the last reply
            return 0
        # Nothing has changed since the reply: this is one step of the loop.
        self._count_one()
        self._wait_beyond(lac, incoming, request, left)
        return size_bytes

    def _finish(self, poll: WokenPoll) -> int:
        """Reply, now or through the disk; return the reply's bytes."""
        self._forget_one()
        size_bytes = self._replies.reply_now(poll)
        if size_bytes is None:
            self._defer(poll)
            return 0
        return size_bytes

    def _sort_out(self, ledger_id: int) -> int:
        """Move the ready ones of a ledger's long polls to ``_ready``; return what that costs, in polls."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.event_ms is None:
            return 0
        lac, now_ms, polls = ledger.known_lac, ledger.event_ms, ledger.polls
        ledger.polls, ledger.least_lac, ledger.stale_count, ledger.event_ms = [], math.inf, 0, None
        waits, now_s = self._watches.woken_waits, trio.current_time()
        for waiting in polls:
            if not waiting.is_waiting:
                continue  # its time was over
            if lac > waiting.seen_lac:
                waiting.is_waiting = False
                self._waiting_count -= 1
                waits.add(now_s - waiting.began_s, now_s)
                self._ready.append((waiting, now_ms))
            else:
                ledger.polls.append(waiting)
                ledger.least_lac = min(ledger.least_lac, waiting.seen_lac)
        self._drop_if_empty(ledger_id, ledger)
        self._drop_stale()
        return len(polls) // _SORTED_FOR_ONE

    # Waiting

    def _wait_for(self, incoming: IncomingRequest, request: ReadRequest) -> None:
        assert request.previous_lac is not None  # ``is_long_poll`` takes no other
        self._wait_beyond(request.previous_lac, incoming, request, _replies_of(request))

    def _wait_beyond(self, lac: int, incoming: IncomingRequest, request: ReadRequest, left: int) -> None:
        assert request.timeout_ms is not None  # ``is_long_poll`` and ``_long_poll`` let no other wait
        began_s = trio.current_time()
        waiting = _Waiting(incoming, request, lac, left, began_s)
        ledger = self._ledgers.get(request.ledger_id)
        if ledger is None:
            ledger = self._ledgers[request.ledger_id] = _LedgerPolls()
            self._watches.watch(request.ledger_id, self)
        ledger.polls.append(waiting)
        ledger.least_lac = min(ledger.least_lac, waiting.seen_lac)
        self._waiting_count += 1
        self._sequence += 1
        wait_s = min(max(request.timeout_ms, 0), TIMEOUT_MS_MAX) / 1000
        heapq.heappush(self._deadlines, (began_s + wait_s, self._sequence, waiting))

    def _leave(self, waiting: _Waiting) -> None:
        """The time of a long poll is over. Its ledger forgets those in masses: each costs the same."""
        waiting.is_waiting = False
        now_s = trio.current_time()
        self._watches.ended_waits.add(now_s - waiting.began_s, now_s)
        self._waiting_count -= 1
        ledger_id = waiting.request.ledger_id
        ledger = self._ledgers[ledger_id]
        ledger.stale_count += 1
        if 2 * ledger.stale_count > len(ledger.polls):
            ledger.polls = [one for one in ledger.polls if one.is_waiting]
            ledger.stale_count = 0
            self._drop_if_empty(ledger_id, ledger)

    def _drop_if_empty(self, ledger_id: int, ledger: _LedgerPolls) -> None:
        if not ledger.polls:
            del self._ledgers[ledger_id]
            self._watches.forget(ledger_id, self)

    def _due(self) -> _Waiting | None:
        """The long poll whose time is over."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].is_waiting:
            heapq.heappop(deadlines)
        if deadlines and deadlines[0][0] <= trio.current_time():
            return deadlines[0][2]
        return None

    def _drop_stale(self) -> None:
        if len(self._deadlines) > 2 * self._waiting_count + _STALE_MAX:
            self._deadlines = [one for one in self._deadlines if one[2].is_waiting]
            heapq.heapify(self._deadlines)

    def _count_one(self) -> None:
        self._count += 1
        self._watches.long_polls += 1

    def _forget_one(self) -> None:
        self._count -= 1
        self._watches.long_polls -= 1

    def _wake_task(self) -> None:
        task, self._idle = self._idle, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def _sleep(self) -> None:
        # At the end of a ledger it sleeps after each reply. A cancel scope for each sleep would cost as much
        # as the reply; so another task watches the clock. Its alarm is moved only if it would come too late.
        self._move_alarm()
        self._idle = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort_sleep)

    def _move_alarm(self) -> None:
        if self._deadlines and self._deadlines[0][0] < self._alarm.deadline:
            self._alarm.deadline = self._deadlines[0][0]

    def _abort_sleep(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _watch_clock(self) -> None:
        while True:
            # What is due already is answered before the next sleep, which sets the alarm. The first sleep may
            # have begun before this task, and a short time may be over since.
            self._wake_task()
            first = self._deadlines[0][0] if self._deadlines else math.inf
            with trio.CancelScope(deadline=first if first > trio.current_time() else math.inf) as self._alarm:
                await trio.sleep_forever()


def _replies_of(request: ReadRequest) -> int:
    return min(max(1, request.replies_max), REPLIES_MAX)
