"""Marking the ledgers of one client that lack entries on a bookie, when the bookie is back.

An entry is acknowledged by an ack quorum. A bookie of the write quorum that was failing at that moment never
gets it from the writer. When the bookie answers the writer again, or has been replaced, or the writer has
ended, and the bookie is registered, the ledger is marked as under-replicated for it. A worker of
auto-recovery then copies the entries.

Inside: the ledgers that wait for a bookie, the marks. Not inside: which entries were missed (``writer``),
when a writer has done with a bookie (``handle``), copying (``ledger.replication``).
Always: no ledger is marked for a bookie that is away: the auditor decides about those, after the delay of the
cluster. At the end of the client what is left is marked all the same, because nobody else knows of it.

Source: our own; docs/autorecovery.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.under_replicated import mark_under_replicated
from ledger.errors import LedgerError
from ledger.metadata_store.errors import ConnectionLostError, MetadataError
from ledger.placement.membership import Membership
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.task_errors import for_each

logger = get_logger(__name__)

RETRY_S = 5.0
CONTAINED_PAUSE_S = 60.0  # after an error that nobody expected; it may come again at once
LAST_S = 2.0  # for the marks that are left when the client ends
MARKS_AT_ONCE = 16


class MissedReplicas:
    """The ledgers of one client that lack entries on a bookie."""

    def __init__(self, catalog: LedgerCatalog, membership: Membership, wall_ms: Callable[[], int]) -> None:
        self._catalog, self._membership, self._wall_ms = catalog, membership, wall_ms
        self._ledgers: dict[str, set[int]] = {}  # by bookie
        self._wake = trio.Event()

    def __repr__(self) -> str:
        return f"<MissedReplicas on {len(self._ledgers)} bookies>"

    def note(self, ledger_id: int, bookie: str) -> None:
        """A ledger lacks confirmed entries on this bookie, and its writer will not send them."""
        self._ledgers.setdefault(bookie, set()).add(ledger_id)
        self._wake.set()

    async def run(self) -> None:
        """Mark until cancelled; then mark what is left, for a short time."""
        try:
            while True:
                self._wake = wake = trio.Event()
                try:
                    there = self._membership.writable | self._membership.readonly
                    for bookie in [one for one in self._ledgers if one in there]:
                        await self._mark_all(bookie)
                except ConnectionLostError:
                    await trio.sleep(RETRY_S)
                    continue
                except Exception as exc:
                    report_contained("marking of ledgers that lack replicas", exc)
                    await trio.sleep(CONTAINED_PAUSE_S)
                    continue
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._wait_bookies, nursery.cancel_scope)
                    await wake.wait()
                    nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(LAST_S) as scope:
                scope.shield = True
                try:
                    for bookie in list(self._ledgers):
                        await self._mark_all(bookie)
                except MetadataError:
                    pass  # the check of all replicas finds them

    async def _wait_bookies(self, scope: trio.CancelScope) -> None:
        await self._membership.wait_change()
        scope.cancel()

    async def _mark_all(self, bookie: str) -> None:
        ledgers = self._ledgers[bookie]
        while ledgers:
            await for_each(partial(self._mark, bookie), list(ledgers)[:MARKS_AT_ONCE])
        self._ledgers.pop(bookie, None)

    async def _mark(self, bookie: str, ledger_id: int) -> None:
        store, root = self._catalog.store, self._catalog.root
        self._ledgers[bookie].discard(ledger_id)  # before: what is noted from now on needs another mark
        is_over = False
        try:
            await mark_under_replicated(store, root, ledger_id, [bookie], self._wall_ms, missed_more=True)
            is_over = True
            logger.info(
                "ledger %d lacks entries on %s, which is back: it is marked for auto-recovery",
                ledger_id,
                bookie,
                extra=event("ledger.missed_replicas", ledger=ledger_id, bookie=bookie),
            )
        except ConnectionLostError:
            raise
        except (LedgerError, MetadataError) as exc:
            # For example there is no right to mark: the auditor's check finds it.
            is_over = True
            logger.warning(
                "ledger %d lacks entries on %s and could not be marked for auto-recovery: %s",
                ledger_id,
                bookie,
                exc,
                extra=event("ledger.not_marked", ledger=ledger_id, error=exc),
            )
        finally:
            if not is_over:
                self._ledgers[bookie].add(ledger_id)
