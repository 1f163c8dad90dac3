"""The lists of entries that bookies give of a ledger.

Inside: the requests, the search for a hole. Not inside: the counting (``replicas_check``).
Always: a bookie that gives no list, because it is overloaded, in limbo or too old for the request, is neither
complete nor incomplete.

Source: AuditorReplicasCheckTask.java; docs/protocol.md 3.6.
"""

from __future__ import annotations

from collections.abc import Collection

import trio

from ledger.catalog.availability import Availability, decode_availability
from ledger.codes import Code
from ledger.context import ClientContext
from ledger.errors import BookieError, WireError
from ledger.replication.fragments import Fragment
from ledger.replication.replicas_check import NOTHING, ReplicaCount, lacked
from ledger.wire.messages import ListEntriesReply, ListEntriesRequest


async def lacks_any(fragment: Fragment, index: int, held: Availability) -> bool:
    """True if the bookie at this index lacks an entry of the fragment."""
    count = ReplicaCount([fragment], 0, {})
    for _, first, last in count.ranges():
        if lacked(fragment, index, held, first, last):
            return True
        await trio.lowlevel.checkpoint()
    return False


async def list_entries(context: ClientContext, ledger_id: int, bookie: str) -> Availability | None:
    """The entries of a ledger that a bookie has; None if it does not say."""
    try:
        reply = await context.transport.call(bookie, ListEntriesRequest(ledger_id))
        if not isinstance(reply, ListEntriesReply):
            return None
        if reply.code in (Code.NO_LEDGER, Code.NO_ENTRY):
            return NOTHING
        if reply.code is not Code.OK or reply.availability is None:
            return None
        return decode_availability(reply.availability)
    except (BookieError, WireError):
        return None


async def list_of_each(
    context: ClientContext, ledger_id: int, bookies: Collection[str], limiter: trio.CapacityLimiter
) -> dict[str, Availability | None]:
    """``list_entries`` of each bookie, at once as far as the limiter allows."""
    found: dict[str, Availability | None] = {}

    async def ask(bookie: str) -> None:
        async with limiter:
            found[bookie] = await list_entries(context, ledger_id, bookie)

    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(ask, bookie)
    return found
