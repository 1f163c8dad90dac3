"""The lists of entries that bookies give of a ledger.

Inside: the requests, the search for a hole. Not inside: the counting (``replicas_check``).
Always: a bookie that gives no list, because it is overloaded, in limbo or too old for the request, is neither
complete nor incomplete. Apache's bookie with DbLedgerStorage never answers the request; a bookie that did not
answer is not asked again for an hour, so that it does not delay each ledger by a timeout. One that has given
a list before is asked again at once: it was only stopped or busy, and that is when it misses entries.

Source: AuditorReplicasCheckTask.java; docs/protocol.md 3.6.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

import trio

from ledger.catalog.availability import Availability, decode_availability
from ledger.codes import Code
from ledger.context import ClientContext
from ledger.errors import BookieError, BookieTimeoutError, UnsupportedInVersionError, WireError
from ledger.fragments.fragments import Fragment
from ledger.fragments.replicas_check import NOTHING, in_ranges, lacked, parts_of
from ledger.wire.messages import ListEntriesReply, ListEntriesRequest

SILENT_S = 3600.0  # until a bookie that did not answer is asked again


async def lacks_any(fragment: Fragment, index: int, held: Availability) -> bool:
    """True if the bookie at this index lacks an entry of the fragment."""
    async with aclosing(lacked_ranges(fragment, index, held)) as ranges:
        async for _ in ranges:
            return True
    return False


async def lacked_ranges(
    fragment: Fragment, index: int, held: Availability | None
) -> AsyncGenerator[tuple[int, int], None]:
    """The entries that the bookie at this index lacks, as first and last of each range.

    All that belong on it if there is no list. A caller that stops before the end wraps the iterator in
    ``contextlib.aclosing``.
    """
    if held is None:
        for first, last in fragment.ranges([index]):
            for part in in_ranges(first, last):
                yield part
        return
    for first, last, period in parts_of(fragment, [held]):
        is_whole = True  # as far as one repetition
        for start, stop in in_ranges(first, last):
            if is_whole and start >= first + period:
                break
            await trio.lowlevel.checkpoint()
            lost = lacked(fragment, index, held, start, stop)
            is_whole &= not lost
            begin = 0
            for at in range(1, len(lost) + 1):
                if at == len(lost) or lost[at] != lost[at - 1] + 1:
                    yield lost[begin], lost[at - 1]
                    begin = at


class EntryLists:
    """The requests of one program. It remembers which bookies do not answer them."""

    def __init__(self, context: ClientContext, limiter: trio.CapacityLimiter) -> None:
        self._context, self._limiter = context, limiter
        self._ask_at: dict[str, float] = {}  # of each bookie that did not answer
        self._able: set[str] = set()  # bookies that have given a list

    async def of_each(self, ledger_id: int, bookies: Collection[str]) -> dict[str, Availability | None]:
        """The entries of a ledger that each bookie has; None for a bookie that does not say."""
        found: dict[str, Availability | None] = {}

        async def ask(bookie: str) -> None:
            async with self._limiter:
                found[bookie] = await self._of(ledger_id, bookie)

        async with trio.open_nursery() as nursery:
            for bookie in sorted(bookies):  # a run of the simulation is repeatable
                nursery.start_soon(ask, bookie)
        return found

    async def _of(self, ledger_id: int, bookie: str) -> Availability | None:
        if trio.current_time() < self._ask_at.get(bookie, 0.0):
            return None
        try:
            reply = await self._context.transport.call(bookie, ListEntriesRequest(ledger_id))
            if not isinstance(reply, ListEntriesReply):
                return None
            if reply.code in (Code.NO_LEDGER, Code.NO_ENTRY):
                return NOTHING
            if reply.code is not Code.OK or reply.availability is None:
                return None
            self._able.add(bookie)
            return decode_availability(reply.availability)
        except (BookieTimeoutError, UnsupportedInVersionError):
            if bookie not in self._able:
                self._ask_at[bookie] = trio.current_time() + SILENT_S
        except (BookieError, WireError):
            pass
        return None
