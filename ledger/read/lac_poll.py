"""Long polls: a bookie holds a read until its ledger has grown.

Inside: which bookies to poll, when to poll the next one too, which LAC in a reply counts.
Not inside: how long to wait.
Always: only a LAC inside an entry or a LAC packet counts, since a digest covers it. ``max_lac`` in a reply is
covered by no digest; it is only a reason to read the LAC. (Java trusts the number; docs/protocol.md 13.)
A poll that is over, stopped or cancelled leaves no request behind.

A reader at the end of a ledger polls once for each entry. So a poll has no task, nursery or event of its own:
replies and timers move it on, and the waiting task is resumed once.

Source: ReadLastConfirmedAndEntryOp.java; docs/protocol.md 6.6, 9.4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from ledger.catalog.catalog import Versioned
from ledger.codes import Code
from ledger.context import ClientContext
from ledger.digest import Entry, EntryCodec
from ledger.errors import BookieError, CorruptEntryError
from ledger.quorum import write_set
from ledger.tasks.timers import Timer
from ledger.transport.bookie_connection import PendingRequest
from ledger.transport.bookie_requests import lac_of, refusal_of
from ledger.wire.messages import LAST_ENTRY, ReadLacReply, ReadLacRequest, ReadReply, ReadRequest, Reply

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 2.0


class LacPoll:
    """Polls the last ensemble of an open ledger until one of its bookies returns a greater LAC."""

    def __init__(
        self,
        context: ClientContext,
        current: Versioned,
        codec: EntryCodec,
        on_lac: Callable[[int], None],
        on_entry: Callable[[Entry], None],
    ) -> None:
        """
        Args:
            on_entry: Called with each entry that a bookie sent, verified and perhaps not confirmed. Its LAC
                follows by ``on_lac``.
        """
        self._context, self._current, self._codec = context, current, codec
        self._on_lac, self._on_entry = on_lac, on_entry
        self._lac = -1
        self._is_stopped = False
        self._pause: trio.CancelScope | None = None  # while it pauses between two rounds
        # Of a round, in which each bookie is polled once:
        self._entry_id = -1
        self._order: list[str] = []
        self._polled_count = 0
        self._requests: dict[str, PendingRequest] = {}
        self._timer: Timer | None = None
        self._task: trio.lowlevel.Task | None = None  # while it waits for the round
        self._is_round_over = True
        self._error: Exception | None = None

    async def run(self, entry_id: int) -> None:
        """Return when the LAC is beyond ``entry_id``, or after ``stop``. A cancelled poll changes nothing."""
        # Every entry in front of the last segment is confirmed, also if its bookies do not know it.
        self._raise_lac(self._current.metadata.last_ensemble.first_entry_id - 1)
        pause_s = PAUSE_MIN_S
        self._entry_id = entry_id
        while self._lac <= entry_id and not self._is_stopped:
            started = trio.current_time()
            await self._poll_all()
            if self._lac > entry_id or self._is_stopped:
                return
            # Bookies that are down, or have no entry of the ledger, fail at once: pause before the next try.
            pause_s = PAUSE_MIN_S if trio.current_time() - started > 1 else min(PAUSE_MAX_S, pause_s * 2)
            with trio.move_on_after(pause_s) as self._pause:
                await trio.sleep_forever()
            self._pause = None

    def stop(self) -> None:
        """Let ``run`` return soon, whatever the LAC is."""
        self._is_stopped = True
        self._end_round()
        if self._pause is not None:
            self._pause.cancel()

    def _raise_lac(self, lac: int) -> None:
        if lac > self._lac:
            self._lac = lac
            self._on_lac(lac)

    # One round

    async def _poll_all(self) -> None:
        """Poll every bookie once: each when the one before it has replied or is slow."""
        await trio.lowlevel.checkpoint_if_cancelled()
        bookies = self._current.metadata.last_ensemble.bookies
        self._order = [bookies[index] for index in write_set(self._entry_id + 1, len(bookies), len(bookies))]
        self._polled_count, self._is_round_over = 0, False
        self._poll_next()
        if self._is_round_over:  # the transport is closed
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise self._error

    def _poll_next(self) -> None:
        """Poll the next bookie too, if there is one left; end the round if all have replied."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        config, transport = self._context.config, self._context.transport
        while self._polled_count < len(self._order):
            bookie = self._order[self._polled_count]
            self._polled_count += 1
            # Without piggy-backing the reply holds the bookie's last entry, whose digest covers its LAC.
            request = ReadRequest(
                self._current.ledger_id,
                LAST_ENTRY,
                previous_lac=self._entry_id,
                timeout_ms=max(1, int(config.long_poll_max_s * 1000)),
                wants_lac=True,
            )
            try:
                self._send(bookie, request)
            except BookieError:
                continue  # the transport is closed
            if self._polled_count < len(self._order):
                # The writer may no longer reach a slow bookie.
                self._timer = transport.timers.after(config.speculative_poll_s, self._poll_next)
            return
        if not self._requests:
            self._end_round()

    def _send(self, bookie: str, request: ReadRequest | ReadLacRequest) -> None:
        on_reply = partial(self._on_reply, bookie)
        self._requests[bookie] = self._context.transport.send(bookie, request, on_reply)

    def _on_reply(self, bookie: str, reply: Reply | BookieError) -> None:
        del self._requests[bookie]
        try:
            asks_again = self._take(bookie, reply)
        except (BookieError, CorruptEntryError):
            asks_again = False  # another bookie may know: confirmed entries are on an ack quorum
        except Exception as exc:
            self._error = exc  # ends this poll, not the task of the connection
            self._end_round()
            return
        if self._lac > self._entry_id:
            self._end_round()
        elif not asks_again:
            self._poll_next()

    def _take(self, bookie: str, reply: Reply | BookieError) -> bool:
        """Take the LAC out of a reply. True if the bookie was asked for its LAC packet."""
        ledger_id = self._current.ledger_id
        if isinstance(reply, BookieError):
            raise reply
        if isinstance(reply, ReadLacReply):
            self._raise_lac(lac_of(reply, bookie, ledger_id, self._codec))
            return False
        if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
            raise refusal_of(reply, bookie, ledger_id, None)
        entry = self._codec.unpack(reply.body, ledger_id, None)
        self._on_entry(entry)
        self._raise_lac(entry.lac)
        if reply.lac_body is not None:
            self._raise_lac(self._codec.unpack_lac(reply.lac_body, ledger_id))
        if self._lac > self._entry_id or reply.max_lac is None or reply.max_lac <= self._entry_id:
            return False
        self._send(bookie, ReadLacRequest(ledger_id))
        return True

    def _end_round(self) -> None:
        """Forget the requests in flight and resume the waiting task. Without a round it does nothing."""
        if self._is_round_over:
            return
        self._is_round_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.forget()
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        self._end_round()
        return trio.lowlevel.Abort.SUCCEEDED
