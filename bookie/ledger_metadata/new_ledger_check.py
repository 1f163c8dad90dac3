"""Confirms the ledgers that peers began on this bookie, and deletes those that do not exist.

A ledger is in the metadata store before any of its entries can reach a bookie. So a ledger that this bookie
created, and that the store lacks afterwards, was deleted or never existed. The garbage collection would
delete it too, minutes later. Until then it would take memory, a part of the index and a place in the budget
(``requests.new_ledgers``).

Inside: which ledgers to look up when, the deletion. Not inside: the look-up (``live_ledgers``), the budget.
Always: a ledger is deleted only if two look-ups, at least ``grace_s`` apart, did not find it; each look-up
sees every change made before it began, in a store that belongs to this bookie's cluster before and after. A
store that cannot be read confirms nothing and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

import trio

from bookie.errors import BookieServerError, StorageFailedError
from bookie.requests.new_ledgers import NewLedgers
from ledger.metadata_store.errors import MetadataError
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

INTERVAL_S = 1.0
BATCH_MAX = 1000  # ledgers in one look-up

log = get_logger(__name__)

FindLedgers = Callable[[Iterable[int]], Awaitable[Collection[int]]]
"""Takes ledger ids; returns those that exist. Raises if the store cannot be read or trusted."""


class NewLedgerCheck:
    """See the module. On the loop."""

    def __init__(
        self, new_ledgers: NewLedgers, find: FindLedgers, delete: Callable[[Sequence[int]], Awaitable[None]]
    ) -> None:
        self.deleted = 0
        self._new_ledgers = new_ledgers
        self._find = find
        self._delete = delete
        self._missing_since_s: dict[int, tuple[float, float]] = {}  # ledger -> created, first not found
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<NewLedgerCheck, {self.deleted} ledgers deleted>"

    async def run(self) -> None:
        """Check every second until cancelled, or until the storage has failed."""
        while True:
            await trio.sleep(INTERVAL_S)
            try:
                await self.check()
            except StorageFailedError:
                return  # ``wait_failed`` of the storage reports the error
            except (MetadataError, BookieServerError) as exc:
                if not self._is_failing:
                    log.warning("new ledgers cannot be confirmed now: %s", exc)
                self._is_failing = True
            except Exception as exc:
                report_contained("check of new ledgers", exc)
            else:
                self._is_failing = False

    async def check(self) -> None:
        """Look up all new ledgers that are due once, and delete those that do not exist.

        Raises:
            MetadataError, ClusterChangedError: The store cannot be read or trusted. Nothing was deleted.
            StorageFailedError: The disk failed.
        """
        new_ledgers = self._new_ledgers
        due = list(self._due(trio.current_time()).items())
        missing = self._missing_since_s
        for start in range(0, len(due), BATCH_MAX):
            batch = dict(due[start : start + BATCH_MAX])
            began_s = trio.current_time()
            found = await self._find(batch)
            new_ledgers.forget(found)
            dead = []
            for ledger_id, created_s in batch.items():
                # Deleted and created again meanwhile: then it is another ledger, and it is due later.
                if ledger_id in found or new_ledgers.created_s(ledger_id) != created_s:
                    missing.pop(ledger_id, None)
                elif ledger_id in missing:
                    dead.append(ledger_id)
                else:
                    missing[ledger_id] = created_s, began_s
            if dead:
                for ledger_id in dead:
                    del missing[ledger_id]
                await self._delete(dead)
                # Not those that were created again meanwhile.
                new_ledgers.forget([one for one in dead if new_ledgers.created_s(one) == batch[one]])
                self.deleted += len(dead)
                log.info("%d ledgers that peers began here do not exist and were deleted", len(dead))

    def _due(self, now_s: float) -> dict[int, float]:
        """Ledgers never looked up, and those that were not found ``grace_s`` ago."""
        grace_s = self._new_ledgers.config.grace_s
        all_new = self._new_ledgers.oldest(len(self._new_ledgers))
        missing = self._missing_since_s = {
            ledger_id: seen
            for ledger_id, seen in self._missing_since_s.items()
            if all_new.get(ledger_id) == seen[0]
        }
        return {
            ledger_id: created_s
            for ledger_id, created_s in all_new.items()
            if ledger_id not in missing or now_s - missing[ledger_id][1] >= grace_s
        }
