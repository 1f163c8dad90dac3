"""Long polls: having bookies say when a ledger has grown.

Inside: whom to ask, when to ask another one too, what an answer proves. Not inside: how long to wait.
Always: a bookie's bare number (``max_lac``) is covered by no digest, so it is only a hint to look; what
counts is the LAC inside an entry or a LAC packet. (Java believes the number; reference 13.12.)

Source: ReadLastConfirmedAndEntryOp.java; reference sections 6.7 and 9.4.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.digest import EntryCodec
from ledger.errors import BookieError, CorruptEntryError
from ledger.questions import read_lac, refusal_of
from ledger.quorum import write_set
from ledger.wire.codes import Code
from ledger.wire.messages import LAST_ENTRY, ReadReply, ReadRequest

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 2.0


class LacPoll:
    """Polls the last ensemble of an open ledger until one of its bookies shows a greater LAC."""

    def __init__(
        self, cluster: Cluster, current: Versioned, codec: EntryCodec, raise_lac: Callable[[int], None]
    ) -> None:
        self._cluster, self._current, self._codec = cluster, current, codec
        self._raise_lac = raise_lac
        self._lac = -1

    async def run(self, entry_id: int) -> None:
        """Return when the LAC is beyond ``entry_id``; otherwise never. Cancelling it harms nothing."""
        # Everything in front of the last segment is confirmed, whether or not its bookies say so.
        self._learn(self._current.metadata.last_ensemble.first_entry_id - 1)
        pause_s = PAUSE_MIN_S
        while self._lac <= entry_id:
            started = trio.current_time()
            await self._round(entry_id)
            if self._lac > entry_id:
                return
            # Bookies that are away, or never heard of the ledger, answer at once: do not ask them in a loop.
            pause_s = PAUSE_MIN_S if trio.current_time() - started > 1 else min(PAUSE_MAX_S, pause_s * 2)
            await trio.sleep(pause_s)

    async def _round(self, entry_id: int) -> None:
        """Ask every bookie once, one after the other unless they are slow."""
        bookies = self._current.metadata.last_ensemble.bookies
        order = [bookies[index] for index in write_set(entry_id + 1, len(bookies), len(bookies))]
        finished = 0
        next_please = trio.Event()

        async def ask(bookie: str) -> None:
            nonlocal finished
            try:
                await self._ask(bookie, entry_id)
            except (BookieError, CorruptEntryError):
                pass  # another one may know; the writer's progress is on an ack quorum of them
            finished += 1
            next_please.set()
            if self._lac > entry_id or finished == len(order):
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for bookie in order:
                nursery.start_soon(ask, bookie)
                # The next one is asked when this one has answered without news, or is slow to do so: it may
                # be one that the writer no longer reaches.
                with trio.move_on_after(self._cluster.config.speculative_poll_s):
                    await next_please.wait()
                next_please = trio.Event()

    async def _ask(self, bookie: str, entry_id: int) -> None:
        config = self._cluster.config
        # Without piggy-backing, the answer holds the bookie's last entry: its LAC is under its digest.
        request = ReadRequest(
            self._current.ledger_id,
            LAST_ENTRY,
            previous_lac=entry_id,
            timeout_ms=max(1, int(config.long_poll_max_s * 1000)),
        )
        reply = await self._cluster.transport.call(bookie, request)
        if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
            raise refusal_of(reply, bookie, self._current.ledger_id, None)
        self._learn(self._codec.unpack(reply.body, self._current.ledger_id, None).lac)
        if self._lac <= entry_id and reply.max_lac is not None and reply.max_lac > entry_id:
            self._learn(await read_lac(self._cluster.transport, bookie, self._current.ledger_id, self._codec))

    def _learn(self, lac: int) -> None:
        if lac > self._lac:
            self._lac = lac
            self._raise_lac(lac)
