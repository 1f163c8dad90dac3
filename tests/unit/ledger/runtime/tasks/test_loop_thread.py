"""Calls into a loop in another thread, interrupted at every step."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.errors import ClientClosedError
from ledger.runtime.tasks.loop_thread import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread("test", ClientClosedError, "closed")
    yield loop
    loop.stop()


async def answer(question: str) -> str:
    await trio.lowlevel.checkpoint()
    if question == "why?":
        raise LookupError(question)
    return question.upper()


def test_a_call_returns_or_raises_what_the_function_does(loop: LoopThread) -> None:
    assert loop.run(answer, "so") == "SO"
    with pytest.raises(LookupError):
        loop.run(answer, "why?")


@pytest.mark.parametrize("handed_over", [False, True])
def test_interrupted_while_it_hands_over_a_call_is_cancelled_and_the_next_one_works(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, *, handed_over: bool
) -> None:
    call_soon, ended = LoopThread.call_soon, threading.Event()

    async def wait_for_ever() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    def interrupted(loop: LoopThread, *args: Any) -> None:
        monkeypatch.setattr(LoopThread, "call_soon", call_soon)
        if handed_over:
            call_soon(loop, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopThread, "call_soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run(wait_for_ever)
    assert ended.is_set() == handed_over
    assert loop.run(answer, "so") == "SO"


def test_once_stopped_it_takes_no_call(loop: LoopThread) -> None:
    loop.stop()
    loop.stop()
    with pytest.raises(ClientClosedError):
        loop.run(answer, "so")


def test_it_does_not_call_itself(loop: LoopThread) -> None:
    async def nested() -> None:
        await trio.lowlevel.checkpoint()
        loop.run(answer, "so")

    with pytest.raises(RuntimeError, match="its own loop"):
        loop.run(nested)


class Outcome:
    """Settles when it is told to, or when it is made."""

    def __init__(self, *, is_settled: bool = False) -> None:
        self.is_settled = is_settled
        self.callbacks: list[Callable[[], None]] = []

    def on_settled(self, callback: Callable[[], None]) -> None:
        if self.is_settled:
            callback()
        else:
            self.callbacks.append(callback)


def test_what_began_in_the_loop_is_returned_once_it_is_settled(loop: LoopThread) -> None:
    outcome, settled = Outcome(), Outcome(is_settled=True)
    began, returned = threading.Event(), threading.Event()

    def begin() -> Outcome:
        began.set()
        return outcome

    def wait() -> None:
        assert loop.wait_settled(begin) is outcome
        returned.set()

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    assert loop.wait_settled(lambda: settled) is settled, "another thread's outcome is not waited for"
    assert not returned.is_set()
    loop.call_soon(lambda: outcome.callbacks[0]())
    thread.join()
    assert returned.is_set()


def test_what_cannot_begin_raises_or_returns_none(loop: LoopThread) -> None:
    def fail() -> Outcome:
        raise LookupError("why?")

    with pytest.raises(LookupError):
        loop.wait_settled(fail)
    assert loop.wait_settled(lambda: None) is None


@pytest.mark.parametrize("handed_over", [False, True])
def test_interrupted_while_it_waits_for_an_outcome_it_began_or_never_will(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch, *, handed_over: bool
) -> None:
    call_soon = LoopThread.call_soon
    begun: list[Outcome] = []
    late: list[Callable[..., object]] = []

    def begin() -> Outcome:
        begun.append(Outcome())
        return begun[-1]

    def interrupted(loop: LoopThread, function: Callable[..., object]) -> None:
        monkeypatch.setattr(LoopThread, "call_soon", call_soon)
        if handed_over:
            call_soon(loop, function)
            loop.run(trio.lowlevel.checkpoint)  # so that it has begun
        else:
            late.append(function)
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopThread, "call_soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.wait_settled(begin)
    for function in late:
        loop.call_soon(function)
    assert loop.run(answer, "so") == "SO"
    assert len(begun) == handed_over


def test_a_loop_that_ends_leaves_no_thread_waiting_for_an_outcome(loop: LoopThread) -> None:
    errors: list[Exception] = []
    began = threading.Event()

    def begin() -> Outcome:
        began.set()
        return Outcome()

    def wait() -> None:
        try:
            loop.wait_settled(begin)
        except ClientClosedError as exc:
            errors.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    loop.stop()
    thread.join()
    assert len(errors) == 1


def test_a_loop_that_cannot_start_raises_its_error_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(trio, "run", run)
    with pytest.raises(OSError, match="Too many open files"):
        LoopThread("test", ClientClosedError, "closed")


WITHOUT_DESCRIPTORS = """
import os, resource, sys
import dlog.blocking, dlog.connect, ledger.deploy.embedded

first, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used, limit))
try:
    dlog.blocking.open_namespace(sys.argv[1])
except Exception as exc:
    seen = exc
    while seen.__cause__ is not None:
        seen = seen.__cause__
    print(type(seen).__name__, seen)
resource.setrlimit(resource.RLIMIT_NOFILE, (first, limit))
with dlog.blocking.open_namespace(sys.argv[1]) as namespace:
    namespace.create_log("orders")
print("opened")
"""


@pytest.mark.slow
def test_a_program_without_descriptors_gets_an_error_and_may_try_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, (tmp_path / "log").as_uri()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("OSError [Errno 24] Too many open files\nopened\n", "")
