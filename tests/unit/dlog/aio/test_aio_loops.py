"""Loops of asyncio side by side, in several threads, and one after another: nothing of one is left behind."""

# covers: dlog/aio/bridge.py

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bookie.disk import real_disk
from dlog import aio
from dlog.aio import bridge

pytestmark = pytest.mark.slow
DEADLINE_S = 120
THREADS = 4
ROUNDS = 4  # in each thread
MEMORY_MAX = 1 << 20  # of the last rounds of all threads; a namespace with its guest run takes more


def use(directory: Path, together: threading.Barrier | None = None) -> weakref.ref[object]:
    """Write and read in a loop of its own, which it returns."""

    async def main() -> weakref.ref[object]:
        async with asyncio.timeout(DEADLINE_S):
            async with aio.open_namespace(directory.as_uri()) as namespace:
                async with namespace.open_writer("log", create=True) as writer:
                    if together is not None:
                        await asyncio.to_thread(together.wait, DEADLINE_S)
                    dlsns = await asyncio.gather(*(writer.append(b"%d" % each) for each in range(50)))
                async with namespace.open_reader("log", follow=False) as reader:
                    found = [each.dlsn async for each in reader]
            assert found[-50:] == sorted(dlsns), "each loop has a directory of its own"
            return weakref.ref(asyncio.get_running_loop())

    return asyncio.run(main())


def left_behind() -> tuple[set[str], int]:
    """The threads that are not trio's cached ones, and the open descriptors."""
    threads = {each.name for each in threading.enumerate() if not each.name.startswith("Trio thread")}
    return threads, len(os.listdir("/proc/self/fd"))


def what_is_left(loops: list[weakref.ref[object]], before: tuple[set[str], int]) -> list[str]:
    """What the loops have left behind. Others may have ended since: of tests before this one."""
    threads, descriptors = left_behind()
    left = [f"{loop()!r}" for loop in loops if loop() is not None]
    left += [f"bridge of {loop!r}" for loop in list(bridge._bridges)]
    left += sorted(threads - before[0])
    return left + ([] if descriptors <= before[1] else [f"{descriptors - before[1]} descriptors"])


def kept_bytes() -> int:
    """The traced bytes, without the buffers that threads share: more reads at once make another."""
    return tracemalloc.get_traced_memory()[0] - sum(map(len, real_disk._scratch))


def in_threads(path: Path, together: threading.Barrier | None) -> list[weakref.ref[object]]:
    with ThreadPoolExecutor(THREADS) as pool:
        runs = [pool.submit(use, path / str(each), together) for each in range(THREADS)]
        return [each.result(DEADLINE_S) for each in runs]


def test_loops_in_threads_side_by_side_and_one_after_another_leave_nothing(tmp_path: Path) -> None:
    together = threading.Barrier(THREADS)  # each has its writer open before one of them appends
    loops = in_threads(tmp_path, together)  # what is imported, and made once
    gc.collect()
    before = left_behind()
    tracemalloc.start()
    try:
        for turn in range(ROUNDS):
            loops += in_threads(tmp_path, together)
            gc.collect()
            if turn == 1:
                began_bytes = kept_bytes()
        until_s = time.monotonic() + DEADLINE_S
        while (left := what_is_left(loops, before)) and time.monotonic() < until_s:
            time.sleep(0.05)  # threads of trio that are about to end
            gc.collect()
        ended_bytes = kept_bytes()
    finally:
        tracemalloc.stop()
    assert left == []
    assert ended_bytes - began_bytes < MEMORY_MAX


def test_a_loop_that_ends_leaves_those_of_other_threads_alone(tmp_path: Path) -> None:
    other_ends, has_ended = threading.Event(), threading.Event()

    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            aio.open_namespace(tmp_path.as_uri()) as namespace,
            namespace.open_writer("log", create=True) as writer,
        ):
            await writer.append(b"0")
            other_ends.set()
            await asyncio.to_thread(has_ended.wait, DEADLINE_S)
            await writer.append(b"1")

    def other() -> None:
        assert other_ends.wait(DEADLINE_S)
        use(tmp_path / "other")
        has_ended.set()

    thread = threading.Thread(target=other)
    thread.start()
    asyncio.run(main())
    thread.join(DEADLINE_S)
    assert has_ended.is_set()


@pytest.mark.parametrize("times", [1, 3])
def test_a_loop_that_is_closed_closes_what_the_program_left_open(tmp_path: Path, times: int) -> None:
    """Without ``asyncio.run``, and without ``shutdown_asyncgens``."""
    uri, opened = tmp_path.as_uri(), []

    async def leave_open() -> None:
        namespace = await aio.open_namespace(uri).__aenter__()
        # At once: the loop before has left no lock.
        writer = await namespace.open_writer("log", create=True, lock_timeout_s=0).__aenter__()
        opened.append((namespace, writer))  # or they are closed as what was dropped
        await writer.append(b"appended")
        for _ in range(10):
            writer.submit(b"submitted")

    before = left_behind()
    loops: list[weakref.ref[object]] = []
    for _ in range(times):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave_open())
        loop.close()
        loops.append(weakref.ref(loop))
    del loop
    opened.clear()
    gc.collect()
    assert what_is_left(loops, before) == []

    async def read() -> list[bytes]:
        async with aio.open_namespace(uri) as namespace, namespace.open_reader("log", follow=False) as reader:
            return [record.payload async for record in reader]

    assert asyncio.run(read()) == [b"appended", *[b"submitted"] * 10] * times
