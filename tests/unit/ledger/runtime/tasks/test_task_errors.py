"""What comes out of concurrent tasks that fail."""

from __future__ import annotations

import pytest
import trio

from ledger.runtime.tasks.task_errors import errors_in, first_error, for_each, only_error


async def test_every_item_gets_its_call() -> None:
    seen: list[int] = []

    async def see(number: int) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(number)

    await for_each(see, range(5))
    await for_each(see, ())
    assert sorted(seen) == [0, 1, 2, 3, 4]


async def test_the_first_error_cancels_the_others_and_comes_out_alone() -> None:
    error = KeyError(3)
    cancelled: list[int] = []

    async def fail(number: int) -> None:
        if number == 3:
            raise error
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled.append(number)
            raise

    with pytest.raises(KeyError) as caught:
        await for_each(fail, range(5))
    assert caught.value is error
    assert caught.value.__context__ is None
    assert sorted(cancelled) == [0, 1, 2, 4]


async def test_of_two_errors_at_once_one_comes_out() -> None:
    async def fail(number: int) -> None:
        raise KeyError(number)

    with pytest.raises(KeyError):
        await for_each(fail, range(2))


async def cancellation() -> trio.Cancelled:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as exc:
            cancelled = exc
    return cancelled


async def test_a_group_is_taken_apart_without_its_cancellations() -> None:
    cancelled, first, second = await cancellation(), KeyError("first"), KeyError("second")
    group = BaseExceptionGroup("", [cancelled, ExceptionGroup("", [first]), second])
    assert errors_in(group) == [first, second]
    assert first_error(group) is first
    assert only_error(group) is group
    assert only_error(BaseExceptionGroup("", [cancelled, ExceptionGroup("", [first])])) is first
    for take in (first_error, only_error):
        assert take(first) is first
        alone = BaseExceptionGroup("", [cancelled])
        assert take(alone) is alone
