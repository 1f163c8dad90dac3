"""What may go."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
import trio

from bookie.errors import StorageFailedError
from bookie.gc import Collected, collect_garbage, collect_garbage_regularly, dead_ledgers


class Store:
    """A store that only remembers what was asked of it."""

    def __init__(self, ledger_ids: list[int]) -> None:
        self.ids = ledger_ids
        self.rounds = 0
        self.failure: Exception | None = None

    def ledger_ids(self) -> list[int]:
        return sorted(self.ids)

    async def delete_ledger(self, ledger_id: int) -> None:
        self.ids.remove(ledger_id)

    async def remove_dead_logs(self) -> list[int]:
        self.rounds += 1
        if self.failure is not None:
            raise self.failure
        return [0]


def test_dead_is_what_is_here_and_not_live() -> None:
    assert dead_ledgers([3, 1, 2], {2, 9}) == [1, 3]
    assert dead_ledgers([], {2}) == []


async def test_a_round_deletes_what_the_metadata_store_says_is_gone() -> None:
    store = Store([1, 2, 3])

    async def live(ids: Sequence[int]) -> Collection[int]:
        assert list(ids) == [1, 2, 3]
        return {2}

    assert await collect_garbage(store, live) == Collected((1, 3), (0,))
    assert store.ids == [2]


async def test_nothing_is_deleted_when_the_metadata_store_cannot_be_asked() -> None:
    store = Store([1, 2, 3])

    async def live(ids: Sequence[int]) -> Collection[int]:
        raise ConnectionError("session lost")

    with pytest.raises(ConnectionError):
        await collect_garbage(store, live)
    assert store.ids == [1, 2, 3]


async def test_a_ledger_that_comes_while_the_store_is_asked_stays() -> None:
    store = Store([1])

    async def live(ids: Sequence[int]) -> Collection[int]:
        store.ids.append(2)
        return set()

    await collect_garbage(store, live)
    assert store.ids == [2]


async def test_the_loop_survives_a_failed_round_and_ends_with_the_storage(
    autojump_clock: trio.abc.Clock,
) -> None:
    store = Store([1])
    calls = 0

    async def live(ids: Sequence[int]) -> Collection[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("session lost")
        store.failure = StorageFailedError("disk") if calls == 3 else None
        return {1}

    await collect_garbage_regularly(store, live, interval_s=10)
    assert (calls, store.rounds) == (3, 2)
    assert trio.current_time() >= 30
