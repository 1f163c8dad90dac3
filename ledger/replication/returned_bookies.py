"""The look for what dead writers could not store on a bookie that came back.

Inside: following the bookies, the look at ledgers that may have been written while one was away, its pace.
Not inside: the rule which ledgers those are (``absences``), counting and marking (``ledger_visits``), what
writers mark by themselves (``ledger.write.missed``).
Always: each return leads to a look, after the writers had a moment to mark; a new auditor counts each bookie
as returned that registered lately; nothing is marked while auto-recovery is switched off.

Source: our own; docs/autorecovery.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import trio

from ledger.catalog.catalog import Versioned
from ledger.context import ClientContext
from ledger.errors import LedgerError
from ledger.fragments.ledger_check import last_entry_of
from ledger.fragments.registered import RegisteredBookies, read_cookie_owners, read_registrations
from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.store import MetadataStore
from ledger.replication.absences import Absences
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_visits import GROUP, OPEN_PAUSE_S, REST, LedgerVisits
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

logger = get_logger(__name__)

RETURN_PAUSE_S = 5.0  # before the look at the ledgers of a bookie that is back: its writers mark theirs first
RETURN_REST = 4  # times the length of a look, after a return that was seen
RECENT_S = 600.0  # a new auditor counts a bookie that registered since then as seen to return
RECENT_LEDGERS = 1000  # of which it looks as fast at the newest
LATELY_S = 3600.0  # one that registered since then is looked for, whatever the interval of the checks
CONTAINED_PAUSE_S = 60.0  # after an error that nobody expected; it may come again at once


class ReturnedBookies:
    """The looks of one auditor. ``absences`` wants to know which ledgers other looks saw closed."""

    def __init__(
        self,
        context: ClientContext,
        session: MetadataStore,
        marks: UnderReplicatedLedgers,
        config: ReplicationConfig,
        visits: LedgerVisits,
        note_marked: Callable[[int], None],
        wall_ms: Callable[[], int],
    ) -> None:
        """``note_marked`` is called with the number of ledgers that a look has marked."""
        self.absences = Absences()
        self._context, self._session, self._marks = context, session, marks
        self._config, self._visits, self._root = config, visits, context.catalog.root
        self._note_marked, self._wall_ms = note_marked, wall_ms
        self._returned: set[str] = set()
        self._return = trio.Event()
        self._urgent_ledgers = 0.0  # of the next look, the newest: entries are missed since a moment ago

    async def follow(self, wake: Callable[[], trio.Event]) -> None:
        """Notice which bookies come back, until cancelled.

        Args:
            wake: The event that is set when the bookies change next.

        Raises:
            ledger.metadata_store.errors.SessionExpiredError: The session is over.
        """
        is_known = False
        while True:
            changed = wake()
            try:
                stats = await read_registrations(self._session, self._root)
                if not is_known:
                    self.absences = Absences(await read_cookie_owners(self._session, self._root))
                    # Since then no check of all replicas may have ended, and no auditor may have looked.
                    interval_s, now_ms = self._config.replicas_check_interval_s, self._wall_ms()
                    since_ms = now_ms - 1000 * max(2 * interval_s, LATELY_S)
                    self._returned |= {one for one, stat in stats.items() if stat.created_ms >= since_ms}
                    if any(stat.created_ms >= now_ms - 1000 * RECENT_S for stat in stats.values()):
                        self._urgent_ledgers = RECENT_LEDGERS
                    if self._returned:
                        self._return.set()
                    is_known = True
                sessions = {bookie: stat.ephemeral_owner for bookie, stat in stats.items()}
            except ConnectionLostError:
                await trio.sleep(self._config.retry_pause_s)
                await self._marks.wait_reachable()
                continue
            except SessionExpiredError:
                raise
            except Exception as exc:
                report_contained("look for bookies that came back", exc)
                await trio.sleep(CONTAINED_PAUSE_S)
                continue
            if returned := self.absences.on_bookies(sessions, trio.current_time()):
                self._returned |= returned
                self._urgent_ledgers = math.inf
                self._return.set()
            await changed.wait()

    async def check_returned(self) -> None:
        """Look at the ledgers of bookies that came back, until cancelled; raises as ``follow``."""
        while True:
            await self._return.wait()
            await trio.sleep(RETURN_PAUSE_S)
            self._return = trio.Event()
            returned, self._returned = self._returned, set()
            try:
                await self._marks.wait_enabled()
                await self.check(returned)
            except ConnectionLostError as exc:
                logger.warning(
                    "the look at the ledgers of %s, which came back, is repeated: %s",
                    ", ".join(sorted(returned)),
                    exc,
                    extra=event("check.failed", check="returned", error=exc),
                )
                self._returned |= returned
                self._return.set()
                await trio.sleep(self._config.retry_pause_s)
                await self._marks.wait_reachable()
            except SessionExpiredError:
                raise
            except Exception as exc:
                report_contained("look at the ledgers of bookies that came back", exc)
                await trio.sleep(CONTAINED_PAUSE_S)

    async def check(self, bookies: Collection[str]) -> int:
        """Compare the lists of entries of ledgers that may have been written while these bookies were away;
        mark those that lack entries on registered bookies; return their number.

        The newest ledgers come first. If cancelled, or if it raises, some are marked.
        """
        marked, began_s, is_second_look = 0, trio.current_time(), False
        doubtful: list[int] = []
        done: set[int] = set()
        urgent, self._urgent_ledgers = self._urgent_ledgers, 0.0

        async def look(current: Versioned, registered: RegisteredBookies) -> None:
            nonlocal marked
            metadata, ledger_id = current.metadata, current.ledger_id
            members = {bookie for ensemble in metadata.ensembles for bookie in ensemble.bookies}
            is_empty = metadata.is_closed and metadata.last_entry_id < 0
            if not is_empty and not members.isdisjoint(bookies):
                if await self._marks.seen(ledger_id) is not None:
                    return
                try:
                    lac = await last_entry_of(self._context, current)
                except LedgerError:
                    return  # the check of all replicas counts it
                count = await self._visits.count(current, lac, registered.all)
                if count is None:
                    return
                if lost := count.lacking & registered.all:
                    if not metadata.is_closed and not is_second_look:
                        doubtful.append(ledger_id)  # a bookie may only be a little behind the others
                    else:
                        newly_marked = await self._visits.mark_lacking(current, lost)
                        marked += newly_marked
                    return
            if metadata.is_closed:
                done.add(ledger_id)

        left = self.absences.touched(await self._visits.ledger_ids())[::-1]
        looked = len(left)
        while left:
            for at in range(0, len(left), GROUP):
                await self._marks.wait_enabled()
                look_s = trio.current_time()
                await self._visits.check_group(left[at : at + GROUP], look)
                await self._visits.pace.rest(look_s, times=RETURN_REST if at < urgent else REST)
            left = [] if is_second_look else doubtful
            if left:
                is_second_look = True
                await trio.sleep(OPEN_PAUSE_S)
        self.absences.on_closed(done, began_s, trio.current_time())
        self._note_marked(marked)
        names = sorted(bookies)
        logger.info(
            "%s came back: %d of %d ledgers that may have been written meanwhile lack entries",
            ", ".join(names),
            marked,
            looked,
            extra=event("check.returned", bookies=names, ledgers=looked, marked=marked),
        )
        return marked
