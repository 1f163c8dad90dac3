"""A call to the metadata store is repeated after a lost connection, and after no other error."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ledger.catalog.connection_retry import RETRY_PAUSE_S, retry_lost_connection
from ledger.metadata_store.errors import ConnectionLostError, NoNodeError


async def test_a_call_is_repeated_until_the_store_is_reachable(autojump_clock: Any) -> None:
    calls = 0

    async def succeed_at_the_third_call() -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise ConnectionLostError("/")
        return calls

    assert await retry_lost_connection(succeed_at_the_third_call, timeout_s=10) == 3
    assert trio.current_time() == pytest.approx(2 * RETRY_PAUSE_S)


async def test_the_error_is_raised_after_the_timeout(autojump_clock: Any) -> None:
    async def fail() -> None:
        raise ConnectionLostError("/")

    with pytest.raises(ConnectionLostError):
        await retry_lost_connection(fail, timeout_s=1)
    assert 1 <= trio.current_time() <= 1 + 2 * RETRY_PAUSE_S


async def test_another_error_is_raised_at_once() -> None:
    async def fail() -> None:
        raise NoNodeError("/gone")

    with pytest.raises(NoNodeError):
        await retry_lost_connection(fail, timeout_s=10)
