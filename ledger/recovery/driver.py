"""Performs the actions of one recovery: reads, adds and waits; passes their results back.

Inside: sending requests and waiting for replies, without a task for each request.
Not inside: the decisions (``recovery``), marking and closing in the metadata (``opening``).
Always: every read that the decision uses fences, reads of entries with high priority; a bookie over capacity
is tried again for a limited time; after the decision, a failure or a cancellation nothing more is sent.

Source: LedgerRecoveryOp.java; docs/protocol.md 7.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import assert_never

import trio

from ledger.catalog.catalog import Versioned
from ledger.codes import Code
from ledger.context import ClientContext
from ledger.digest import Entry, EntryCodec
from ledger.errors import (
    BookieError,
    BookieTimeoutError,
    BookieUnavailableError,
    CorruptEntryError,
    LedgerRecoveryError,
    is_directory_full,
)
from ledger.read.replica_rules import EntryRead, replicas
from ledger.recovery.recovery import (
    Action,
    AddEntry,
    AwaitOthers,
    CloseLedger,
    GiveUp,
    ReadEntry,
    ReadLac,
    ReadLength,
    ReadResult,
    Recovery,
)
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.timers import Timer
from ledger.transport.bookie_connection import PendingRequest
from ledger.transport.bookie_requests import entry_of, refusal_of
from ledger.wire.messages import LAST_ENTRY, AddRequest, ReadRequest, Reply, Request

logger = get_logger(__name__)

PROGRESS_S = 10.0  # between two lines about one recovery

TakeReply = Callable[[Reply | BookieError], list[Action]]


class RecoveryDriver:
    """One recovery, for one call of ``find_end``."""

    def __init__(self, context: ClientContext, current: Versioned, codec: EntryCodec) -> None:
        self._context, self._current, self._codec = context, current, codec
        self._transport, self._ledger_id = context.transport, current.ledger_id
        self._recovery = Recovery(
            current.ledger_id,
            current.metadata,
            pack=functools.partial(codec.pack, current.ledger_id),
            choose=self._choose,
            read_ahead=context.config.recovery_read_ahead,
            bytes_max=context.config.bytes_in_flight_max,
            entries_max=context.config.recovery_entries_max,
        )
        self._tried: dict[str, None] = {}  # bookies that failed this recovery, in order
        self._requests: dict[PendingRequest, None] = {}
        self._timers: dict[Timer, None] = {}
        self._outcome: CloseLedger | GiveUp | Exception | None = None
        self._done = trio.Event()

    async def find_end(self) -> CloseLedger:
        """Fence the ledger, find its end and write the last entries again; return the decision.

        If cancelled, some bookies may be fenced; the metadata did not change.

        Raises:
            LedgerRecoveryError: Too few bookies replied, or accepted adds.
            AccessDeniedError: A bookie refuses this client, or has the ledger under another key.
        """
        try:
            self._perform(self._recovery.start())
            while not self._done.is_set():
                with trio.move_on_after(PROGRESS_S):
                    await self._done.wait()
                    break
                self._log_progress()
        finally:
            self._stop()
        match self._outcome:
            case CloseLedger() as decision:
                return decision
            case GiveUp(error=error):
                raise error
            case None:
                raise LedgerRecoveryError(self._ledger_id, "it ended without a decision; this is a bug")
            case bug:
                raise bug

    def _log_progress(self) -> None:
        progress = self._recovery.progress
        logger.info(
            "ledger %d: its recovery has come to entry %d; entries found: %s",
            self._ledger_id,
            progress.last_entry_id,
            progress,
            extra=event(
                "ledger.recovering",
                ledger=self._ledger_id,
                last_entry=progress.last_entry_id,
                found_on=dict(progress.found_on),
            ),
        )

    def _stop(self) -> None:
        requests, self._requests = self._requests, {}
        for request in requests:
            request.forget()
        timers, self._timers = self._timers, {}
        for timer in timers:
            timer.cancel()
        self._done.set()

    def _choose(self, ensemble: Sequence[str], failed: Collection[int]) -> Mapping[int, str]:
        membership = self._context.membership
        for index in failed:
            membership.report_failure(ensemble[index])
            self._tried[ensemble[index]] = None
        metadata = self._current.metadata
        return self._context.placer.choose_for_recovery(
            ensemble, failed, metadata.write_quorum, metadata.ack_quorum, tried=tuple(self._tried)
        )

    # --- performing -----------------------------------------------------------------------------------------

    def _guarded(self, make_actions: Callable[[], list[Action]]) -> None:
        """Perform actions. An error ends this recovery, not the task of the connection or of the timers."""
        try:
            self._perform(make_actions())
        except Exception as exc:
            self._outcome = exc
            self._stop()

    def _perform(self, actions: list[Action]) -> None:
        todo = deque(actions)
        while todo:
            action = todo.popleft()
            if isinstance(action, CloseLedger | GiveUp):
                self._outcome = action
                self._stop()
                return
            todo.extend(self._start(action))
        if not (self._requests or self._timers):
            self._stop()  # nothing is in flight any more, and there is no decision

    def _start(self, action: ReadLac | ReadEntry | AwaitOthers | AddEntry | ReadLength) -> list[Action]:
        recovery = self._recovery
        match action:
            case ReadLac(bookie=bookie):
                return self._read(
                    bookie,
                    self._fencing_read(LAST_ENTRY),
                    lambda result: recovery.on_lac_read(bookie, result),
                )
            case ReadEntry(bookie=bookie, entry_id=entry_id):
                return self._read(
                    bookie,
                    self._fencing_read(entry_id),
                    lambda result: recovery.on_entry_read(bookie, entry_id, result),
                    high_priority=True,
                )
            case AddEntry(bookie=bookie, entry_id=entry_id, body=body):
                return self._add(bookie, entry_id, body)
            case AwaitOthers(entry_id=entry_id):
                self._wait(
                    self._context.config.recovery_denial_grace_s,
                    lambda: recovery.on_waited(entry_id),
                )
                return []
            case ReadLength(entry_id=entry_id):
                order = replicas(self._current.metadata, entry_id)
                return self._read_length(EntryRead(self._ledger_id, entry_id, order), entry_id, None)
            case _:
                assert_never(action)

    def _fencing_read(self, entry_id: int) -> ReadRequest:
        # Every recovery read carries the fence flag, not only the first read of the LAC. Otherwise a bookie
        # that missed the fence can deny an entry and then accept the same entry from the old writer. The
        # entry would reach its ack quorum in a ledger that was closed without it. (bookkeeper-tlaplus, defect
        # 1)
        return ReadRequest(self._ledger_id, entry_id, fence=True, master_key=self._codec.master_key)

    def _read_length(self, reading: EntryRead, entry_id: int, unreachable: Exception | None) -> list[Action]:
        """Try one replica after another. ``unreachable``: the error of an earlier one that did not reply."""
        bookie = reading.next_bookie()
        if bookie is None:
            if unreachable is None:
                logger.warning(
                    "ledger %d: no replica returned entry %d, so the recorded length may be wrong",
                    self._ledger_id,
                    entry_id,
                    extra=event("ledger.length_unknown", ledger=self._ledger_id, entry=entry_id),
                )
            return self._recovery.on_length_read(None, unreachable)

        def take(result: ReadResult) -> list[Action]:
            if isinstance(result, Entry):
                return self._recovery.on_length_read(result.length_bytes, unreachable)
            is_unreachable = isinstance(result, BookieUnavailableError | BookieTimeoutError)
            return self._read_length(reading, entry_id, result if is_unreachable else unreachable)

        return self._read(bookie, ReadRequest(self._ledger_id, entry_id), take)

    def _read(
        self,
        bookie: str,
        request: ReadRequest,
        take: Callable[[ReadResult], list[Action]],
        *,
        high_priority: bool = False,
    ) -> list[Action]:
        def take_reply(reply: Reply | BookieError) -> list[Action]:
            return take(self._result_of(reply, bookie, request))

        return self._send(bookie, request, take_reply, high_priority=high_priority)

    def _result_of(self, reply: Reply | BookieError, bookie: str, request: ReadRequest) -> ReadResult:
        if isinstance(reply, BookieError):
            return reply
        try:
            return entry_of(reply, bookie, request, self._codec)
        except CorruptEntryError as exc:
            logger.warning(
                "bookie %s holds a damaged entry of the ledger being recovered: %s",
                bookie,
                exc,
                extra=event("entry.damaged", bookie=bookie, ledger=self._ledger_id, error=exc),
            )
            return exc
        except BookieError as exc:
            return exc

    def _add(self, bookie: str, entry_id: int, body: bytes) -> list[Action]:
        ledger_id = self._ledger_id
        request = AddRequest(ledger_id, entry_id, self._codec.master_key, body, recovery=True)

        def take(reply: Reply | BookieError) -> list[Action]:
            error: Exception | None = None
            if isinstance(reply, BookieError):
                error = reply
            elif reply.code is not Code.OK:
                error = refusal_of(reply, bookie, ledger_id, entry_id)
            return self._recovery.on_entry_added(bookie, entry_id, error)

        return self._send(bookie, request, take, high_priority=True)

    # --- requests and timers --------------------------------------------------------------------------------

    def _send(
        self,
        bookie: str,
        request: Request,
        take: TakeReply,
        *,
        high_priority: bool,
        pauses: Iterator[float] | None = None,
    ) -> list[Action]:
        """Send a request; ``take`` gets the reply later. Returns the actions if it cannot be sent at all."""

        def on_reply(reply: Reply | BookieError) -> None:
            nonlocal pauses
            del self._requests[pending]
            why_read_only = self._context.why_read_only
            if isinstance(reply, BookieError):
                is_full = is_directory_full(reply)
            else:
                is_full = reply.code is Code.READ_ONLY
            if is_full and why_read_only is not None:
                self._outcome = GiveUp(why_read_only())
                self._stop()
                return
            if isinstance(reply, BookieError) or reply.code is not Code.TOO_MANY_REQUESTS:
                self._guarded(lambda: take(reply))
                return
            # The bookie is over capacity and can reply later.
            pauses = pauses or self._overload_pauses()
            pause_s = next(pauses, None)
            if pause_s is None:
                self._guarded(lambda: take(reply))
            else:
                again = functools.partial(
                    self._send, bookie, request, take, high_priority=high_priority, pauses=pauses
                )
                self._wait(pause_s, again)

        try:
            pending = self._transport.send(bookie, request, on_reply, high_priority=high_priority)
        except BookieError as exc:
            return take(exc)
        self._requests[pending] = None
        return []

    def _wait(self, seconds: float, make_actions: Callable[[], list[Action]]) -> None:
        def ring() -> None:
            del self._timers[timer]
            self._guarded(make_actions)

        timer = self._transport.timers.after(seconds, ring)
        self._timers[timer] = None

    def _overload_pauses(self) -> Iterator[float]:
        config = self._context.config
        end = trio.current_time() + config.overload_timeout_s
        pause_s = config.retry_backoff_min_s
        while trio.current_time() + pause_s < end:
            yield pause_s
            pause_s = min(2 * pause_s, config.retry_backoff_max_s)
