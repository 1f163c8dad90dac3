"""Objects of asyncio that were entered by hand and dropped: warned of, closed, and nothing is lost."""

# covers: dlog/aio/bridge.py
# covers: dlog/aio/face.py

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import aio
from tests.places import ROOT

pytestmark = pytest.mark.slow
DEADLINE_S = 120
Opening = Callable[[aio.Namespace], AbstractAsyncContextManager[Any]]

OPENED: dict[str, Opening] = {
    "reader": lambda ns: ns.open_reader("orders"),
    "writer": lambda ns: ns.open_writer("orders"),
    "sharded reader": lambda ns: aio.open_sharded_reader(ns, "events"),
    "sharded writer": lambda ns: aio.open_sharded_writer(ns, "events"),
    "write-ahead log": lambda ns: aio.open_wal(ns, apply=len),
    "group member": lambda ns: aio.join_group(ns, "group", ["orders"]),
}


@contextmanager
def warned() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings in this block. They refer to the objects that were dropped."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    asyncio.run(limited())


def run_in(tmp_path: Path, main: Callable[[aio.Namespace], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with aio.open_namespace(tmp_path.as_uri()) as namespace:
            await namespace.create_log("orders")
            await aio.create_sharded_log(namespace, "events", 2)
            await main(namespace)

    run(opened)


@pytest.mark.parametrize("kind", OPENED)
def test_what_was_entered_by_hand_and_dropped_is_freed_warned_of_and_closed(
    tmp_path: Path, kind: str
) -> None:
    async def main(namespace: aio.Namespace) -> None:
        opened = await OPENED[kind](namespace).__aenter__()
        text, freed, held, here = repr(opened), weakref.ref(opened), opened._held, id(opened)
        with warned() as told:
            del opened  # no cycle refers to it, so it goes at once
        assert [(each.category, str(each.message)) for each in told] == [
            (ResourceWarning, f"unclosed {text}")
        ]
        assert id(told[0].source) == here, "tracemalloc shows where that was made"
        told.clear()
        assert freed() is None
        await held._ended
        async with OPENED[kind](namespace):  # a lock that is still held would be waited for, and refused
            pass

    run_in(tmp_path, main)


@pytest.mark.parametrize("kind", OPENED)
def test_what_is_closed_or_in_a_block_is_not_warned_of(tmp_path: Path, kind: str) -> None:
    async def main(namespace: aio.Namespace) -> None:
        with warned() as told:
            async with OPENED[kind](namespace):
                gc.collect()
                assert len(namespace._bridge.held) == 2, "it is open, though nobody took its value"
            opening = OPENED[kind](namespace)
            opened = await opening.__aenter__()
            await opening.__aexit__(None, None, None)
            del opened, opening
            opened = await OPENED[kind](namespace).__aenter__()
            if hasattr(opened, "aclose"):
                await opened.aclose()
                assert len(namespace._bridge.held) == 1, "and the namespace"
                del opened
            gc.collect()
            assert told == []
            opened = None

    run_in(tmp_path, main)


def test_a_dropped_stack_drops_what_it_holds(tmp_path: Path) -> None:
    async def main(namespace: aio.Namespace) -> None:
        stack = AsyncExitStack()
        writer = await stack.enter_async_context(namespace.open_writer("orders"))
        held = writer._held
        assert held is not None
        del writer
        gc.collect()
        assert not held.is_released, "the stack refers to it"
        with warned() as told:
            del stack
        assert len(told) == 1
        await held._ended

    run_in(tmp_path, main)


def test_records_of_a_dropped_writer_get_their_outcomes(tmp_path: Path) -> None:
    async def main(namespace: aio.Namespace) -> None:
        writer = await namespace.open_writer("orders").__aenter__()
        pending = [writer.submit(b"%d" % number) for number in range(1000)]
        with warned() as told:
            del writer
        assert len(told) == 1
        dlsns = [await each for each in pending]
        async with namespace.open_reader("orders", follow=False) as reader:
            found = [(each.dlsn, each.payload) async for each in reader]
        assert found == [(dlsn, b"%d" % number) for number, dlsn in enumerate(dlsns)]

    run_in(tmp_path, main)


def test_a_dropped_namespace_ends_its_guest_run_after_its_writer(tmp_path: Path) -> None:
    async def main() -> None:
        namespace = await aio.open_namespace(tmp_path.as_uri()).__aenter__()
        writer = await namespace.open_writer("orders", create=True).__aenter__()
        pending, bridge = writer.submit(b"kept"), namespace._bridge
        with warned() as told:
            del namespace
            assert told == [], "the writer is used"
            del writer
            told.clear()  # the writer's, which refers to the namespace
        assert len(told) == 1
        await pending
        await bridge._ended
        assert bridge._nursery is None
        async with (
            aio.open_namespace(tmp_path.as_uri()) as again,
            again.open_reader("orders", follow=False) as reader,
        ):
            assert [each.payload async for each in reader] == [b"kept"]

    run(main)


@pytest.mark.parametrize(
    "use", [lambda ns: ns.cursors("orders"), lambda ns: ns.properties], ids=["called", "part"]
)
def test_what_is_used_keeps_its_namespace_open(tmp_path: Path, use: Callable[[aio.Namespace], Any]) -> None:
    async def main() -> None:
        namespace = await aio.open_namespace(tmp_path.as_uri()).__aenter__()
        alive, used, bridge = weakref.ref(namespace), use(namespace), namespace._bridge
        del namespace
        gc.collect()
        assert alive() is not None
        with warned() as told:
            del used
            gc.collect()
        assert len(told) == 1
        told.clear()
        assert alive() is None
        await bridge._ended
        assert bridge._nursery is None

    run(main)


def test_a_writer_dropped_in_another_thread_is_closed_in_its_loop(tmp_path: Path) -> None:
    async def main(namespace: aio.Namespace) -> None:
        kept = [await namespace.open_writer("orders").__aenter__()]
        held = kept[0]._held
        assert held is not None
        with warned() as told:
            thread = threading.Thread(target=kept.clear)
            thread.start()
            await asyncio.to_thread(thread.join, DEADLINE_S)
        assert len(told) == 1
        await held._ended
        async with namespace.open_writer("orders"):
            pass

    run_in(tmp_path, main)


def test_a_forked_child_neither_warns_nor_closes(tmp_path: Path) -> None:
    async def main(namespace: aio.Namespace) -> None:
        writer = await namespace.open_writer("orders").__aenter__()
        pid = os.fork()
        if pid == 0:
            with warned() as told:
                del writer
                gc.collect()
            os._exit(len(told))
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        await writer.append(b"1")
        await writer.aclose()

    run_in(tmp_path, main)


PROGRAM = """
import asyncio
import sys
import dlog.aio
async def opened():
    namespace = await dlog.aio.open_namespace(sys.argv[1]).__aenter__()
    return await namespace.open_writer("orders", create=True).__aenter__()
async def main():
    {writer} = await opened()
    for number in range(1000):
        {writer}.submit(b"%d" % number)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("writer", "is_dropped"), [("globals()['writer']", False), ("writer", True)], ids=["kept", "dropped"]
)
def test_what_a_program_leaves_open_is_closed_when_asyncio_run_ends(
    tmp_path: Path, writer: str, *, is_dropped: bool
) -> None:
    program = PROGRAM.format(writer=writer)
    command = [sys.executable, "-X", "dev", "-c", program, tmp_path.as_uri()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if "Warning: unclosed" in line]
    assert len(told) == 2 * is_dropped, done.stderr
    assert all("ResourceWarning: unclosed <asyncio " in line for line in told)
    with (
        dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace,
        namespace.open_writer("orders", lock_timeout_s=0),  # nothing holds the lock
        namespace.open_reader("orders", follow=False) as reader,
    ):
        assert [each.payload for each in reader] == [b"%d" % number for number in range(1000)]
