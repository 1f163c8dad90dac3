"""Calls into a loop from other threads: each once, in order, and none is lost at the end of the loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.runtime.tasks.thread_calls import ThreadCalls, calls_of_this_run


@pytest.fixture(params=["eventfd", "pipe"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], ThreadCalls]:
    """Makes calls of a run, by each of the two ways to wake it."""
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    return ThreadCalls


async def test_the_calls_of_many_threads_are_made_on_the_loop_each_once_and_in_order(
    made: Callable[[], ThreadCalls],
) -> None:
    calls, loop = made(), threading.get_ident()
    seen: dict[int, list[int]] = {thread: [] for thread in range(4)}
    all_made = trio.Event()

    def note(thread: int, number: int) -> None:
        assert threading.get_ident() == loop
        seen[thread].append(number)
        if all(len(numbers) == 2000 for numbers in seen.values()):
            all_made.set()

    def request(thread: int) -> None:
        for number in range(2000):
            calls.call_soon(note, thread, number)

    threads = [threading.Thread(target=request, args=(thread,)) for thread in seen]
    for thread in threads:
        thread.start()
    with trio.fail_after(60):
        await all_made.wait()
    assert all(numbers == list(range(2000)) for numbers in seen.values())
    for thread in threads:
        thread.join()


async def test_a_call_may_request_another_one(made: Callable[[], ThreadCalls]) -> None:
    calls, done = made(), trio.Event()
    calls.call_soon(calls.call_soon, done.set)
    with trio.fail_after(60):
        await done.wait()


async def test_calls_that_come_together_wake_the_loop_once(
    made: Callable[[], ThreadCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, write = made(), os.write
    writes: list[bytes] = []
    seen: list[int] = []

    def noted(descriptor: int, data: bytes) -> int:
        if descriptor == calls._writing:
            writes.append(data)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", noted)
    for number in range(5):
        calls.call_soon(seen.append, number)
    await trio.testing.wait_all_tasks_blocked()
    assert (seen, len(writes)) == ([0, 1, 2, 3, 4], 1)
    calls.call_soon(seen.append, 5)
    await trio.testing.wait_all_tasks_blocked()
    assert (seen[5:], len(writes)) == ([5], 2)


async def test_a_caller_that_is_interrupted_keeps_no_other_from_waking_the_loop(
    made: Callable[[], ThreadCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, done = made(), trio.Event()
    seen: list[str] = []

    def interrupt(descriptor: int, data: bytes) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            calls.call_soon(seen.append, "interrupted")
    calls.call_soon(done.set)
    with trio.fail_after(60):
        await done.wait()
    assert seen == ["interrupted"]


def test_calls_before_the_end_of_the_run_are_made_and_later_ones_are_refused(
    made: Callable[[], ThreadCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    closed: list[int] = []
    close = os.close

    def noted(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    monkeypatch.setattr(os, "close", noted)

    async def main() -> ThreadCalls:
        calls = made()
        await trio.testing.wait_all_tasks_blocked()
        calls.call_soon(seen.append, "before the end")
        return calls

    calls = trio.run(main)
    assert seen == ["before the end"]
    with pytest.raises(trio.RunFinishedError):
        calls.call_soon(seen.append, "after the end")
    assert {calls._reading, calls._writing} <= set(closed)


def test_each_run_has_its_own_queue() -> None:
    async def main() -> ThreadCalls:
        assert calls_of_this_run() is calls_of_this_run()
        return calls_of_this_run()

    assert trio.run(main) is not trio.run(main)


async def test_a_call_that_raises_ends_neither_the_loop_nor_another_call(
    made: Callable[[], ThreadCalls],
) -> None:
    calls, before = made(), contained_failures["call of another thread"]
    seen: list[str] = []
    calls.call_soon(seen.append, "before")
    calls.call_soon(int, "none")
    calls.call_soon(seen.append, "together")
    await trio.testing.wait_all_tasks_blocked()
    calls.call_soon(seen.append, "later")
    await trio.testing.wait_all_tasks_blocked()
    assert seen == ["before", "together", "later"]
    assert contained_failures["call of another thread"] == before + 1
