"""What the auditor's looks at all ledgers share: visiting them, their pace, counting replicas, marking.

Inside: visiting with a bounded number of reads, the rests, the count by lists of entries, one mark, the check
that a ledger is as it was read. Not inside: which ledgers are marked (``auditor``, ``returned_bookies``).
Always: an error at one ledger ends only the visit of that one, unless the metadata store is out of reach;
looks that are not urgent share one pace, so that several of them take no more of a core than one.

Source: our own; docs/autorecovery.md.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing

import trio

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.context import ClientContext
from ledger.errors import MetadataFormatError, NoSuchLedgerError
from ledger.fragments.entry_lists import EntryLists
from ledger.fragments.fragments import fragments_of
from ledger.fragments.registered import RegisteredBookies, read_registered
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

GROUP = 20  # ledgers that are looked at before a rest
REST = 39  # times the length of the look before
REST_S_MAX = 2.0
OPEN_PAUSE_S = 2.0  # between two looks at a ledger that is being written

Look = Callable[[Versioned, RegisteredBookies], Awaitable[None]]


class Pace:
    """The rests of those who share a small part of a core."""

    def __init__(self) -> None:
        self._free_s = float("-inf")

    async def rest(self, began_s: float, *, times: float = REST, wake: trio.Event | None = None) -> None:
        """Rest after the work that began then; a rest of another one comes before. ``wake`` ends it."""
        now_s = trio.current_time()
        self._free_s = max(self._free_s, now_s) + min(REST_S_MAX, times * (now_s - began_s))
        with trio.move_on_at(self._free_s):
            await (trio.Event() if wake is None else wake).wait()


class LedgerVisits:
    """Looks at the ledgers of one cluster, for one auditor."""

    def __init__(
        self,
        context: ClientContext,
        session: MetadataStore,
        marks: UnderReplicatedLedgers,
        config: ReplicationConfig,
    ) -> None:
        self.pace = Pace()
        self._session, self._marks, self._config = session, marks, config
        self._catalog = LedgerCatalog(session, context.catalog.root, context.catalog.layout)
        self._lists = EntryLists(context, trio.CapacityLimiter(config.reads_in_flight_max))

    async def ledger_ids(self) -> list[int]:
        """The ids of all ledgers, ascending."""
        ids: list[int] = []
        async with aclosing(self._catalog.ledger_ranges()) as ranges:
            async for found in ranges:
                ids += found.ledger_ids
        return ids

    async def groups(self, size: int) -> AsyncGenerator[Sequence[int], None]:
        """The ids of all ledgers, ascending, in groups; use ``contextlib.aclosing``."""
        async with aclosing(self._catalog.ledger_ranges()) as ranges:
            async for found in ranges:
                for at in range(0, len(found.ledger_ids), size):
                    yield found.ledger_ids[at : at + size]

    async def check_each(self, look: Look, *, per_s: float = math.inf) -> None:
        """Call it with the metadata of each ledger, slowly; not while auto-recovery is switched off."""
        async with aclosing(self.groups(GROUP)) as groups:
            async for group in groups:
                began_s = trio.current_time()
                await self.check_group(group, look)
                await self.pace.rest(began_s)
                await trio.sleep_until(began_s + len(group) / per_s)

    async def check_again(self, ledger_ids: Sequence[int], look: Look) -> None:
        """As ``check_each``, of these ledgers."""
        for at in range(0, len(ledger_ids), GROUP):
            began_s = trio.current_time()
            await self.check_group(ledger_ids[at : at + GROUP], look)
            await self.pace.rest(began_s)

    async def check_group(self, ledger_ids: Sequence[int], look: Look) -> None:
        """Call it with the metadata of each of these; not while auto-recovery is switched off."""
        if not await self._marks.is_enabled():
            return
        registered = await read_registered(self._session, self._catalog.root)
        await self.visit(ledger_ids, lambda current: look(current, registered))

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

    async def mark_lacking(self, current: Versioned, bookies: Collection[str]) -> bool:
        """Mark a ledger that was found to lack entries on these; False if nothing is to be marked.

        Bookies that are not registered any more are left to the audit, which waits for the delay.
        """
        lost = (await read_registered(self._session, self._catalog.root)).all.intersection(bookies)
        if not lost or not await self.is_unchanged(current) or not await self._marks.is_enabled():
            return False
        return await self.mark(current.ledger_id, sorted(lost))

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
