"""Background tasks of a block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from ledger.runtime.tasks.background import open_background


async def test_tasks_end_with_the_block() -> None:
    async with open_background() as nursery:
        nursery.start_soon(trio.sleep_forever)
    assert nursery.child_tasks == frozenset()


async def block(work: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async with open_background() as nursery:
        await work(nursery)


async def test_an_error_in_the_block_is_raised_unchanged() -> None:
    async def work(nursery: trio.Nursery) -> None:
        nursery.start_soon(trio.sleep_forever)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await block(work)


async def test_a_task_that_fails_ends_the_block() -> None:
    async def fail() -> None:
        raise ValueError("a bug")

    async def work(nursery: trio.Nursery) -> None:
        nursery.start_soon(fail)
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await block(work)
    assert caught.group_contains(ValueError, match="a bug")
