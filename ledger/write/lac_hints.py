"""Hints: a writer tells the bookies its LAC when no entry follows that would carry it.

A bookie of ours learns from the hint which entries are confirmed, and answers the long polls of readers.
Otherwise they wait for the next entry. A hint is one frame, kept in the bookie's memory, without a reply; it
may get lost.

Inside: when a hint is due, which bookies take hints. Not inside: the frame (``wire``), the bookie's side
(``bookie.requests.session``), explicit LACs, which bookies store (``explicit_lac``).
Always: a hint never says more than the writer's LAC, which an ack quorum holds; nothing is hinted after the
handle has ended; a bookie that did not say that it takes hints, as Apache's, gets none.

Source: our own; docs/protocol.md 5.12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import trio

from ledger.codes import Code
from ledger.context import ClientContext
from ledger.digest import EntryCodec
from ledger.errors import BookieError
from ledger.runtime.tasks.next_turn import call_next_turn
from ledger.runtime.tasks.timers import Timer
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest, Reply, WriteLacRequest
from ledger.write.explicit_lac import Position

DELAYS = 16  # confirmations of a caller that appended again at once
ASK_AGAIN_S = 10.0  # a bookie that gave no answer

_QUESTION = BookieInfoRequest(total_disk_capacity=False, free_disk_space=False, features=True)


class LacHints:
    """The hints of one writer. ``on_confirmed`` is a callback of its handle."""

    def __init__(
        self,
        ledger_id: int,
        codec: EntryCodec,
        context: ClientContext,
        position: Position,
        bookies: Callable[[], Sequence[str]],
        delay_s: float,
    ) -> None:
        """
        Args:
            bookies: The ensemble of new entries.
            delay_s: How long a confirmed entry waits for one that follows it.
        """
        self._ledger_id, self._codec, self._context = ledger_id, codec, context
        self._position, self._bookies, self._delay_s = position, bookies, delay_s
        self._timer: Timer | None = None
        self._delays_left = 0  # confirmations for which the delay is waited
        self._is_looking = False  # in one of the next turns of the loop
        self._is_over = False
        self._hinted = -1
        self._hinted_s = -math.inf  # when

    def on_confirmed(self, lac: int, error: BaseException | None) -> None:
        """The LAC has grown, or the handle has ended."""
        if error is not None:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            return
        if lac <= self._hinted or self._position.last_pushed > lac:
            return  # it was hinted, or the confirmation of the entry in flight calls again
        if not self._delays_left and trio.current_time() - self._hinted_s < self._delay_s:
            # The last hint was wasted work: its LAC came with this entry soon afterwards. So it is with a
            # caller in another thread, which needs some turns of the loop until it appends again.
            self._delays_left = DELAYS
        if self._delays_left:
            self._delays_left -= 1
            if self._timer is None:
                self._timer = self._context.transport.timers.after(self._delay_s, self._look)
        elif not self._is_looking:
            # A writer that continues sends the LAC with its next entry, so a hint would be wasted work. A
            # caller that waits for this confirmation runs in the next turn, and may append again there.
            self._is_looking = True
            call_next_turn(self._look_next_turn)

    def hint_now(self) -> None:
        """Hint the LAC, if it is new: no caller waits for its confirmation, so none appends in this turn."""
        if self._timer is not None:
            self._timer.cancel()
        self._look()

    def _look_next_turn(self) -> None:
        call_next_turn(self._look_now)

    def _look_now(self) -> None:
        self._is_looking = False
        if self._position.last_pushed > self._position.lac:
            self._delays_left = DELAYS
        else:
            self._look()

    def _look(self) -> None:
        self._timer = None
        lac = self._position.lac
        if self._is_over or lac <= self._hinted or self._position.last_pushed > lac:
            return
        self._hinted, self._hinted_s = lac, trio.current_time()
        packet = self._codec.pack_lac(self._ledger_id, lac)
        hint = WriteLacRequest(self._ledger_id, lac, self._codec.master_key, packet, hint=True)
        known = self._context.takes_hints
        for bookie in self._bookies():
            takes_hints = known.get(bookie)
            if takes_hints is None:
                self._ask(bookie)
            elif takes_hints and not self._context.transport.post_hint(bookie, hint):
                # The connection was lost: another bookie may serve at this address now.
                self._ask(bookie)

    def _ask(self, bookie: str) -> None:
        """Ask a bookie whether it takes hints. The answer holds for all writers of the client."""
        known = self._context.takes_hints
        known[bookie] = False  # until it has replied
        try:
            self._context.transport.send(bookie, _QUESTION, partial(self._on_reply, bookie))
        except BookieError:
            pass  # the transport is closed

    def _on_reply(self, bookie: str, reply: Reply | BookieError) -> None:
        known = self._context.takes_hints
        if isinstance(reply, BookieInfoReply) and reply.code is Code.OK:
            known[bookie] = reply.takes_lac_hints
            if reply.takes_lac_hints:
                self._hinted, self._hinted_s = -1, -math.inf  # this bookie did not get the hint
                if not self._is_over:
                    self.on_confirmed(self._position.lac, None)
        else:
            # It may be down. Ask again, but not with each hint.
            self._context.transport.timers.after(ASK_AGAIN_S, partial(self._forget, bookie))

    def _forget(self, bookie: str) -> None:
        self._context.takes_hints.pop(bookie, None)
