"""Whether the other bookies have all entries of a bookie with empty disks, and whether it has them again.

Inside: the two looks at the bookie's ledgers. Not inside: its disks and its start
(``bookie.disk_replacement``), the copying (``bookie.healing``).
Always: nothing is changed. A ledger whose metadata cannot be read counts as one without copies. A list of
entries shows which entries a bookie has; a bookie that gives none is read from, entry by entry.

Source: our own; docs/running.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import attrs
import trio

from ledger.catalog.catalog import LedgerCatalog, Versioned
from ledger.context import ClientContext
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.fragments.entry_lists import EntryLists
from ledger.fragments.fragments import Fragment, fragments_of
from ledger.fragments.ledger_check import LedgerCheck, last_entry_of
from ledger.fragments.registered import RegisteredBookies, read_registered
from ledger.fragments.replicas_check import NOTHING, ReplicaCount
from ledger.metadata_store.store import MetadataStore
from ledger.read.replica_copy import ReplicaCopy
from ledger.runtime.tasks.task_errors import for_each

LEDGERS_AT_ONCE = 16
REQUESTS_MAX = 32  # lists of entries asked for at once
READ_BYTES = 1 << 20  # in one read, where a bookie gives no list
POLL_S = 1.0


@attrs.frozen
class OtherCopies:
    """The copies that other bookies have of a ledger."""

    ledger_id: int
    is_open_end: bool  # not closed, and written to the bookie: its start closes the ledger
    reason: str | None = None  # why they cannot give it all its entries; None: they can


@attrs.frozen
class NotReadBack:
    """A ledger that the bookie does not return, although it was copied."""

    ledger_id: int
    reason: str


Progress = Callable[[int, int], object]


class Replacement:
    """The looks at the ledgers of one bookie, by a client of its cluster."""

    def __init__(self, context: ClientContext, session: MetadataStore, bookie: str) -> None:
        """``session``: one session, as ``MetadataStore.current_session`` returns it."""
        self._context, self._session, self._bookie = context, session, bookie
        self._catalog = LedgerCatalog(session, context.catalog.root, context.catalog.layout)
        self._limiter = trio.CapacityLimiter(REQUESTS_MAX)

    async def copies_elsewhere(self, on_progress: Progress = lambda done, total: None) -> list[OtherCopies]:
        """Look whether each entry of the bookie is on another one, ledger by ledger, in ascending order.

        Of a ledger that is not closed, the entries up to the confirmed one count; that one must be found on
        enough other bookies, or no recovery could close the ledger.

        Args:
            on_progress: Gets the number of ledgers looked at, and of all ledgers of the cluster.

        Raises:
            ledger.metadata_store.errors.MetadataError: The metadata store failed.
        """
        registered = await read_registered(self._session, self._catalog.root)
        lists = EntryLists(self._context, self._limiter)
        found: list[OtherCopies] = []
        ids = await self._catalog.ledger_ids()
        done = 0

        async def look(ledger_id: int) -> None:
            nonlocal done
            copies = await self._copies_of(ledger_id, registered, lists)
            if copies is not None:
                found.append(copies)
            done += 1
            on_progress(done, len(ids))

        await _some_at_once(look, ids)
        return sorted(found, key=lambda one: one.ledger_id)

    async def _copies_of(
        self, ledger_id: int, registered: RegisteredBookies, lists: EntryLists
    ) -> OtherCopies | None:
        try:
            current = await self._catalog.get_newest(ledger_id)
        except NoSuchLedgerError:
            return None
        except LedgerError as exc:
            return OtherCopies(ledger_id, False, str(exc))
        metadata = current.metadata
        if not any(self._bookie in ensemble.bookies for ensemble in metadata.ensembles):
            return None
        is_open_end = not metadata.is_closed and self._bookie in metadata.last_ensemble.bookies
        try:
            lac = await last_entry_of(self._context, current)
            reason = await self._lacking(current, lac, registered, lists)
        except LedgerError as exc:
            reason = str(exc)
        return OtherCopies(ledger_id, is_open_end, reason)

    async def _lacking(
        self, current: Versioned, lac: int, registered: RegisteredBookies, lists: EntryLists
    ) -> str | None:
        metadata = current.metadata
        fragments = [one for one in fragments_of(metadata, lac) if self._bookie in one.bookies]
        others = {bookie for one in fragments for bookie in one.bookies} - {self._bookie}
        given = await lists.of_each(current.ledger_id, others & registered.all)
        held = dict.fromkeys([*others, self._bookie], NOTHING)
        held |= {bookie: found for bookie, found in given.items() if found is not None}
        count = ReplicaCount(fragments, metadata.ack_quorum, held)
        for part in count.ranges():
            count.count(*part)
            await trio.lowlevel.checkpoint()
        if not count.is_without_replica:
            return None
        if None in given.values():
            await self._read_all(current, fragments)
            return None
        away = sorted(others - registered.all)
        evidence = f"; not registered: {', '.join(away)}" if away else ""
        return f"no registered bookie has some of the entries that {self._bookie} shall hold{evidence}"

    async def _read_all(self, current: Versioned, fragments: Iterable[Fragment]) -> None:
        """Read each entry that the bookie should have from the others; raise if one cannot be read."""
        copy = ReplicaCopy(current, self._context, self._bookie)
        for fragment in fragments:
            for first, last in fragment.ranges([fragment.bookies.index(self._bookie)]):
                while first <= last:
                    first += len(await copy.read(first, last, READ_BYTES))

    async def wait_read_back(
        self,
        ledger_ids: Sequence[int],
        *,
        percentage: int = 100,
        poll_s: float = POLL_S,
        on_progress: Progress = lambda done, total: None,
    ) -> list[NotReadBack]:
        """Wait without a limit until the running bookie returns its entries of these ledgers.

        A bookie that is still copying a ledger gives no list of its entries. After that its list must be
        whole, and this share of the entries is read from it, with their digests verified.

        Args:
            percentage: The share of the entries to read, besides the first and the last of each fragment.
            on_progress: Gets the number of ledgers read back, and of all, after each look.

        Raises:
            ledger.metadata_store.errors.MetadataError: The metadata store failed.
        """
        left = sorted(ledger_ids, reverse=True)  # as the bookie copies them
        bad: list[NotReadBack] = []
        while True:
            lists = EntryLists(self._context, self._limiter)  # a bookie that was slow once is asked again
            check = LedgerCheck(self._context, percentage=percentage, asks_lists=True, members=[self._bookie])
            registered = await read_registered(self._session, self._catalog.root)
            waiting: list[int] = []

            async def look(ledger_id: int) -> None:
                if (await lists.of_each(ledger_id, [self._bookie]))[self._bookie] is None:  # noqa: B023
                    waiting.append(ledger_id)  # noqa: B023
                    return
                found = await self._read_back(ledger_id, check, registered)  # noqa: B023
                if found is None:
                    waiting.append(ledger_id)  # noqa: B023
                elif found:
                    bad.append(NotReadBack(ledger_id, found))

            await _some_at_once(look, left)
            left = sorted(waiting, reverse=True)
            on_progress(len(ledger_ids) - len(left), len(ledger_ids))
            if not left:
                return sorted(bad, key=lambda one: one.ledger_id)
            await trio.sleep(poll_s)

    async def _read_back(
        self, ledger_id: int, check: LedgerCheck, registered: RegisteredBookies
    ) -> str | None:
        """Why the bookie does not return a ledger; empty if it does, None if it does not say now."""
        try:
            current = await self._catalog.get_newest(ledger_id)
        except NoSuchLedgerError:
            return ""
        metadata = current.metadata
        # An open end that names the bookie began after its start: its writer stores it, and may be ahead.
        last = metadata.last_entry_id if metadata.is_closed else metadata.last_ensemble.first_entry_id - 1
        result = await check.find(current, last, registered)
        if result.has_doubts or result.unreached:
            return None
        if not result.bad:
            return ""
        fragment = result.bad[0].fragment
        return f"it does not return all entries from {fragment.first} to {fragment.last}"


async def _some_at_once(look: Callable[[int], Awaitable[None]], ledger_ids: Iterable[int]) -> None:
    remaining = iter(ledger_ids)

    async def work(_number: int) -> None:
        for ledger_id in remaining:
            await look(ledger_id)

    await for_each(work, range(LEDGERS_AT_ONCE))
