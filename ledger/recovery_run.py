"""Performing one recovery: its reads, adds and waits, and feeding back what came of them.

Inside: asking bookies and waiting, without a task for each question. Not inside: the decisions
(``recovery``), marking and closing in the metadata (``opening``).
Always: every read of a recovery fences, with high priority for entries; a bookie over capacity is asked
again, for so long at most; once it is decided, or given up, or cancelled, nothing more is asked.

Source: LedgerRecoveryOp.java; reference section 7.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import assert_never

import trio

from ledger.asked import Asked
from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.digest import Entry, EntryCodec
from ledger.errors import (
    BookieError,
    BookieTimeoutError,
    BookieUnavailableError,
    CorruptEntryError,
    LedgerRecoveryError,
)
from ledger.questions import entry_of, refusal_of
from ledger.reader import EntryRead, replicas
from ledger.recovery import (
    Action,
    AddEntry,
    Answer,
    AwaitOthers,
    CloseLedger,
    GiveUp,
    ReadEntry,
    ReadLac,
    ReadLength,
    Recovery,
)
from ledger.timers import Timer
from ledger.wire.codes import Code
from ledger.wire.messages import LAST_ENTRY, AddRequest, ReadRequest, Reply, Request

logger = logging.getLogger(__name__)

Take = Callable[[Reply | BookieError], list[Action]]


class RecoveryRun:
    """One recovery. ``play`` it once."""

    def __init__(self, cluster: Cluster, current: Versioned, codec: EntryCodec) -> None:
        self._cluster, self._current, self._codec = cluster, current, codec
        self._transport, self._ledger_id = cluster.transport, current.ledger_id
        self._recovery = Recovery(
            current.ledger_id,
            current.metadata,
            pack=functools.partial(codec.pack, current.ledger_id),
            choose=self._choose,
            read_ahead=cluster.config.recovery_read_ahead,
        )
        self._asked: dict[Asked, None] = {}
        self._timers: dict[Timer, None] = {}
        self._outcome: CloseLedger | GiveUp | Exception | None = None
        self._over = trio.Event()

    async def play(self) -> CloseLedger:
        """Find the end of the ledger.

        Raises:
            LedgerRecoveryError: Too few bookies answered, or could be written to.
            WrongPasswordError: A bookie holds the ledger under another key.
        """
        try:
            self._perform(self._recovery.start())
            await self._over.wait()
        finally:
            self._stop()
        match self._outcome:
            case CloseLedger() as decision:
                return decision
            case GiveUp(error=error):
                raise error
            case None:
                raise LedgerRecoveryError(self._ledger_id, "it came to no decision, which is a bug")
            case bug:
                raise bug

    def _stop(self) -> None:
        asked, self._asked = self._asked, {}
        for one in asked:
            one.forget()
        timers, self._timers = self._timers, {}
        for timer in timers:
            timer.cancel()
        self._over.set()

    def _choose(self, ensemble: Sequence[str], failed: Collection[int]) -> Mapping[int, str]:
        membership = self._cluster.membership
        for index in failed:
            membership.suspect(ensemble[index])
        metadata = self._current.metadata
        return self._cluster.placer.choose_for_recovery(
            ensemble, failed, metadata.write_quorum, metadata.ack_quorum
        )

    # --- performing -----------------------------------------------------------------------------------------

    def _go_on(self, make_actions: Callable[[], list[Action]]) -> None:
        """Called by the tasks of connections and timers: an error of ours must end this run, not them."""
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
            todo.extend(self._begin(action))
        if not (self._asked or self._timers):
            self._stop()  # nothing will happen any more, and nothing was decided

    def _begin(self, action: ReadLac | ReadEntry | AwaitOthers | AddEntry | ReadLength) -> list[Action]:
        recovery = self._recovery
        match action:
            case ReadLac(bookie=bookie):
                return self._read(
                    bookie,
                    self._fencing_read(LAST_ENTRY),
                    lambda answer: recovery.lac_answered(bookie, answer),
                )
            case ReadEntry(bookie=bookie, entry_id=entry_id):
                return self._read(
                    bookie,
                    self._fencing_read(entry_id),
                    lambda answer: recovery.entry_answered(bookie, entry_id, answer),
                    high_priority=True,
                )
            case AddEntry(bookie=bookie, entry_id=entry_id, body=body):
                return self._add(bookie, entry_id, body)
            case AwaitOthers(entry_id=entry_id):
                self._wait(
                    self._cluster.config.recovery_denial_grace_s,
                    lambda: recovery.waited_for_others(entry_id),
                )
                return []
            case ReadLength(entry_id=entry_id):
                order = replicas(self._current.metadata, entry_id)
                return self._read_length(EntryRead(self._ledger_id, entry_id, order), entry_id, None)
            case _:
                assert_never(action)

    def _fencing_read(self, entry_id: int) -> ReadRequest:
        # Recovery reads carry the fence flag too, not only the first LAC read. Otherwise a bookie that missed
        # the fence can answer "no such entry" and then accept that very entry from the old writer, which
        # reaches its ack quorum on a ledger we have closed without it. (bookkeeper-tlaplus, defect 1)
        return ReadRequest(self._ledger_id, entry_id, fence=True, master_key=self._codec.master_key)

    def _read_length(self, reading: EntryRead, entry_id: int, silent: Exception | None) -> list[Action]:
        """Ask one replica after the other; ``silent``: why one of those before gave no answer."""
        bookie = reading.next_bookie()
        if bookie is None:
            if silent is None:
                logger.warning(
                    "ledger %d: no replica shows entry %d, so its length is a guess",
                    self._ledger_id,
                    entry_id,
                )
            return self._recovery.length_answered(None, silent)

        def take(answer: Answer) -> list[Action]:
            if isinstance(answer, Entry):
                return self._recovery.length_answered(answer.length_bytes, silent)
            is_silence = isinstance(answer, BookieUnavailableError | BookieTimeoutError)
            return self._read_length(reading, entry_id, answer if is_silence else silent)

        return self._read(bookie, ReadRequest(self._ledger_id, entry_id), take)

    def _read(
        self,
        bookie: str,
        request: ReadRequest,
        take: Callable[[Answer], list[Action]],
        *,
        high_priority: bool = False,
    ) -> list[Action]:
        def take_reply(reply: Reply | BookieError) -> list[Action]:
            return take(self._answer_in(reply, bookie, request))

        return self._ask(bookie, request, take_reply, high_priority=high_priority)

    def _answer_in(self, reply: Reply | BookieError, bookie: str, request: ReadRequest) -> Answer:
        if isinstance(reply, BookieError):
            return reply
        try:
            return entry_of(reply, bookie, request, self._codec)
        except CorruptEntryError as exc:
            logger.warning("bookie %s holds damage in the ledger being recovered: %s", bookie, exc)
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
            return self._recovery.add_answered(bookie, entry_id, error)

        return self._ask(bookie, request, take, high_priority=True)

    # --- asking and waiting ---------------------------------------------------------------------------------

    def _ask(
        self,
        bookie: str,
        request: Request,
        take: Take,
        *,
        high_priority: bool,
        pauses: Iterator[float] | None = None,
    ) -> list[Action]:
        """Ask; ``take`` gets the answer, later. If it cannot even be asked: what is to be done now."""

        def told(reply: Reply | BookieError) -> None:
            nonlocal pauses
            del self._asked[asked]
            if isinstance(reply, BookieError) or reply.code is not Code.TOO_MANY_REQUESTS:
                self._go_on(lambda: take(reply))
                return
            # That is no answer: the bookie has one, later.
            pauses = pauses or self._overload_pauses()
            pause_s = next(pauses, None)
            if pause_s is None:
                self._go_on(lambda: take(reply))
            else:
                again = functools.partial(
                    self._ask, bookie, request, take, high_priority=high_priority, pauses=pauses
                )
                self._wait(pause_s, again)

        try:
            asked = self._transport.ask(bookie, request, told, high_priority=high_priority)
        except BookieError as exc:
            return take(exc)
        self._asked[asked] = None
        return []

    def _wait(self, seconds: float, make_actions: Callable[[], list[Action]]) -> None:
        def ring() -> None:
            del self._timers[timer]
            self._go_on(make_actions)

        timer = self._transport.timers.after(seconds, ring)
        self._timers[timer] = None

    def _overload_pauses(self) -> Iterator[float]:
        config = self._cluster.config
        end = trio.current_time() + config.overload_patience_s
        pause_s = config.retry_backoff_min_s
        while trio.current_time() + pause_s < end:
            yield pause_s
            pause_s = min(2 * pause_s, config.retry_backoff_max_s)
