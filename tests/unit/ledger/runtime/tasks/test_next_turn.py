"""Calls of the next turn of the loop: after the present step, in order, without a wake-up by a socket."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledger.runtime.tasks.next_turn import call_next_turn


async def test_a_call_comes_after_the_present_step_once_and_in_order() -> None:
    made: list[int] = []
    for number in range(3):
        call_next_turn(lambda number=number: made.append(number))  # type: ignore[misc]
    assert made == []
    await wait_all_tasks_blocked()
    assert made == [0, 1, 2]
    call_next_turn(lambda: made.append(3))
    assert made == [0, 1, 2]
    await wait_all_tasks_blocked()
    assert made == [0, 1, 2, 3]


async def test_a_call_requested_by_a_call_comes_a_turn_later() -> None:
    made: list[str] = []
    turns: list[str] = []

    def first() -> None:
        made.append("first")
        call_next_turn(lambda: made.append("second"))
        turns.append(",".join(made))

    call_next_turn(first)
    await wait_all_tasks_blocked()
    assert (made, turns) == (["first", "second"], ["first"])


async def test_the_loop_is_not_woken_by_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def woken(*_: object) -> None:
        raise AssertionError("a system call for a call of the loop's own thread")

    made: list[int] = []
    call_next_turn(lambda: made.append(0))
    await wait_all_tasks_blocked()
    monkeypatch.setattr(trio.lowlevel.TrioToken, "run_sync_soon", woken)
    call_next_turn(lambda: made.append(1))
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    assert made == [0, 1]


def test_each_run_of_trio_has_its_own_calls_and_a_program_that_ends_makes_no_more() -> None:
    made: list[str] = []

    async def run(name: str) -> None:
        call_next_turn(lambda: made.append(name))
        await wait_all_tasks_blocked()
        call_next_turn(lambda: made.append(f"{name} at the end"))

    for name in ("a", "b"):
        trio.run(run, name)
    assert made[0] == "a"
    assert "b" in made
