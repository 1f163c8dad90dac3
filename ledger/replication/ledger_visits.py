"""What the auditor's looks at all ledgers share: visiting them, counting replicas, marking.

Inside: visiting with a bounded number of reads, the count by lists of entries, one mark, the check that a
ledger is as it was read. Not inside: which ledgers are marked (``auditor``, ``returned_bookies``).
Always: an error at one ledger ends only the visit of that one, unless the metadata store is out of reach.

Source: our own; docs/autorecovery.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import trio

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.context import ClientContext
from ledger.errors import MetadataFormatError, NoSuchLedgerError
from ledger.fragments.entry_lists import EntryLists
from ledger.fragments.fragments import fragments_of
from ledger.fragments.replicas_check import NOTHING, ReplicaCount
from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.store import MetadataStore
from ledger.replication.config import ReplicationConfig
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.task_errors import for_each

logger = get_logger(__name__)

TASKS_MAX = 1000
OPEN_PAUSE_S = 2.0  # between two looks at a ledger that is being written


class LedgerVisits:
    """Looks at the ledgers of one cluster, for one auditor."""

    def __init__(
        self,
        context: ClientContext,
        session: MetadataStore,
        marks: UnderReplicatedLedgers,
        config: ReplicationConfig,
    ) -> None:
        self._marks, self._config = marks, config
        self._catalog = LedgerCatalog(session, context.catalog.root, context.catalog.layout)
        self._lists = EntryLists(context, trio.CapacityLimiter(config.reads_in_flight_max))

    async def ledger_ids(self) -> list[int]:
        """The ids of all ledgers, ascending."""
        ids: list[int] = []
        async with aclosing(self._catalog.ledger_ranges()) as ranges:
            async for found in ranges:
                ids += found.ledger_ids
        return ids

    async def for_each(self, look: Callable[[Versioned], Awaitable[None]]) -> None:
        """Call it with the metadata of each ledger."""
        async with aclosing(self._catalog.ledger_ranges()) as ranges:
            async for found in ranges:
                ids = found.ledger_ids
                for at in range(0, len(ids), TASKS_MAX):
                    await self.visit(ids[at : at + TASKS_MAX], look)

    async def visit(self, ledger_ids: Sequence[int], look: Callable[[Versioned], Awaitable[None]]) -> None:
        """Call it with the metadata of each of these, of some at once."""
        limiter = trio.CapacityLimiter(self._config.reads_in_flight_max)

        async def read(ledger_id: int) -> None:
            async with limiter:
                try:
                    current = await self._catalog.get(ledger_id)
                except NoSuchLedgerError:
                    return
                except MetadataFormatError as exc:
                    logger.error(
                        "ledger %d is not audited: %s",
                        ledger_id,
                        exc,
                        extra=event("ledger.not_audited", ledger=ledger_id, error=exc),
                    )
                    return
                try:
                    await look(current)
                except (ConnectionLostError, SessionExpiredError):
                    raise  # the round is repeated: it must not count as complete
                except Exception as exc:  # the other ledgers are looked at all the same
                    report_contained("audit of a ledger", exc, ledger_id=ledger_id)

        await for_each(read, ledger_ids)

    async def count(self, current: Versioned, lac: int, registered: frozenset[str]) -> ReplicaCount | None:
        """The count of a ledger's replicas up to the LAC; None if a bookie gives no list."""
        metadata = current.metadata
        bookies = {bookie for ensemble in metadata.ensembles for bookie in ensemble.bookies}
        lists = await self._lists.of_each(current.ledger_id, bookies & registered)
        held = {bookie: one for bookie, one in lists.items() if one is not None}
        if len(held) < len(lists):
            return None
        held |= dict.fromkeys(bookies - registered, NOTHING)
        count = ReplicaCount(fragments_of(metadata, lac), metadata.ack_quorum, held)
        for part in count.ranges():
            count.count(*part)
            await trio.lowlevel.checkpoint()
        return count

    async def mark(self, ledger_id: int, lost: Sequence[str]) -> bool:
        """Mark a ledger; False if its mark does not parse."""
        try:
            await self._marks.mark(ledger_id, lost)
        except MetadataFormatError as exc:
            logger.error(
                "ledger %d is not marked: %s",
                ledger_id,
                exc,
                extra=event("ledger.not_marked", ledger=ledger_id, error=exc),
            )
            return False
        return True

    async def is_unchanged(self, current: Versioned) -> bool:
        """False if the ledger changed during its check; its writer may have replaced the bookie."""
        try:
            return (await self._catalog.get_newest(current.ledger_id)).version == current.version
        except NoSuchLedgerError:
            return False
