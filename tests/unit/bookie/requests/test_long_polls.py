"""Long polls in masses: one task, bounded slices, budgets. An attack by one connection and by many."""

# covers: bookie/requests/lac_watch.py
# covers: bookie/requests/poll_replies.py

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bookie.requests.deferred import DeferredRequest, WokenPoll
from bookie.requests.in_progress import SHARE_MIN
from bookie.requests.lac_watch import WATCHERS_AT_ONCE_MAX, LacWatches
from bookie.requests.long_polls import REPLIES_MAX, SLICE_BYTES, SLICE_POLLS, LongPolls
from bookie.requests.turns import SLOW_FRAME_UNITS, STEP_UNITS, Turns
from ledger.codes import Operation
from ledger.wire.messages import IncomingRequest, ReadRequest


@attrs.define(eq=False)
class Replies:
    """Replies to long polls from memory, and counts them by step of the loop."""

    lac: int = -1
    size_bytes: int = 10
    needs_disk: bool = False
    woken: list[WokenPoll] = attrs.field(factory=list)
    in_step: int = 0
    most_in_step: int = 0
    is_final: bool = False  # a fenced ledger

    def is_due(self, request: ReadRequest) -> bool | None:
        if self.needs_disk:
            return None
        assert request.previous_lac is not None
        return self.lac > request.previous_lac

    def lac_to_wait_beyond(self, request: ReadRequest) -> int | None:
        return None if self.is_final else self.lac

    def reply_now(self, poll: WokenPoll) -> int | None:
        if self.needs_disk:
            return None
        self.woken.append(poll)
        self.in_step += 1
        self.most_in_step = max(self.most_in_step, self.in_step)
        return self.size_bytes


class StepCounter(trio.abc.Instrument):
    """Marks where a step of the loop begins."""

    def __init__(self, on_step: Callable[[], None]) -> None:
        self._on_step = on_step
        self.steps = 0

    def after_io_wait(self, timeout: float) -> None:
        self.steps += 1
        self._on_step()


def request(seen_lac: int = 0, *, ledger_id: int = 1, timeout_ms: int = 60_000) -> ReadRequest:
    return ReadRequest(ledger_id, -1, previous_lac=seen_lac, timeout_ms=timeout_ms, piggyback_entry=True)


def incoming(of: ReadRequest) -> IncomingRequest:
    return IncomingRequest(3, Operation.READ_ENTRY, of)


@attrs.define(eq=False)
class Connections:
    """The long polls of some connections, on the same ledgers."""

    nursery: trio.Nursery
    replies: Replies = attrs.field(factory=Replies)
    watches: LacWatches = attrs.field(factory=LacWatches)
    turns: Turns = attrs.field(factory=Turns)
    deferred: list[DeferredRequest] = attrs.field(factory=list)
    opened: list[LongPolls] = attrs.field(factory=list)

    def connect(self, long_polls_max: int = 10_000) -> LongPolls:
        polls = LongPolls(
            self.watches,
            self.turns,
            self.replies,
            self.deferred.append,
            lambda: 7,
            long_polls_max=long_polls_max,
        )
        self.opened.append(polls)
        self.nursery.start_soon(polls.run)
        return polls

    def poll(self, polls: LongPolls, seen_lac: int = 0, **more: int) -> bool:
        one = request(seen_lac, **more)
        return polls.add(incoming(one), one)


@pytest.fixture
async def connections(nursery: trio.Nursery) -> AsyncIterator[Connections]:
    made = Connections(nursery)
    counter = StepCounter(lambda: setattr(made.replies, "in_step", 0))
    trio.lowlevel.add_instrument(counter)
    yield made
    trio.lowlevel.remove_instrument(counter)
    nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_waking_ten_thousand_long_polls_of_one_connection_takes_many_small_steps(
    connections: Connections,
) -> None:
    polls = connections.connect()
    for _ in range(10_000):
        assert connections.poll(polls)
    await wait_all_tasks_blocked()
    assert (len(polls), connections.watches.long_polls) == (10_000, 10_000)
    tasks = trio.lowlevel.current_statistics().tasks_living
    connections.watches.lac_is(1, 1)
    assert connections.replies.woken == [], "the add that wakes them does not answer them"
    await wait_all_tasks_blocked()
    assert len(connections.replies.woken) == 10_000
    assert connections.replies.most_in_step <= SLICE_POLLS
    assert trio.lowlevel.current_statistics().tasks_living == tasks, "a long poll has no task"
    assert all(poll.updated_ms == 7 for poll in connections.replies.woken)
    assert (len(polls), connections.watches.long_polls, bool(connections.watches)) == (0, 0, False)


async def test_many_connections_together_wake_a_bounded_number_in_each_step(
    connections: Connections,
) -> None:
    for _ in range(40):
        polls = connections.connect()
        for _ in range(50):
            connections.poll(polls)
    await wait_all_tasks_blocked()
    connections.watches.lac_is(1, 1)
    await wait_all_tasks_blocked()
    assert len(connections.replies.woken) == 2000
    polls_max = STEP_UNITS // SLOW_FRAME_UNITS + SLICE_POLLS
    assert connections.replies.most_in_step <= polls_max <= 512, "about 10 ms of the loop"


async def test_large_entries_make_smaller_slices(connections: Connections) -> None:
    connections.replies.size_bytes = SLICE_BYTES // 2
    polls = connections.connect()
    for _ in range(50):
        connections.poll(polls)
    await wait_all_tasks_blocked()
    connections.watches.lac_is(1, 1)
    await wait_all_tasks_blocked()
    assert connections.replies.most_in_step <= 2


async def test_long_polls_beyond_the_budgets_are_refused_and_each_connection_has_some(
    connections: Connections,
) -> None:
    connections.watches.long_polls_max = 1000
    small, greedy, other = connections.connect(10), connections.connect(), connections.connect()
    assert [connections.poll(small) for _ in range(12)].count(True) == 10
    assert [connections.poll(greedy) for _ in range(1000)].count(True) == 495, "half of what is left"
    assert [connections.poll(other) for _ in range(1000)].count(True) == 247
    crowd = [connections.connect() for _ in range(20)]
    counts = [[connections.poll(polls) for _ in range(200)].count(True) for polls in crowd]
    assert min(counts) == SHARE_MIN
    await wait_all_tasks_blocked()
    greedy.close()
    assert connections.watches.long_polls == 10 + 247 + sum(counts)


async def test_only_long_polls_that_saw_less_are_woken_and_later_ones_are_not_missed(
    connections: Connections,
) -> None:
    polls = connections.connect()
    for seen_lac in (0, 5, 9):
        connections.poll(polls, seen_lac)
    await wait_all_tasks_blocked()
    connections.watches.lac_is(1, 1)
    connections.watches.lac_is(1, 6)  # before the first event is sorted out
    await wait_all_tasks_blocked()
    assert [poll.request.previous_lac for poll in connections.replies.woken] == [0, 5]
    connections.watches.lac_is(1, 10)
    await wait_all_tasks_blocked()
    assert [poll.request.previous_lac for poll in connections.replies.woken] == [0, 5, 9]


async def test_a_fence_or_a_deletion_wakes_all(connections: Connections) -> None:
    polls = connections.connect()
    for seen_lac in (0, 1 << 60):
        connections.poll(polls, seen_lac)
    connections.poll(polls, ledger_id=2)
    await wait_all_tasks_blocked()
    connections.watches.ledger_changed(1)
    await wait_all_tasks_blocked()
    assert [poll.request.ledger_id for poll in connections.replies.woken] == [1, 1]
    assert len(polls) == 1


async def test_each_long_poll_ends_at_its_own_time(
    autojump_clock: MockClock, connections: Connections
) -> None:
    polls = connections.connect()
    began_s = trio.current_time()
    for timeout_ms in (3000, 1000, 2000, 0, -5):
        connections.poll(polls, timeout_ms=timeout_ms)
    for seconds, answered in ((0.5, 2), (1.5, 3), (2.5, 4), (3.5, 5)):
        await trio.sleep(began_s + seconds - trio.current_time())
        assert len(connections.replies.woken) == answered
    assert all(poll.updated_ms is None for poll in connections.replies.woken)
    assert not connections.watches


@pytest.mark.slow
async def test_a_client_that_polls_for_days_leaves_nothing_behind(
    autojump_clock: MockClock, connections: Connections
) -> None:
    polls = connections.connect()
    connections.poll(polls, timeout_ms=3_600_000)
    for round_number in range(2000):
        connections.poll(polls, timeout_ms=10)
        connections.poll(polls, seen_lac=round_number, ledger_id=2, timeout_ms=3_000_000)
        await trio.sleep(0.02)
        connections.watches.lac_is(2, round_number + 1)
    await wait_all_tasks_blocked()
    assert len(connections.replies.woken) == 4000
    assert len(polls) == 1
    assert polls.kept_count < 200


async def test_what_the_disk_must_decide_is_handed_on_and_may_come_back(connections: Connections) -> None:
    polls = connections.connect()
    connections.replies.needs_disk = True
    one = request()
    assert polls.add(incoming(one), one)
    await wait_all_tasks_blocked()
    assert connections.deferred == [incoming(one)]
    assert len(polls) == 0
    polls.park(incoming(one), one)
    await wait_all_tasks_blocked()
    assert len(polls) == 1
    connections.watches.lac_is(1, 1)
    await wait_all_tasks_blocked()
    assert connections.deferred[1:] == [WokenPoll(incoming(one), one, 7)]
    assert len(polls) == 0


async def test_a_closed_connection_keeps_nothing(connections: Connections) -> None:
    polls = connections.connect()
    connections.poll(polls)
    await wait_all_tasks_blocked()
    connections.poll(polls)  # has arrived only
    polls.close()
    polls.park(incoming(request()), request())
    assert (len(polls), connections.watches.long_polls, bool(connections.watches)) == (0, 0, False)


# Long polls that go on after a reply


def going_on(replies_max: int, seen_lac: int = 0, *, timeout_ms: int = 60_000) -> ReadRequest:
    return ReadRequest(1, -1, previous_lac=seen_lac, timeout_ms=timeout_ms, replies_max=replies_max)


async def grow(connections: Connections, lac: int) -> None:
    connections.replies.lac = lac
    connections.watches.lac_is(1, lac)
    await wait_all_tasks_blocked()


def more_follow(connections: Connections) -> list[bool]:
    return [poll.more_follow for poll in connections.replies.woken]


async def test_a_long_poll_may_get_a_reply_for_each_growth_of_the_lac(connections: Connections) -> None:
    polls = connections.connect()
    polls.add(incoming(one := going_on(3)), one)
    await wait_all_tasks_blocked()
    for lac, replies in ((1, 1), (1, 1), (2, 2), (5, 3), (6, 3)):
        await grow(connections, lac)
        assert len(connections.replies.woken) == replies
    assert more_follow(connections) == [True, True, False]
    assert (len(polls), connections.watches.long_polls, bool(connections.watches)) == (0, 0, False)


async def test_a_lac_that_is_greater_already_is_the_first_reply(connections: Connections) -> None:
    polls = connections.connect()
    connections.replies.lac = 4
    polls.add(incoming(one := going_on(2)), one)
    await wait_all_tasks_blocked()
    assert more_follow(connections) == [True]
    await grow(connections, 4)
    assert len(polls) == 1
    await grow(connections, 5)
    assert more_follow(connections) == [True, False]


async def test_no_client_chooses_more_replies_than_the_bookie_allows(connections: Connections) -> None:
    polls = connections.connect()
    polls.add(incoming(one := going_on(1 << 30)), one)
    for lac in range(1, REPLIES_MAX + 10):
        await grow(connections, lac)
    assert more_follow(connections) == [True] * (REPLIES_MAX - 1) + [False]
    assert len(polls) == 0


async def test_the_reply_about_a_fence_or_the_disk_is_the_last_one(connections: Connections) -> None:
    polls = connections.connect()
    polls.add(incoming(one := going_on(9)), one)
    await grow(connections, 1)
    connections.replies.is_final = True
    connections.watches.ledger_changed(1)
    await wait_all_tasks_blocked()
    assert (more_follow(connections), len(polls)) == ([True, False], 0)
    connections.replies.is_final = False
    polls.add(incoming(again := going_on(9, seen_lac=1)), again)
    await wait_all_tasks_blocked()
    connections.watches.ledger_changed(1)  # the LAC has not grown
    await wait_all_tasks_blocked()
    assert (more_follow(connections), len(polls)) == ([True, False, False], 0)
    polls.add(incoming(one), one)
    await wait_all_tasks_blocked()
    connections.replies.needs_disk = True
    await grow(connections, 2)
    assert connections.deferred == [WokenPoll(incoming(one), one, 7)]
    assert len(polls) == 0


async def test_each_reply_gives_the_long_poll_its_whole_time_again(
    autojump_clock: MockClock, connections: Connections
) -> None:
    polls = connections.connect()
    polls.add(incoming(one := going_on(9, timeout_ms=1000)), one)
    for lac in range(1, 4):
        await trio.sleep(0.9)
        await grow(connections, lac)
    await trio.sleep(0.9)
    assert more_follow(connections) == [True, True, True]
    await trio.sleep(0.2)
    assert (more_follow(connections), len(polls)) == ([True, True, True, False], 0)


@pytest.mark.parametrize("count", [WATCHERS_AT_ONCE_MAX, WATCHERS_AT_ONCE_MAX + 1])
async def test_few_connections_are_answered_in_the_step_of_the_event_and_many_by_their_tasks(
    connections: Connections, count: int
) -> None:
    for _ in range(count):
        connections.poll(connections.connect())
    await wait_all_tasks_blocked()
    connections.replies.lac = 5
    connections.watches.lac_is(1, 5)
    assert len(connections.replies.woken) == (count if count <= WATCHERS_AT_ONCE_MAX else 0)
    await wait_all_tasks_blocked()
    assert len(connections.replies.woken) == count


async def test_no_long_poll_is_answered_in_the_step_of_the_event_when_the_turn_is_spent(
    connections: Connections,
) -> None:
    connections.poll(connections.connect())
    await wait_all_tasks_blocked()
    connections.replies.lac = 5
    connections.turns.charge(STEP_UNITS)
    connections.watches.lac_is(1, 5)
    assert not connections.replies.woken
    await wait_all_tasks_blocked()
    assert len(connections.replies.woken) == 1


async def test_a_first_long_poll_whose_time_is_over_before_the_clock_is_watched_gets_its_reply(
    connections: Connections, mock_clock: MockClock
) -> None:
    """The loop of a busy bookie may come to the task of the clock only then."""

    class Busy(LongPolls):
        def _move_alarm(self) -> None:
            super()._move_alarm()
            mock_clock.jump(0.01)

    polls = Busy(
        connections.watches,
        connections.turns,
        connections.replies,
        connections.deferred.append,
        lambda: 7,
        long_polls_max=10,
    )
    assert connections.poll(polls, timeout_ms=1)
    connections.nursery.start_soon(polls.run)
    await wait_all_tasks_blocked()
    assert len(connections.replies.woken) == 1
