"""An asyncio program in a process that can start no thread, from any start on: an error, and never a hang."""

# covers: dlog/aio/bridge.py

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from pathlib import Path

import pytest
import trio
from trio._core import _thread_cache

from dlog import aio
from dlog.aio import bridge

LIMIT_S = 30
STARTS = 6  # more than opening a writer and appending need


class NoThreads:
    """Refuses the starts of threads from one on."""

    def __init__(self, first: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen, self.refused = 0, range(first, first + count)
        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            self.seen += 1
            if self.seen - 1 in self.refused:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", started)
        # Without the idle threads of the tests before.
        monkeypatch.setattr(_thread_cache, "THREAD_CACHE", _thread_cache.ThreadCache())


async def use(directory: Path) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        async with aio.open_namespace(directory.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                await writer.append(b"one")
                await asyncio.sleep(0.05)
                await writer.append(b"two")
            async with namespace.open_reader("log", follow=False) as reader:
                return b" ".join([record.payload async for record in reader])


@pytest.mark.parametrize("first", range(STARTS))
def test_a_process_without_threads_gets_the_reason_and_may_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    with monkeypatch.context() as patched:
        NoThreads(first, 10**9, patched)
        try:
            found = asyncio.run(use(tmp_path / "log"))
        except RuntimeError as exc:
            found = str(exc).encode()
        assert found in (b"can't start new thread", b"one two")
    assert not bridge._bridges
    assert asyncio.run(use(tmp_path / "log")).endswith(b"one two")


@pytest.mark.parametrize("first", range(1, STARTS))
def test_one_thread_that_cannot_be_started_stops_no_guest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    waits = asyncio.Event()

    async def wait_in_trio() -> None:
        await trio.sleep(0.05)
        waits.set()

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            made = await bridge.Bridge.acquire()
            try:
                for _ in range(STARTS):
                    await made.run(wait_in_trio)
                    await asyncio.sleep(0.01)
            finally:
                await made.release()

    NoThreads(first, 3, monkeypatch)
    asyncio.run(main())
    assert waits.is_set()
    assert not bridge._bridges


def test_a_guest_run_does_not_begin_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await bridge.Bridge.acquire()
        assert not bridge._bridges
        threads.refused = range(0)
        made = await bridge.Bridge.acquire()
        await made.run(trio.sleep, 0)
        await made.release()

    threads = NoThreads(0, 10**9, monkeypatch)
    asyncio.run(main())


class Guest:
    """A guest run: it holds what makes its steps, as trio's does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.steps = bridge._Steps(loop)
        self.steps.soon(self.guest_tick)

    def guest_tick(self) -> None:
        raise AssertionError("the loop is closed")


def test_a_guest_run_is_freed_with_the_steps_of_a_loop_that_is_closed() -> None:
    loop = asyncio.new_event_loop()
    guest = weakref.ref(Guest(loop))
    gc.disable()
    try:
        assert guest() is not None
        loop.close()
        assert guest() is None, "else a later run in this thread would find this one"
    finally:
        gc.enable()
