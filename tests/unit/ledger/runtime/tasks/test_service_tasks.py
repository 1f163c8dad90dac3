"""Tasks behind an object: what ends them, what comes out."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import pytest
import trio

from ledger.runtime.tasks.service_tasks import open_service_tasks


async def test_what_the_block_raises_comes_out_as_it_is() -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:  # noqa: PT012
        async with open_service_tasks() as tasks:
            tasks.start_soon(trio.sleep_forever)
            raise error
    assert caught.value is error
    assert caught.value.__context__ is None


async def test_the_error_of_a_task_cancels_the_block_and_comes_out_alone() -> None:
    async def fail() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):  # noqa: PT012
        async with open_service_tasks() as tasks:
            tasks.start_soon(trio.sleep_forever)
            tasks.start_soon(fail)
            await trio.sleep_forever()


async def test_several_errors_come_out_as_a_group() -> None:
    async def fail() -> None:
        raise KeyError("theirs")

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with open_service_tasks() as tasks:
            tasks.start_soon(fail)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("mine")
    assert "theirs" in repr(caught.value.exceptions)


async def test_cancelling_the_block_does_not_cancel_what_closes_it(autojump_clock: object) -> None:
    log: list[str] = []
    stop = trio.Event()
    done = trio.Event()

    async def worker() -> None:
        await stop.wait()
        await trio.sleep(1)
        log.append("worked to the end")
        done.set()

    with trio.move_on_after(1) as scope:
        async with open_service_tasks() as tasks:
            tasks.start_soon(worker)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    stop.set()
                    await done.wait()
    assert scope.cancelled_caught
    assert log == ["worked to the end"]


async def test_a_task_that_has_not_started_is_cancelled_with_the_caller(autojump_clock: object) -> None:
    async def never(*, task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep_forever()

    async def soon(*, task_status: trio.TaskStatus[int]) -> None:
        task_status.started(7)
        await trio.sleep_forever()

    with trio.move_on_after(1) as scope:
        async with open_service_tasks() as tasks:
            assert await tasks.start(soon) == 7
            await tasks.start(never)
    assert scope.cancelled_caught


def interrupted(main: Callable[[], Awaitable[None]]) -> None:
    """Run it in a program that has Python's handler of SIGINT, and has it again afterwards."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_waits_for_the_end_of_a_step_and_comes_out_of_the_main_task() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            steps.append("whole")
            await trio.sleep_forever()
        except trio.Cancelled:
            steps.append("cancelled")
            raise

    async def main() -> None:
        async with open_service_tasks() as tasks:
            tasks.start_soon(work)
            try:
                await trio.sleep_forever()
            except KeyboardInterrupt:
                steps.append("main task")
                raise

    interrupted(main)
    assert steps == ["whole", "main task", "cancelled"]


def test_an_interrupt_in_the_programs_own_code_comes_at_once_while_any_block_is_open() -> None:
    async def main() -> None:
        async with open_service_tasks():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    interrupted(main)


def test_of_blocks_that_overlap_the_last_one_gives_the_handler_back() -> None:
    steps: list[str] = []
    entered, leave, left = trio.Event(), trio.Event(), trio.Event()

    async def first() -> None:
        async with open_service_tasks():
            entered.set()
            await leave.wait()
        left.set()

    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("whole")

    async def main() -> None:
        of_trio = signal.getsignal(signal.SIGINT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await entered.wait()
            async with open_service_tasks() as tasks:
                leave.set()
                await left.wait()
                tasks.start_soon(work)
                with pytest.raises(KeyboardInterrupt):
                    await trio.sleep_forever()
            assert signal.getsignal(signal.SIGINT) is of_trio
        raise KeyboardInterrupt

    interrupted(main)
    assert steps == ["whole"]


def test_a_handler_of_the_programs_own_stays() -> None:
    def own(*_: object) -> None: ...

    async def main() -> None:
        before = signal.signal(signal.SIGINT, own)
        async with open_service_tasks():
            assert signal.getsignal(signal.SIGINT) is own
        assert signal.getsignal(signal.SIGINT) is own
        signal.signal(signal.SIGINT, before)
        raise KeyboardInterrupt

    interrupted(main)
