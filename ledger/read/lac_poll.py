"""Long polls: a bookie holds a read until its ledger has grown.

Inside: which bookies to poll, when to poll the next one too, which LAC in a reply counts.
Not inside: metadata that change meanwhile (``handle``).
Always: only a LAC inside an entry or a LAC packet counts, since a digest covers it. ``max_lac`` in a reply is
covered by no digest; it is only a reason to read the LAC. (Java trusts the number; docs/protocol.md 13.)
A poll that is over, stopped or cancelled leaves no request behind but the reader's standing poll.

A reader at the end of a ledger waits once for each entry. So a poll has no task, nursery or event of its own:
replies and timers move it on, and the waiting task is resumed once. The first bookie gets a long poll that
continues after its replies, and later waits use it too (``standing_poll``).

Source: ReadLastConfirmedAndEntryOp.java; docs/protocol.md 6.6, 9.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import attrs
import trio

from ledger.catalog.catalog import Versioned
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import BookieError, CorruptEntryError, LedgerReadError, is_refusal
from ledger.quorum import write_set
from ledger.read.standing_poll import REPLIES_MAX, StandingPoll
from ledger.runtime.tasks.timers import Timer
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
        standing: StandingPoll,
    ) -> None:
        """
        Args:
            standing: Takes the entries in the replies, verified and perhaps not confirmed.
        """
        self._context, self._current, self._codec = context, current, codec
        self._on_lac, self._standing = on_lac, standing
        metadata = current.metadata
        # Every bookie of the ensemble gets every entry: any of them notices that the ledger grows.
        self._may_stand = metadata.write_quorum == metadata.ensemble_size
        self._listens = False  # to the standing poll
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
        self._refusals: dict[str, Exception] = {}

    async def run(self, entry_id: int, timeout_s: float) -> None:
        """Return when the LAC is beyond ``entry_id``, after ``stop``, or after ``timeout_s``.

        A cancelled poll changes nothing. After a run that was not stopped there may be another one.
        """
        # Every entry in front of the last segment is confirmed, also if its bookies do not know it.
        self._raise_lac(self._current.metadata.last_ensemble.first_entry_id - 1)
        pause_s = PAUSE_MIN_S
        self._entry_id = entry_id
        started_s = trio.current_time()
        deadline_s = started_s + timeout_s
        timer: Timer | None = None
        if timeout_s < math.inf:
            timer = self._context.transport.timers.after(timeout_s, self._end_round)
        try:
            while self._lac <= entry_id and not self._is_stopped and started_s < deadline_s:
                await self._poll_all()
                if self._lac > entry_id or self._is_stopped:
                    return
                # Bookies that are down, or have no entry of the ledger, fail at once: pause before the next
                # try.
                now_s = trio.current_time()
                pause_s = PAUSE_MIN_S if now_s - started_s > 1 else min(PAUSE_MAX_S, pause_s * 2)
                with trio.move_on_at(min(now_s + pause_s, deadline_s)) as self._pause:
                    await trio.sleep_forever()
                self._pause = None
                started_s = trio.current_time()
        finally:
            if timer is not None:
                timer.cancel()

    def fits(self, current: Versioned) -> bool:
        """True if another run is a poll of the ledger with these metadata."""
        return current is self._current and not self._is_stopped

    def stop(self) -> None:
        """Let ``run`` return soon, whatever the LAC is, and for good."""
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
        standing = self._standing
        bookies = self._current.metadata.last_ensemble.bookies
        self._order = [bookies[index] for index in write_set(self._entry_id + 1, len(bookies), len(bookies))]
        self._polled_count, self._is_round_over, self._refusals = 0, False, {}
        if self._may_stand and standing.listener is None:
            self._listens, standing.listener = True, self._on_standing
            if standing.bookie is not None and standing.bookie not in self._order:
                standing.end()
            if standing.bookie is not None:
                self._order.remove(standing.bookie)
                self._order.insert(0, standing.bookie)
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
                if self._listens and self._standing.bookie is None:
                    wait_ms = max(1, int(self._standing.wait_s * 1000))
                    request = attrs.evolve(request, timeout_ms=wait_ms, replies_max=REPLIES_MAX)
                    self._standing.start(bookie, request)
                elif not self._listens or self._standing.bookie != bookie:
                    self._send(bookie, request)
            except BookieError:
                continue  # the transport is closed
            if self._polled_count < len(self._order):
                # The writer may no longer reach a slow bookie.
                self._timer = transport.timers.after(config.speculative_poll_s, self._poll_next)
                return
        if self._requests:
            return
        if len(self._refusals) == len(self._order):
            self._error = LedgerReadError(self._current.ledger_id, None, self._refusals)
            self._end_round()
        elif not self._listens or self._standing.bookie is None:
            self._end_round()
        elif len(self._order) > 1:
            # The standing poll may be held for long. If its connection is dead, or its bookie has forgotten
            # it (docs/known-bugs.md 43), another bookie must tell.
            self._timer = transport.timers.after(config.long_poll_max_s, self._poll_others)

    def _poll_others(self) -> None:
        """Poll all bookies again but the one with the standing poll."""
        if self._standing.bookie is not None:
            self._order.remove(self._standing.bookie)
            self._order.insert(0, self._standing.bookie)
            self._polled_count = 1
        self._poll_next()

    def _send(self, bookie: str, request: ReadRequest | ReadLacRequest) -> None:
        on_reply = partial(self._on_reply, bookie)
        self._requests[bookie] = self._context.transport.send(bookie, request, on_reply)

    def _on_reply(self, bookie: str, reply: Reply | BookieError) -> None:
        del self._requests[bookie]
        self._on_standing(bookie, reply)
        if self._lac > self._entry_id and self._may_stand:
            self._standing.end()  # its bookie is slow

    def _on_standing(self, bookie: str, reply: Reply | BookieError) -> None:
        try:
            asks_again = self._take(bookie, reply)
        except (BookieError, CorruptEntryError) as exc:
            asks_again = False  # another bookie may know: confirmed entries are on an ack quorum
            if is_refusal(exc):
                self._refusals[bookie] = exc
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
        if not isinstance(reply, ReadReply):
            raise refusal_of(reply, bookie, ledger_id, None)
        self._raise_lac(self._standing.take(bookie, reply))
        if self._lac > self._entry_id or reply.max_lac is None or reply.max_lac <= self._entry_id:
            return False
        self._send(bookie, ReadLacRequest(ledger_id))
        return True

    def _end_round(self) -> None:
        """Forget the requests in flight and resume the waiting task. Without a round it does nothing."""
        if self._is_round_over:
            return
        self._is_round_over = True
        if self._listens:
            self._listens, self._standing.listener = False, None
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
