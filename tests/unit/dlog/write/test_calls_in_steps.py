"""Calls of a signal handler in the middle of a step of a writer, on trio and asyncio: they are refused.

A signal handler runs between two steps of the thread that it interrupts. Here a trace function does the same
at each line of the code that takes, sends and confirms a record, one line after the other.
"""

# covers: dlog/write/record_rooms.py
# covers: dlog/write/steps.py

from __future__ import annotations

import asyncio
import functools
import itertools
import linecache
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import dlog
import dlog.aio
import ledger
from namespace.dlsn import DLSN

pytestmark = pytest.mark.slow

# Packages whose lines are interrupted.
STEPS = tuple(str(Path(str(each.__file__)).parent / "write") for each in (dlog, ledger))
LIMIT_S = 120


class Interruption:
    """Calls a handler once, before the line of this number.

    Lines with ``try``, and those that set the mark of a step, do not count: CPython runs signal handlers at
    calls and loops, and these lines have none.
    """

    def __init__(self, line: int, handler: Callable[[], object]) -> None:
        self._line, self._handler = line, handler
        self.seen = 0
        self.refusal: RuntimeError | None = None

    @property
    def was_made(self) -> bool:
        return self.seen >= self._line

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._at_line if frame.f_code.co_filename.startswith(STEPS) else None

    def _at_line(self, frame: FrameType, event: str, arg: object) -> Any:
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event != "line" or ".in_step = " in source or source.strip() == "try:":
            return self._at_line
        self.seen += 1
        if self.seen == self._line:
            sys.settrace(None)
            try:
                self._handler()
            except RuntimeError as exc:
                self.refusal = exc
        return self._at_line

    @contextmanager
    def tracing(self) -> Iterator[None]:
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(None)


Submit = Callable[[bytes], Awaitable[DLSN]]


async def interrupt_each_line(
    submit: Submit, many: Callable[[list[bytes]], Awaitable[Any]] | None
) -> dict[DLSN, bytes]:
    """Submit a record, or append several, for each line; the handler submits another one.

    Return the durable records.
    """
    durable: dict[DLSN, bytes] = {}
    refused = 0
    for line in itertools.count(1):
        taken: list[Awaitable[DLSN]] = []

        def handle(taken: list[Awaitable[DLSN]] = taken) -> None:
            taken.append(submit(b"handler"))

        interruption = Interruption(line, handle)
        with interruption.tracing():
            if many is None:
                durable[await submit(b"call")] = b"call"
            else:
                durable.update(dict.fromkeys(await many([b"call", b"call"]), b"call"))
        for each in taken:
            durable[await each] = b"handler"
        if interruption.refusal is not None:
            refused += 1
            assert "in the middle of a step" in str(interruption.refusal)
        else:
            assert taken or not interruption.was_made
        if not interruption.was_made:
            assert 0 < refused < line, "some lines are within a step, others are not"
            return durable
    raise AssertionError("not reached")


def check(durable: dict[DLSN, bytes], found: list[dlog.Record]) -> None:
    """The log has what was acknowledged, each record once and where it was acknowledged."""
    assert [(record.dlsn, bytes(record.payload)) for record in found] == sorted(durable.items())


@pytest.mark.parametrize("is_batch", [False, True], ids=["submit", "append_many"])
async def test_a_handler_on_trio_submits_between_steps_and_is_refused_within_one(
    tmp_path: Path, is_batch: bool
) -> None:
    with trio.fail_after(LIMIT_S):
        async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                await writer.append(b"first")
                durable = await interrupt_each_line(writer.submit, writer.append_many if is_batch else None)
            async with namespace.open_reader("log", follow=False) as reader:
                found = [record async for record in reader]
    check(durable, found[1:])


@pytest.mark.parametrize("is_batch", [False, True], ids=["submit", "append_many"])
def test_a_handler_on_asyncio_submits_between_steps_and_is_refused_within_one(
    tmp_path: Path, is_batch: bool
) -> None:
    async def run() -> None:
        async with dlog.aio.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("log", create=True) as writer:
                await writer.append(b"first")
                durable = await interrupt_each_line(writer.submit, writer.append_many if is_batch else None)
            async with namespace.open_reader("log", follow=False) as reader:
                found = [record async for record in reader]
        check(durable, found[1:])

    asyncio.run(asyncio.wait_for(run(), LIMIT_S))


async def test_a_callback_of_a_record_submits_the_next_one(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        async with (
            dlog.open_namespace(tmp_path.as_uri()) as namespace,
            namespace.open_writer("log", create=True) as writer,
        ):
            given: list[Awaitable[DLSN]] = []
            is_done = trio.Event()

            def submit_next() -> None:
                if len(given) == 100:
                    is_done.set()
                    return
                pending = writer.submit(b"%d" % len(given))
                given.append(pending)
                pending.on_settled(submit_next)

            submit_next()
            await is_done.wait()
            assert len({await each for each in given}) == 100
            assert writer.bytes_in_flight == 0


async def test_append_after_takes_nothing_after_a_record_that_a_handler_submits(tmp_path: Path) -> None:
    async with (
        dlog.open_namespace(tmp_path.as_uri()) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        last = await writer.append(b"first")
        for line in itertools.count(1):
            taken: list[Awaitable[DLSN]] = []
            handle = functools.partial(lambda taken: taken.append(writer.submit(b"handler")), taken)
            interruption = Interruption(line, handle)
            before = last
            with interruption.tracing():
                try:
                    last = await writer.append_after(b"call", last)
                except dlog.PositionConflictError:
                    assert taken
            for each in taken:
                position = await each
                # The record of the call is the next one after ``before``, or it is not there.
                assert last == before or position > last
                last = max(last, position)
            if not interruption.was_made:
                break
        assert line > 10


async def test_a_handler_that_raises_within_a_step_stops_the_writer_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    def interrupt() -> None:
        raise TimeoutError("of an alarm")

    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        for line in itertools.count(1):
            log = f"log-{line}"
            durable: dict[DLSN, bytes] = {}
            interruption = Interruption(line, interrupt)
            was_raised = False
            async with namespace.open_writer(log, create=True) as writer:
                durable[await writer.append(b"first")] = b"first"
                pending = None
                with interruption.tracing():
                    try:
                        pending = writer.submit(b"call")
                    except TimeoutError:
                        was_raised = True
                sys.settrace(None)
                for each in [] if pending is None else [pending]:
                    durable[await each] = b"call"
                if writer.failure is None:
                    with trio.fail_after(LIMIT_S):
                        durable[await writer.append(b"last")] = b"last"
                else:
                    assert was_raised
                    assert "interrupted while it took a record: TimeoutError" in str(writer.failure)
                    await writer.reopen()
                    with suppress(dlog.LogWriteError):  # of the record whose call was interrupted
                        await writer.flush()
                    durable[await writer.append(b"again")] = b"again"
            async with namespace.open_reader(log, follow=False) as reader:
                found = {record.dlsn: bytes(record.payload) async for record in reader}
            assert durable.items() <= found.items()
            assert [value for value in found.values() if value != b"call"] == [
                value for value in durable.values() if value != b"call"
            ]
            if not interruption.was_made:
                assert line > 10
                return
