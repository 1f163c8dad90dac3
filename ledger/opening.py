"""Opening a ledger that somebody else wrote: check the password, recover its end or ask for its LAC.

Inside: performing what ``recovery`` decides, against bookies and metadata. Not inside: the decisions.
Always: a recovery that fails has closed nothing; run it again.

Source: LedgerOpenOp.java, LedgerRecoveryOp.java; reference sections 6.8 and 7.1.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import assert_never

import trio

from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.digest import Entry, EntryCodec
from ledger.errors import (
    BookieError,
    BookieRefusal,
    BookieTimeoutError,
    BookieUnavailableError,
    CorruptEntryError,
    LedgerRecoveryError,
    TooManyRequestsRefusal,
)
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_update import update_metadata
from ledger.reader import EntryRead, LacQuery, replicas
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
from ledger.transport import Transport
from ledger.wire.codes import Code
from ledger.wire.messages import (
    LAST_ENTRY,
    AddRequest,
    ReadLacReply,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Reply,
)

logger = logging.getLogger(__name__)


def refusal_of(reply: Reply, bookie: str, ledger_id: int, entry_id: int | None) -> BookieError:
    """The exception for an answer that is not the one hoped for."""
    if reply.code is Code.OK:
        return BookieError(bookie, f"answered with a {type(reply).__name__} that holds nothing")
    return BookieRefusal.by_code[reply.code](bookie, ledger_id, entry_id)


async def read_entry(
    transport: Transport, bookie: str, request: ReadRequest, codec: EntryCodec, *, high_priority: bool = False
) -> Entry:
    """Ask one bookie for one entry (or for its last); the verified entry.

    Raises:
        BookieRefusal, BookieUnavailableError, BookieTimeoutError, CorruptEntryError
    """
    reply = await transport.call(bookie, request, high_priority=high_priority)
    wanted = None if request.entry_id == LAST_ENTRY else request.entry_id
    if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
        raise refusal_of(reply, bookie, request.ledger_id, wanted)
    return codec.unpack(reply.body, request.ledger_id, wanted)


async def read_lac(transport: Transport, bookie: str, ledger_id: int, codec: EntryCodec) -> int:
    """Ask one bookie how far the ledger is confirmed, by all it knows; only what a digest covers counts.

    Raises:
        BookieRefusal, BookieUnavailableError, BookieTimeoutError, CorruptEntryError
    """
    reply = await transport.call(bookie, ReadLacRequest(ledger_id))
    if not isinstance(reply, ReadLacReply) or reply.code is not Code.OK:
        raise refusal_of(reply, bookie, ledger_id, None)
    lac = -1
    if reply.lac_body is not None:
        lac = codec.unpack_lac(reply.lac_body, ledger_id)
    if reply.last_entry_body is not None:
        lac = max(lac, codec.unpack(reply.last_entry_body, ledger_id, None).lac)
    return lac


async def query_lac(cluster: Cluster, current: Versioned, codec: EntryCodec) -> int:
    """The LAC of an open ledger, from so many bookies that no confirmed LAC told to others is missed.

    Raises:
        LedgerReadError: Too many bookies gave no answer; the reasons are in it.
    """
    metadata = current.metadata
    bookies = metadata.last_ensemble.bookies
    query = LacQuery(
        current.ledger_id, bookies, write_quorum=metadata.write_quorum, ack_quorum=metadata.ack_quorum
    )

    async def ask(bookie: str, scope: trio.CancelScope) -> None:
        try:
            query.told(bookie, await read_lac(cluster.transport, bookie, current.ledger_id, codec))
        except (BookieError, CorruptEntryError) as exc:
            query.failed(bookie, exc)
        if query.is_covered:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for bookie in bookies:
            nursery.start_soon(ask, bookie, nursery.cancel_scope)
    if not query.is_covered:
        raise query.error()
    return max(query.lac, metadata.last_ensemble.first_entry_id - 1)


async def recover_ledger(cluster: Cluster, current: Versioned, codec: EntryCodec) -> Versioned:
    """Fence the ledger, find its end and close it there; its metadata, closed.

    Every entry that was ever acknowledged is kept, and entries in flight may be. If cancelled, the ledger may
    be fenced and in recovery; nothing is lost, recover it again.

    Raises:
        LedgerRecoveryError: Too few bookies answered, or could be written to.
        WrongPasswordError: A bookie holds the ledger under another key.
        NoSuchLedgerError: The ledger was deleted meanwhile.
        namespace.errors.NamespaceError: The metadata store failed.
    """

    def mark(metadata: LedgerMetadata) -> LedgerMetadata | None:
        return metadata.in_recovery() if metadata.state is LedgerState.OPEN else None

    patience_s = cluster.config.unavailable_patience_s
    current = await update_metadata(cluster.catalog, current, mark, patience_s=patience_s)
    if current.metadata.is_closed:
        return current
    logger.info("ledger %d: recovering it", current.ledger_id)
    decision = await _RecoveryRun(cluster, current, codec).play()
    closed = await update_metadata(cluster.catalog, current, decision.apply, patience_s=patience_s)
    logger.info(
        "ledger %d: closed at entry %d, %d bytes",
        current.ledger_id,
        closed.metadata.last_entry_id,
        closed.metadata.length_bytes,
    )
    return closed


class _RecoveryRun:
    """Performs one recovery's actions and feeds back what came of them."""

    def __init__(self, cluster: Cluster, current: Versioned, codec: EntryCodec) -> None:
        self._cluster, self._current, self._codec = cluster, current, codec
        self._recovery = Recovery(
            current.ledger_id,
            current.metadata,
            pack=functools.partial(codec.pack, current.ledger_id),
            choose=self._choose,
            read_ahead=cluster.config.recovery_read_ahead,
        )
        self._outcome: CloseLedger | GiveUp | None = None

    async def play(self) -> CloseLedger:
        async with trio.open_nursery() as nursery:
            self._perform(self._recovery.start(), nursery)
        if self._outcome is None:
            raise LedgerRecoveryError(self._current.ledger_id, "it came to no decision, which is a bug")
        if isinstance(self._outcome, GiveUp):
            raise self._outcome.error
        return self._outcome

    def _choose(self, ensemble: Sequence[str], failed: Collection[int]) -> Mapping[int, str]:
        membership = self._cluster.membership
        for index in failed:
            membership.suspect(ensemble[index])
        metadata = self._current.metadata
        chosen, _ = self._cluster.placer.choose_replacements_now(
            ensemble, failed, metadata.write_quorum, metadata.ack_quorum
        )
        return chosen

    def _perform(self, actions: Iterable[Action], nursery: trio.Nursery) -> None:
        todo = deque(actions)
        while todo:
            action = todo.popleft()
            match action:
                case ReadLac():
                    nursery.start_soon(self._read_lac, action, nursery)
                case ReadEntry():
                    nursery.start_soon(self._read_entry, action, nursery)
                case AwaitOthers():
                    nursery.start_soon(self._await_others, action, nursery)
                case AddEntry():
                    nursery.start_soon(self._add, action, nursery)
                case ReadLength():
                    nursery.start_soon(self._read_length, action, nursery)
                case CloseLedger() | GiveUp():
                    self._outcome = action
                    nursery.cancel_scope.cancel()
                    return
                case _:
                    assert_never(action)

    async def _read_lac(self, action: ReadLac, nursery: trio.Nursery) -> None:
        request = ReadRequest(
            self._current.ledger_id, LAST_ENTRY, fence=True, master_key=self._codec.master_key
        )
        answer = await self._ask(action.bookie, request, high_priority=False)
        self._perform(self._recovery.lac_answered(action.bookie, answer), nursery)

    async def _read_entry(self, action: ReadEntry, nursery: trio.Nursery) -> None:
        # Recovery reads carry the fence flag too, not only the first LAC read. Otherwise a bookie that missed
        # the fence can answer "no such entry" and then accept that very entry from the old writer, which
        # reaches its ack quorum on a ledger we have closed without it. (bookkeeper-tlaplus, defect 1)
        request = ReadRequest(
            self._current.ledger_id, action.entry_id, fence=True, master_key=self._codec.master_key
        )
        answer = await self._ask(action.bookie, request, high_priority=True)
        self._perform(self._recovery.entry_answered(action.bookie, action.entry_id, answer), nursery)

    async def _await_others(self, action: AwaitOthers, nursery: trio.Nursery) -> None:
        await trio.sleep(self._cluster.config.recovery_denial_grace_s)
        self._perform(self._recovery.waited_for_others(action.entry_id), nursery)

    async def _ask(self, bookie: str, request: ReadRequest, *, high_priority: bool) -> Answer:
        pauses = self._overload_pauses()
        while True:
            try:
                return await read_entry(
                    self._cluster.transport, bookie, request, self._codec, high_priority=high_priority
                )
            except TooManyRequestsRefusal as exc:
                if (pause_s := next(pauses, None)) is None:
                    return exc
                await trio.sleep(pause_s)
            except CorruptEntryError as exc:
                logger.warning(
                    "bookie %s holds a damaged entry of the ledger being recovered: %s", bookie, exc
                )
                return exc
            except BookieError as exc:
                return exc

    def _overload_pauses(self) -> Iterator[float]:
        """Pauses after TOO_MANY_REQUESTS, which is no answer: the bookie has one, later."""
        config = self._cluster.config
        end = trio.current_time() + config.overload_patience_s
        pause_s = config.retry_backoff_min_s
        while trio.current_time() + pause_s < end:
            yield pause_s
            pause_s = min(2 * pause_s, config.retry_backoff_max_s)

    async def _add(self, action: AddEntry, nursery: trio.Nursery) -> None:
        ledger_id = self._current.ledger_id
        request = AddRequest(ledger_id, action.entry_id, self._codec.master_key, action.body, recovery=True)
        error: Exception | None = None
        pauses = self._overload_pauses()
        try:
            while True:
                reply = await self._cluster.transport.call(action.bookie, request, high_priority=True)
                pause_s = next(pauses, None) if reply.code is Code.TOO_MANY_REQUESTS else None
                if pause_s is None:
                    break
                await trio.sleep(pause_s)
            if reply.code is not Code.OK:
                error = refusal_of(reply, action.bookie, ledger_id, action.entry_id)
        except BookieError as exc:
            error = exc
        self._perform(self._recovery.add_answered(action.bookie, action.entry_id, error), nursery)

    async def _read_length(self, action: ReadLength, nursery: trio.Nursery) -> None:
        ledger_id, metadata = self._current.ledger_id, self._current.metadata
        reading = EntryRead(ledger_id, action.entry_id, replicas(metadata, action.entry_id))
        length_bytes: int | None = None
        silent: Exception | None = None
        while length_bytes is None and (bookie := reading.next_bookie()) is not None:
            answer = await self._ask(bookie, ReadRequest(ledger_id, action.entry_id), high_priority=False)
            if isinstance(answer, Entry):
                length_bytes = answer.length_bytes
            elif isinstance(answer, BookieUnavailableError | BookieTimeoutError):
                silent = answer
        if length_bytes is None and silent is None:
            logger.warning(
                "ledger %d: no replica shows entry %d, so its length is a guess", ledger_id, action.entry_id
            )
        self._perform(self._recovery.length_answered(length_bytes, silent), nursery)
