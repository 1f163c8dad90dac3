"""Calls into a loop in another thread, interrupted at every step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
