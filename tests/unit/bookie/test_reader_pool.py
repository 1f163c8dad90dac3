"""The reader threads: results, errors, their number, the queue."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from bookie.reader_pool import ReaderPool


async def test_results_and_errors_come_back_to_whoever_asked() -> None:
    pool = ReaderPool(4)
    results: dict[int, int] = {}

    async def ask(number: int) -> None:
        results[number] = await pool.run(lambda: number * number)

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, number)
    assert results == {number: number * number for number in range(200)}
    with pytest.raises(OSError, match="this very one"):
        await pool.run(_raise, OSError("this very one"))
    assert 1 <= pool.threads_count <= 4
    assert "0 jobs" in repr(pool)


async def test_jobs_run_at_the_same_time_but_no_more_than_there_are_threads() -> None:
    pool = ReaderPool(3, queued_max=8)
    running, most = 0, 0
    lock, go = threading.Lock(), threading.Event()

    def job() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                go.set()
        assert go.wait(30)
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(pool.run, job)
        await trio.testing.wait_all_tasks_blocked()
        assert pool._unfinished <= 8, "who comes when the queue is full waits his turn"
    assert most == 3


async def test_a_cancelled_reader_in_line_asks_for_nothing() -> None:
    pool = ReaderPool(1, queued_max=1)
    go, asked = threading.Event(), []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, go.wait, 30)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01):
            await pool.run(asked.append, 1)
        go.set()
    assert await pool.run(lambda: "next") == "next"
    assert asked == []


async def test_a_place_goes_to_the_next_in_line_if_its_reader_is_cancelled_in_the_moment_it_comes() -> None:
    pool = ReaderPool(1, queued_max=1)
    go, asked = threading.Event(), []
    cancelled = trio.CancelScope()

    async def ask_in_vain() -> None:
        with cancelled:
            await pool.run(asked.append, "cancelled")

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.run, go.wait, 30)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask_in_vain)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(pool.run, asked.append, "next")
            await trio.testing.wait_all_tasks_blocked()
            wake = pool._wake

            def wake_and_cancel() -> None:
                wake()
                cancelled.cancel()

            pool._wake = wake_and_cancel  # type: ignore[method-assign]
            go.set()
    assert asked == ["next"]


async def test_idle_threads_end_and_new_ones_come() -> None:
    pool = ReaderPool(2, idle_s=0.001)
    for _ in range(5):
        assert await pool.run(lambda: 7) == 7
        while pool.threads_count:
            await trio.lowlevel.checkpoint()


def _raise(error: Exception) -> None:
    raise error
