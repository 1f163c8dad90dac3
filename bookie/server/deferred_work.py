"""The deferred requests of one connection: budgets, a few workers, long polls.

Inside: which request is refused with TOO_MANY_REQUESTS, the queue, the workers. Not inside: the work
(``reads``), waiting long polls (``long_polls``), the socket (``connection``).
Always: each request is answered once, refused, or lost with its connection; every count is given back when
the request is answered or the connection ends.

Source: BookieRequestProcessor.java (``maxPendingReadRequestsPerThread``, ``maxPendingAddRequestsPerThread``);
docs/security.md, "Budgets of a connection".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from bookie.requests.deferred import DeferredRequest, PlainReads, WokenPoll, is_long_poll
from bookie.requests.in_progress import share_of
from bookie.requests.long_polls import LongPolls
from bookie.requests.reads import SLICE_READS, DeferredReplies
from bookie.requests.replies import refusal
from bookie.requests.session import ClientSession
from bookie.requests.turns import READ_UNITS
from bookie.server.reply_queue import ReplyQueue
from bookie.server.server_parts import ServerParts
from ledger.codes import Code
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    IncomingRequest,
    ListEntriesRequest,
    ReadRequest,
)

_REFUSAL_BYTES = 28  # of the reply to a plain read
_ALL_CONNECTIONS = 8  # times the budget of one connection; Apache's default number of read threads


class DeferredWork:
    """See the module. On the loop."""

    def __init__(
        self,
        parts: ServerParts,
        session: ClientSession,
        reply_queue: ReplyQueue,
        on_refused: Callable[[], None],
    ) -> None:
        """``on_refused``: called for each request that is refused."""
        service, config, turns = parts.service, parts.config, parts.turns
        self._config = config
        self._session = session
        self._memory = parts.memory
        self._reply_queue = reply_queue
        self._turns = turns
        self._in_progress = service.in_progress
        self._on_refused = on_refused
        self._replies = DeferredReplies(
            service,
            session,
            reply_queue,
            parts.wall_ms,
            config.batch_bytes_max,
            turns,
            lambda incoming, request: self._started_polls().park(incoming, request),
        )
        self._polls = LongPolls(
            service.watches,
            turns,
            self._replies.polls,
            self._queue_request,
            parts.wall_ms,
            long_polls_max=config.long_polls_max,
            on_fault=lambda exc: session.on_fault(exc),
        )
        self._queue: deque[tuple[DeferredRequest, float]] = deque()  # with the time of its arrival
        self.count = 0  # requests in ``_queue`` and in work
        self.count_max = config.deferred_queue_max  # with more, nothing more should be received
        self._lists_count = 0  # of them, lists of entries
        self._held_bytes = 0  # of the entries that they hold
        self.has_read = False  # this peer makes requests that wait
        self._is_short: trio.Event | None = None  # set when the queue is short again
        self._workers_count = 0
        self._idle_worker: trio.lowlevel.Task | None = None
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<DeferredWork, {self.count} requests, {len(self._polls)} long polls>"

    def start(self, nursery: trio.Nursery) -> None:
        """Workers run in this nursery from now on."""
        self._nursery = nursery

    async def wait_short(self) -> None:
        """Return when ``count`` is at most ``count_max``; at once if it is already."""
        while self.count > self.count_max:
            self._is_short = trio.Event()
            await self._is_short.wait()

    def add(self, request: DeferredRequest) -> None:
        """Begin work whose reply comes later, or refuse it. Does nothing after the connection has ended."""
        if self._living_nursery() is None:
            return
        if is_long_poll(request):
            assert isinstance(request, IncomingRequest)  # ``is_long_poll`` says no for all others
            assert isinstance(request.request, ReadRequest)  # likewise
            if not self._started_polls().add(request, request.request):
                self._refuse(request)
        elif self._takes_budget(request):
            self._queue_request(request)
        else:
            self._refuse(request)

    def close(self) -> None:
        """The connection has ended: give all counts back."""
        self._nursery = None
        self._polls.close()
        self._in_progress.count_lists(-self._lists_count)
        self._in_progress.count_reads(-self.count)
        self._queue.clear()
        self._give_back(self._held_bytes)

    # Budgets

    def _takes_budget(self, request: DeferredRequest) -> bool:
        """Count what the request needs besides its place in the queue; False if there is too little.

        However many requests the other connections have waiting, this one may have a few.
        """
        limit, count = self._config.pending_reads_max, 1
        if isinstance(request, PlainReads):
            count = len(request)
        elif isinstance(request, IncomingRequest):
            if isinstance(request.request, ListEntriesRequest):
                return self._takes_list()
            if isinstance(request.request, AddRequest):
                limit = self._config.pending_adds_max
        if limit and self.count + count > min(limit, self._share(limit)):
            # A refusal takes more memory than a plain read that waits. Without memory for refusals the reads
            # wait, and nothing more is received from the peer.
            return count > 1 and self._reply_queue.free_bytes < _REFUSAL_BYTES * count
        size_bytes = _held_bytes(request)
        if size_bytes:
            if self._memory.is_exhausted:
                return False
            self._held_bytes += size_bytes
            self._memory.take(size_bytes)
        return True

    def _share(self, limit: int) -> int:
        """How many requests this connection may have waiting, so that the others have some, too."""
        return share_of(_ALL_CONNECTIONS * limit, self._in_progress.reads - self.count)

    def _takes_list(self) -> bool:
        if self._lists_count >= (1 if self._in_progress.has_all_lists else self._config.lists_max):
            return False
        self._lists_count += 1
        self._in_progress.count_lists(1)
        return True

    def _give_back(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._memory.give_back(size_bytes)

    def _refuse(self, request: DeferredRequest) -> None:
        self._on_refused()
        if isinstance(request, PlainReads):
            self._in_progress.refused_reads += len(request)
            for at in range(len(request)):
                self._session.send_plain(*request[at], Code.TOO_MANY_REQUESTS)
        elif isinstance(request, IncomingRequest):
            if isinstance(request.request, AddRequest):
                self._in_progress.refused_adds += 1
            elif isinstance(request.request, ReadRequest | BatchReadRequest):
                self._in_progress.refused_reads += 1
            self._session.reply(request, refusal(request, Code.TOO_MANY_REQUESTS))

    # Work

    def _queue_request(self, request: DeferredRequest) -> None:
        nursery = self._living_nursery()
        if nursery is None:
            return
        count = len(request) if isinstance(request, PlainReads) else 1
        self._queue.append((request, self._in_progress.now_s()))
        self.count += count
        self._in_progress.count_reads(count)
        self.has_read = True
        worker = self._idle_worker
        if worker is not None:
            self._idle_worker = None
            trio.lowlevel.reschedule(worker)
        elif self._workers_count < self._config.deferred_workers_max:
            self._workers_count += 1
            nursery.start_soon(self._work)

    def _started_polls(self) -> LongPolls:
        """The long polls, with their task."""
        nursery = self._living_nursery()
        if not self._polls.is_running and nursery is not None:
            self._polls.is_running = True
            nursery.start_soon(self._polls.run)
        return self._polls

    def _living_nursery(self) -> trio.Nursery | None:
        """None once the connection ends: a nursery whose last task has ended starts no other."""
        nursery = self._nursery
        return None if nursery is None or nursery.cancel_scope.cancel_called else nursery

    async def _work(self) -> None:
        """Reply to deferred requests, one after the other."""
        done_count, turn, turns = 0, 0, self._turns
        try:
            while True:
                while self._queue:
                    if done_count == SLICE_READS or (turns.is_spent and not turns.has_turn(turn)):
                        done_count = 0
                        # Requests that need no disk have no other wait.
                        turn = await turns.wait(min(len(self._queue), SLICE_READS) * READ_UNITS)
                        if not self._queue:
                            break  # other workers were faster
                    turns.charge(READ_UNITS)
                    request, began_s = self._queue.popleft()
                    failed = await self._replies.reply_to(request)
                    self._note_latency(request, failed, began_s)
                    self._done(request)
                    done_count += 1
                if self._idle_worker is not None:
                    return
                # One idle worker stays: a peer that reads from disk reads again, and a new task for each read
                # costs more.
                self._idle_worker = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._stop_idling)
        finally:
            self._workers_count -= 1

    def _done(self, request: DeferredRequest) -> None:
        count = len(request) if isinstance(request, PlainReads) else 1
        if isinstance(request, IncomingRequest):
            if isinstance(request.request, ListEntriesRequest):
                self._lists_count -= 1
                self._in_progress.count_lists(-1)
            elif size_bytes := _held_bytes(request):
                self._give_back(size_bytes)
        self.count -= count
        self._in_progress.count_reads(-count)
        if self._is_short is not None and self.count <= self._config.deferred_queue_max // 2:
            self._is_short.set()
            self._is_short = None

    def _note_latency(self, request: DeferredRequest, failed: int, began_s: float) -> None:
        latencies, count = self._in_progress.deferred, 1
        if isinstance(request, PlainReads):
            (done, not_done), count = latencies.reads, len(request)
        elif isinstance(request, WokenPoll) or is_long_poll(request):
            done, not_done = latencies.long_polls
        elif isinstance(request.request, ReadRequest):
            done, not_done = latencies.fencing_reads if request.request.fence else latencies.reads
        elif isinstance(request.request, BatchReadRequest):
            done, not_done = latencies.reads
        else:
            return
        now_s = self._in_progress.now_s()
        if failed:
            not_done.add(now_s - began_s, now_s, failed)
        if count > failed:
            done.add(now_s - began_s, now_s, count - failed)

    def _stop_idling(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._idle_worker = None
        return trio.lowlevel.Abort.SUCCEEDED


def _held_bytes(request: DeferredRequest) -> int:
    """The size of the entry that a deferred add holds; 0 for other requests."""
    if isinstance(request, IncomingRequest) and isinstance(request.request, AddRequest):
        return len(request.request.body)
    return 0
