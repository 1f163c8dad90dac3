from __future__ import annotations

import trio

from ledger.write.confirmations import Confirmations


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
