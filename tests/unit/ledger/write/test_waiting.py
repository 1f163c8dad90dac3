from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st

from ledger.write.waiting import TICKS, Confirmations, Overdue


async def test_tasks_are_woken_in_the_order_of_their_entries() -> None:
    confirmations, woken = Confirmations(), list[int]()

    async def wait(entry_id: int) -> None:
        await confirmations.wait(entry_id)
        woken.append(entry_id)

    async with trio.open_nursery() as nursery:
        for entry_id in (3, 1, 2, 9):
            nursery.start_soon(wait, entry_id)
        await trio.testing.wait_all_tasks_blocked()
        confirmations.confirm(1)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == [1]
        confirmations.confirm(3)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(woken) == [1, 2, 3]
        confirmations.wake_all()
    assert woken[-1] == 9


async def test_cancelled_waits_leave_nothing_behind_and_the_others_are_woken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A caller that polls an idle ledger with a timeout must not fill memory."""
    confirmations, woken = Confirmations(), list[int]()

    async def wait(entry_id: int) -> None:
        await confirmations.wait(entry_id)
        woken.append(entry_id)

    async with trio.open_nursery() as nursery:
        for entry_id in range(10):
            nursery.start_soon(wait, entry_id)
        for number in range(1000):
            with trio.move_on_after(1):
                await confirmations.wait(number % 20)
        assert len(confirmations) <= 100
        confirmations.confirm(4)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(woken) == list(range(5))
        confirmations.confirm(100)
    assert sorted(woken) == list(range(10))
    assert len(confirmations) == 0


def test_an_unconfirmed_entry_is_overdue_after_all_ticks() -> None:
    overdue = Overdue()
    assert [overdue.tick(-1, 0) for _ in range(TICKS)] == [None] * TICKS
    assert overdue.tick(-1, 0) == 0


def test_a_writer_whose_entries_are_confirmed_in_time_is_never_overdue() -> None:
    overdue = Overdue()
    assert all(overdue.tick(number - 1, number + 10) is None for number in range(0, 300, 3) for _ in [0])
    idle = Overdue()
    assert all(idle.tick(5, 5) is None for _ in range(20))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_it_agrees_with_a_time_for_each_entry(steps: list[tuple[int, int]]) -> None:
    overdue, lac, pushed_at = Overdue(), -1, dict[int, int]()
    for now, (pushed, confirmed) in enumerate(steps):
        for _ in range(pushed):
            pushed_at[len(pushed_at)] = now
        lac = min(lac + confirmed, len(pushed_at) - 1)
        late = [entry_id for entry_id, at in pushed_at.items() if entry_id > lac and now - at >= TICKS]
        assert overdue.tick(lac, len(pushed_at) - 1) == min(late, default=None)
