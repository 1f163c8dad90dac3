"""Long polls: a bookie holds a read until its ledger has grown.

Inside: which bookies to poll, when to poll the next one too, which LAC in a reply counts.
Not inside: how long to wait.
Always: only a LAC inside an entry or a LAC packet counts, since a digest covers it. ``max_lac`` in a reply is
covered by no digest; it is only a reason to read the LAC. (Java trusts the number; docs/protocol.md 13.)

Source: ReadLastConfirmedAndEntryOp.java; docs/protocol.md 6.6, 9.4.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ledger.catalog.catalog import Versioned
from ledger.codes import Code
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import BookieError, CorruptEntryError
from ledger.quorum import write_set
from ledger.transport.bookie_requests import read_lac, refusal_of
from ledger.wire.messages import LAST_ENTRY, ReadReply, ReadRequest

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 2.0


class LacPoll:
    """Polls the last ensemble of an open ledger until one of its bookies returns a greater LAC."""

    def __init__(
        self, context: ClientContext, current: Versioned, codec: EntryCodec, on_lac: Callable[[int], None]
    ) -> None:
        self._context, self._current, self._codec = context, current, codec
        self._on_lac = on_lac
        self._lac = -1

    async def run(self, entry_id: int) -> None:
        """Return when the LAC is beyond ``entry_id``. A cancelled poll changes nothing."""
        # Every entry in front of the last segment is confirmed, also if its bookies do not know it.
        self._raise_lac(self._current.metadata.last_ensemble.first_entry_id - 1)
        pause_s = PAUSE_MIN_S
        while self._lac <= entry_id:
            started = trio.current_time()
            await self._poll_all(entry_id)
            if self._lac > entry_id:
                return
            # Bookies that are down, or have no entry of the ledger, fail at once: pause before the next try.
            pause_s = PAUSE_MIN_S if trio.current_time() - started > 1 else min(PAUSE_MAX_S, pause_s * 2)
            await trio.sleep(pause_s)

    async def _poll_all(self, entry_id: int) -> None:
        """Poll every bookie once: each when the one before it has replied or is slow."""
        bookies = self._current.metadata.last_ensemble.bookies
        order = [bookies[index] for index in write_set(entry_id + 1, len(bookies), len(bookies))]
        finished = 0
        replied = trio.Event()

        async def poll(bookie: str) -> None:
            nonlocal finished
            try:
                await self._poll(bookie, entry_id)
            except (BookieError, CorruptEntryError):
                pass  # another bookie may know: confirmed entries are on an ack quorum
            finished += 1
            replied.set()
            if self._lac > entry_id or finished == len(order):
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for bookie in order:
                nursery.start_soon(poll, bookie)
                # Poll the next bookie when this one has replied without a greater LAC, or is slow: the writer
                # may no longer reach this one.
                with trio.move_on_after(self._context.config.speculative_poll_s):
                    await replied.wait()
                replied = trio.Event()

    async def _poll(self, bookie: str, entry_id: int) -> None:
        config = self._context.config
        # Without piggy-backing the reply holds the bookie's last entry, whose digest covers its LAC.
        request = ReadRequest(
            self._current.ledger_id,
            LAST_ENTRY,
            previous_lac=entry_id,
            timeout_ms=max(1, int(config.long_poll_max_s * 1000)),
        )
        reply = await self._context.transport.call(bookie, request)
        if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
            raise refusal_of(reply, bookie, self._current.ledger_id, None)
        self._raise_lac(self._codec.unpack(reply.body, self._current.ledger_id, None).lac)
        if self._lac <= entry_id and reply.max_lac is not None and reply.max_lac > entry_id:
            self._raise_lac(
                await read_lac(self._context.transport, bookie, self._current.ledger_id, self._codec)
            )

    def _raise_lac(self, lac: int) -> None:
        if lac > self._lac:
            self._lac = lac
            self._on_lac(lac)
