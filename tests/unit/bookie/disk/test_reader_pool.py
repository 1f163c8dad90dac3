"""The reader threads: results, errors, the number of threads, the queue."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from bookie.disk.reader_pool import ReaderPool


async def test_each_task_gets_its_own_result_or_error() -> None:
    pool = ReaderPool(4)
    results: dict[int, int] = {}

    async def compute(number: int) -> None:
        results[number] = await pool.run(lambda: number * number)

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(compute, number)
    assert results == {number: number * number for number in range(200)}
    with pytest.raises(OSError, match="the same error"):
        await pool.run(_raise, OSError("the same error"))
    assert 1 <= pool.threads_count <= 4
    assert "0 jobs" in repr(pool)


async def test_as_many_jobs_run_concurrently_as_there_are_threads() -> None:
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
        assert pool._unfinished <= 8, "a task that finds the queue full waits"
    assert most == 3


async def test_the_job_of_a_task_cancelled_while_it_waits_for_the_queue_never_runs() -> None:
    pool = ReaderPool(1, queued_max=1)
    go = threading.Event()
    ran: list[int] = []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run, go.wait, 30)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01):
            await pool.run(ran.append, 1)
        go.set()
    assert await pool.run(lambda: "next") == "next"
    assert ran == []


async def test_a_free_place_goes_to_the_next_task_if_the_woken_task_is_cancelled_at_that_moment() -> None:
    pool = ReaderPool(1, queued_max=1)
    go = threading.Event()
    ran: list[str] = []
    cancelled = trio.CancelScope()

    async def run_cancelled() -> None:
        with cancelled:
            await pool.run(ran.append, "cancelled")

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.run, go.wait, 30)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(run_cancelled)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(pool.run, ran.append, "next")
            await trio.testing.wait_all_tasks_blocked()
            wake = pool._wake

            def wake_and_cancel() -> None:
                wake()
                cancelled.cancel()

            pool._wake = wake_and_cancel  # type: ignore[method-assign]
            go.set()
    assert ran == ["next"]


async def test_idle_threads_end_and_new_ones_start() -> None:
    pool = ReaderPool(2, idle_s=0.001)
    for _ in range(5):
        assert await pool.run(lambda: 7) == 7
        while pool.threads_count:
            await trio.lowlevel.checkpoint()


def _raise(error: Exception) -> None:
    raise error
