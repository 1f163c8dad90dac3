"""Finding the fragments of a ledger that miss replicas.

A member of an ensemble is bad if it is not registered, or if it does not return its first or its last entry
of the fragment. With a percentage, a check reads more entries. With lists it also asks each bookie which
entries it has, which shows every hole. Of the open end a check looks at what is confirmed, and no further.

Inside: the reads. Not inside: the fragments (``fragments``), copying.
Always: nothing is changed. A bookie that is overloaded, or refuses this client, is neither good nor bad: a
copy of its entries would add to the load, and the ledger does not count as restored either.

Source: LedgerChecker.java; docs/autorecovery.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import attrs
import trio

from ledger.catalog.availability import Availability
from ledger.catalog.catalog import Versioned
from ledger.codes import Code
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import (
    BookieError,
    BookieUnavailableError,
    CorruptEntryError,
    TooManyRequestsRefusal,
    UnauthorizedRefusal,
)
from ledger.fragments.entry_lists import EntryLists, lacks_any
from ledger.fragments.fragments import Fragment, fragments_of
from ledger.fragments.registered import RegisteredBookies
from ledger.read.lac_query import query_lac
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.transport.bookie_requests import entry_of, refusal_of
from ledger.wire.messages import ReadRequest

logger = get_logger(__name__)


@attrs.frozen
class BadFragment:
    """A fragment with the indices of the bookies that lack entries of it."""

    fragment: Fragment
    indices: tuple[int, ...]
    held: Mapping[int, Availability] = attrs.field(factory=dict, eq=False)
    """By index: the entries that the bookie has, where that is all that is wrong with it."""

    @property
    def bookies(self) -> tuple[str, ...]:
        """The bookies at these indices."""
        return tuple(self.fragment.bookies[index] for index in self.indices)


@attrs.frozen
class CheckResult:
    """The findings of a check of one ledger."""

    bad: tuple[BadFragment, ...]  # in the order of their entries
    has_doubts: bool  # a bookie did not say whether it has its entries
    unreached: frozenset[str] = frozenset()
    """Registered bookies to which no connection could be made: they may have died a moment ago."""

    @property
    def is_sound(self) -> bool:
        """True if every bookie proved to have its entries."""
        return not self.bad and not self.has_doubts


async def last_entry_of(context: ClientContext, current: Versioned) -> int:
    """The last entry of a closed ledger; else its LAC, without recovery.

    Raises:
        LedgerReadError: Too few bookies replied.
    """
    metadata = current.metadata
    if metadata.is_closed:
        return metadata.last_entry_id
    return await query_lac(context, current, EntryCodec(metadata.digest_type, metadata.password or b""))


class LedgerCheck:
    """Checks of ledgers with one client."""

    def __init__(
        self,
        context: ClientContext,
        *,
        percentage: int = 0,
        reads_max: int = 32,
        asks_lists: bool = False,
        members: Collection[str] | None = None,
    ) -> None:
        """Args:
        asks_lists: Also ask each bookie for its list of entries.
        members: The bookies to look at; None for all of a ledger.
        """
        self._context, self._percentage, self._asks_lists = context, percentage, asks_lists
        self._limiter = trio.CapacityLimiter(reads_max)
        self._tasks_max, self._members = reads_max, members
        self._lists = EntryLists(context, self._limiter)

    async def find(
        self, current: Versioned, lac: int, registered: RegisteredBookies, absent: Collection[str] = ()
    ) -> CheckResult:
        """Look at all fragments of a ledger.

        Args:
            lac: As ``last_entry_of`` returns it.
            absent: Bookies that may lack any entry, because they were away. All of their entries are read, if
                they give no list.
        """
        metadata = current.metadata
        # Format version 1 stores no password. Then a reply counts without its digest.
        codec = None if metadata.password is None else EntryCodec(metadata.digest_type, metadata.password)
        bad: dict[tuple[int, int], None] = {}
        has_doubts, unreached = False, set[str]()
        fragments = fragments_of(metadata, lac)
        denied: dict[tuple[int, int], int] = {}  # the entry that the bookie did not return
        asked = self._looked_at(fragments)
        lists: dict[str, Availability | None] = {}
        if self._asks_lists:
            lists = await self._lists.of_each(current.ledger_id, asked & registered.all)

        def jobs() -> Iterator[tuple[int, int, list[int]]]:
            for number, fragment in enumerate(fragments):
                for index, bookie in enumerate(fragment.bookies):
                    is_suspect = bookie in absent and lists.get(bookie) is None
                    percentage = 100 if is_suspect else self._percentage
                    entries = bookie in asked and fragment.to_verify(index, percentage, self._context.rng)
                    if entries and bookie not in registered.all:
                        bad[number, index] = None
                    elif entries:
                        yield number, index, entries

        todo = jobs()

        async def verify() -> None:
            nonlocal has_doubts
            for number, index, entries in todo:  # the tasks share it; each job goes to one of them
                bookie = fragments[number].bookies[index]
                for entry_id in entries:
                    async with self._limiter:
                        found = await self._has(current.ledger_id, bookie, entry_id, codec, unreached)
                    has_doubts |= found is None
                    if found is False:
                        bad[number, index] = None
                        denied[number, index] = entry_id
                        break
                await trio.lowlevel.checkpoint()

        # Metadata may name thousands of replicas: there are no more tasks than reads at once.
        async with trio.open_nursery() as nursery:
            for _ in range(min(self._tasks_max, sum(len(one.bookies) for one in fragments))):
                nursery.start_soon(verify)
        held: dict[tuple[int, int], Availability] = {}
        if self._asks_lists:
            held = await self._find_holes(current.ledger_id, fragments, lists, bad)
        indices_of: dict[int, list[int]] = {}
        for number, index in sorted(bad):
            indices_of.setdefault(number, []).append(index)
        # An entry that is in the list and was not returned is damaged: the list proves nothing.
        proven = {at: one for at, one in held.items() if denied.get(at) not in one}
        found = tuple(
            BadFragment(
                fragments[number],
                tuple(indices),
                {index: proven[number, index] for index in indices if (number, index) in proven},
            )
            for number, indices in indices_of.items()
        )
        return CheckResult(found, has_doubts, frozenset(unreached))

    def _looked_at(self, fragments: Collection[Fragment]) -> set[str]:
        found = {bookie for fragment in fragments for bookie in fragment.bookies}
        return found if self._members is None else found.intersection(self._members)

    async def _find_holes(
        self,
        ledger_id: int,
        fragments: list[Fragment],
        lists: Mapping[str, Availability | None],
        bad: dict[tuple[int, int], None],
    ) -> dict[tuple[int, int], Availability]:
        """Add members with holes to ``bad``; return the lists of all members that gave one."""
        found: dict[tuple[int, int], Availability] = {}
        for number, index in [
            (number, index) for number, one in enumerate(fragments) for index in range(len(one.bookies))
        ]:
            fragment = fragments[number]
            held = lists.get(fragment.bookies[index])
            if held is None or fragment.ends_at(index) is None:
                continue
            found[number, index] = held
            if (number, index) not in bad and await lacks_any(fragment, index, held):
                bad[number, index] = None
                logger.info(
                    "ledger %d: bookie %s lacks entries of the fragment at entry %d",
                    ledger_id,
                    fragment.bookies[index],
                    fragment.first,
                    extra=event(
                        "replica.holes",
                        ledger=ledger_id,
                        bookie=fragment.bookies[index],
                        first_entry=fragment.first,
                    ),
                )
        return found

    async def _has(
        self, ledger_id: int, bookie: str, entry_id: int, codec: EntryCodec | None, unreached: set[str]
    ) -> bool | None:
        """Whether a bookie returns an entry; None if it does not say. One that cannot be reached is added."""
        request = ReadRequest(ledger_id, entry_id)
        try:
            reply = await self._context.transport.call(bookie, request)
            if codec is not None:
                entry_of(reply, bookie, request, codec)
            elif reply.code is not Code.OK:
                raise refusal_of(reply, bookie, ledger_id, entry_id)
        except (TooManyRequestsRefusal, UnauthorizedRefusal):
            return None
        except BookieUnavailableError:  # the transport has logged it
            unreached.add(bookie)
            return False
        except (BookieError, CorruptEntryError) as exc:
            logger.info(
                "ledger %d: bookie %s does not return entry %d: %s",
                ledger_id,
                bookie,
                entry_id,
                exc,
                extra=event("replica.missing", ledger=ledger_id, bookie=bookie, entry=entry_id, error=exc),
            )
            return False
        return True
