"""Tasks behind an object: what ends them, what comes out."""

from __future__ import annotations

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
