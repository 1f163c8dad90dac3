"""Calls into a loop in another thread, interrupted at every step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from ledger.errors import ClientClosedError
from ledger.tasks.loop_thread import LoopThread


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
