"""A ledger that is deleted while it is in limbo leaves limbo at once, without a garbage collection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from bookie.healing.integrity import IntegrityConfig, IntegrityRepair
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.gone_ledgers import GoneLedgers
from bookie.ledger_metadata.live_ledgers import LiveLedgers, ServedLedgers
from ledger.catalog.paths import cookie_path
from ledger.client import LedgerClient
from tests.fakes.bookies_by_hand import LAYOUT, ROOT, Bookies, RunningBookie, open_bookies
from tests.unit.bookie.healing.test_integrity import write_ledger

pytestmark = pytest.mark.slow

A, B, C = "b1:1", "b2:1", "b3:1"
TEST_TIMEOUT_S = 30


class Limbo:
    """Bookie A with two ledgers in limbo, and its repair, which the test runs."""

    def __init__(self, bookies: Bookies, running: RunningBookie, client: LedgerClient) -> None:
        self.bookies, self.client = bookies, client
        self.storage = running.bookie.storage
        self.served = ServedLedgers(running.bookie.service)
        self.live = LiveLedgers(ClusterNodes(lambda: bookies.store, ROOT, LAYOUT), A, None)
        self.rounds = 0
        self.ledgers: list[int] = []

    def repair(
        self, config: IntegrityConfig | None = None, *, reaches_others: bool = True
    ) -> IntegrityRepair:
        @asynccontextmanager
        async def open_client() -> AsyncIterator[LedgerClient]:
            self.rounds += 1
            if not reaches_others:
                raise OSError("no route")
            async with self.bookies.open_client() as client:
                yield client

        return IntegrityRepair(self.storage, A, open_client, GoneLedgers(self.live, self.served), config)

    def in_limbo(self) -> list[int]:
        records = map(self.storage.ledger, self.ledgers)
        return [one.ledger_id for one in records if one is not None and one.limbo]


@pytest.fixture
async def limbo(tmp_path: Path) -> AsyncIterator[Limbo]:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_bookies(tmp_path, A, B, C) as bookies, bookies.open_client() as client:
            ledgers = [await write_ledger(client, [b"x"] * 4) for _ in range(2)]
            running = await bookies.replace(A, repairs=False)
            made = Limbo(bookies, running, client)
            made.ledgers = ledgers
            assert made.in_limbo() == ledgers
            yield made


async def test_the_repair_deletes_a_ledger_that_was_deleted_and_restores_the_others(limbo: Limbo) -> None:
    kept, deleted = limbo.ledgers
    await limbo.client.delete(deleted)
    repair = limbo.repair()
    await repair.run()
    assert limbo.rounds == 1
    assert limbo.storage.ledger(deleted) is None
    assert await limbo.storage.entry_ids(kept) == [0, 1, 2, 3]
    assert (repair.stats.ledgers_deleted, repair.stats.ledgers_repaired) == (1, 1)
    # The bookie remembers the fence, so that an old writer cannot begin the ledger anew.
    assert deleted in limbo.served.service.deleted_fences


async def test_a_ledger_that_is_deleted_between_two_attempts_leaves_limbo_before_the_next_one(
    limbo: Limbo,
) -> None:
    repair = limbo.repair(IntegrityConfig(pause_s=1000, pause_max_s=1000), reaches_others=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repair.run)
        while limbo.rounds == 0:
            await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as deleting:
            for ledger_id in limbo.ledgers:
                deleting.start_soon(limbo.client.delete, ledger_id)
        while limbo.storage.ledger(limbo.ledgers[0]) is not None:  # noqa: ASYNC110
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert limbo.rounds == 1


async def test_the_ledgers_of_a_store_that_was_wiped_stay_in_limbo(limbo: Limbo) -> None:
    for ledger_id in limbo.ledgers:
        await limbo.client.delete(ledger_id)
    await limbo.bookies.store.delete(cookie_path(ROOT, A))
    repair = limbo.repair(IntegrityConfig(pause_s=0.01, pause_max_s=0.01))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repair.run)
        while limbo.rounds < 3:  # noqa: ASYNC110
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert limbo.in_limbo() == limbo.ledgers
    assert repair.stats.last_failure is not None
    assert "no ledger is deleted" in repair.stats.last_failure


async def test_a_ledger_that_exists_is_not_deleted_whatever_the_repair_saw(limbo: Limbo) -> None:
    kept, deleted = limbo.ledgers
    await limbo.client.delete(deleted)
    assert await GoneLedgers(limbo.live, limbo.served).delete([kept, deleted]) == [deleted]
    assert limbo.in_limbo() == [kept]
