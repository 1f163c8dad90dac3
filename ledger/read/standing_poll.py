"""The long poll that continues after a reply: a reader near the end of a ledger need not poll for each entry.

A bookie of ours answers such a long poll once for each growth of the LAC, up to ``REPLIES_MAX`` times. What
comes while nothing waits is kept for the next wait (``on_lac``, ``on_entry``). Apache's bookie answers once.

While the ledger does not grow, each poll may be held four times as long as the one before it: thousands of
readers may wait for logs that are idle.

Inside: the one standing long poll of a reader, replies that nothing waits for, how long it may be held. Not
inside: which bookie is polled and when (``lac_poll``), the frames (``wire``).
Always: only a LAC inside an entry or a LAC packet counts; a standing poll never hides that the LAC has grown:
if a reply says so and does not prove it, the poll ends, and the next wait asks again.

Source: our own; docs/protocol.md 9.4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from ledger.codes import Code
from ledger.digest import Entry, EntryCodec
from ledger.errors import BookieError, CorruptEntryError
from ledger.transport.bookie_connection import PendingRequest
from ledger.transport.bookie_requests import refusal_of
from ledger.transport.transport import Transport
from ledger.wire.messages import ReadReply, ReadRequest, Reply

REPLIES_MAX = 64  # a reader that stands still gets no more than this many
IDLE_WAIT_MAX_S = 30.0  # that a bookie may hold the poll of a ledger that does not grow

Listener = Callable[[str, Reply | BookieError], None]
"""Called with the bookie and its reply, or the error."""


class StandingPoll:
    """The standing long poll of one reader, or none. ``on_lac`` and ``on_entry`` as in ``LacPoll``."""

    def __init__(
        self,
        transport: Transport,
        codec: EntryCodec,
        ledger_id: int,
        on_lac: Callable[[int], None],
        on_entry: Callable[[Entry], None],
        wait_s: float,
    ) -> None:
        """
        Args:
            wait_s: How long a bookie may hold the poll of a ledger that has just grown.
        """
        self._transport, self._codec, self._ledger_id = transport, codec, ledger_id
        self._on_lac, self._on_entry = on_lac, on_entry
        self.bookie: str | None = None  # that is polled
        self.listener: Listener | None = None  # the wait, while there is one
        self.wait_s = wait_s
        self._wait_min_s = wait_s
        self._lac = -1  # proved by the replies
        self._request: PendingRequest | None = None

    def __repr__(self) -> str:
        return f"<StandingPoll of ledger {self._ledger_id} at {self.bookie}>"

    def start(self, bookie: str, request: ReadRequest) -> None:
        """Poll this bookie; there is no standing poll yet.

        Raises:
            BookieError: The transport is closed.
        """
        assert self._request is None  # LacPoll starts one only if there is none
        # A late reply to an earlier poll must not be taken for one of this poll.
        self._request = self._transport.send(bookie, request, partial(self._on_reply, bookie))
        self.bookie = bookie

    def end(self) -> None:
        """End the poll, if there is one. The bookie may send some replies more; they are dropped."""
        request, self._request, self.bookie = self._request, None, None
        if request is not None:
            request.forget()

    def take(self, bookie: str, reply: ReadReply) -> int:
        """Take the entry and the LAC out of a reply to a long poll; return the LAC, which a digest proves.

        Raises:
            BookieError: The bookie refused.
            CorruptEntryError: The bytes are not those of an entry of the ledger.
        """
        try:
            if reply.code is not Code.OK or reply.body is None:
                raise refusal_of(reply, bookie, self._ledger_id, None)
            entry = self._codec.unpack(reply.body, self._ledger_id, None)
            lac = entry.lac
            if reply.lac_body is not None:
                lac = max(lac, self._codec.unpack_lac(reply.lac_body, self._ledger_id))
        except (BookieError, CorruptEntryError):
            self.end()
            raise
        self._on_entry(entry)
        if lac > self._lac:
            self._lac, self.wait_s = lac, self._wait_min_s
        self._on_lac(lac)
        if reply.max_lac is not None and reply.max_lac > lac:
            self.end()  # the bookie would not say it again
        return lac

    def _on_reply(self, bookie: str, reply: Reply | BookieError) -> None:
        if not (isinstance(reply, ReadReply) and reply.more_follow):
            self._request = self.bookie = None
            # A refusal says nothing about growth. If the reply shows growth, ``take`` sets the time back.
            if isinstance(reply, ReadReply) and reply.code is Code.OK:
                self.wait_s = min(4 * self.wait_s, max(IDLE_WAIT_MAX_S, self._wait_min_s))
        if self.listener is not None:
            self.listener(bookie, reply)
        elif isinstance(reply, ReadReply):
            with contextlib.suppress(BookieError, CorruptEntryError):  # the next wait asks again
                self.take(bookie, reply)
