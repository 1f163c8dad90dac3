"""Reading entries of one ledger from whichever replica gives good ones first.

Inside: which replica is asked, when another one is asked too, what is remembered of them, telling of damage.
Not inside: the order in which replicas are asked (``reader``), what is read next (``read_handle``).
Always: what is returned was verified by ``unpack``; a replica whose bytes fail is told of in the log and
counted, and another one is asked.

Source: ReadOpBase.java, BatchedReadOp.java, DefaultSpeculativeRequestExecutionPolicy.java; reference sections
6.2 to 6.4 and 6.6.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from ledger.cluster import Cluster
from ledger.digest import EntryCodec
from ledger.errors import (
    BadRequestRefusal,
    BadVersionRefusal,
    BookieError,
    BookieTimeoutError,
    BookieUnavailableError,
    CorruptEntryError,
    LedgerError,
)
from ledger.metadata import LedgerMetadata
from ledger.opening import read_entry, refusal_of
from ledger.reader import EntryRead, reading_order, replicas
from ledger.wire.codes import Code
from ledger.wire.messages import BatchReadReply, BatchReadRequest, ReadReply, ReadRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")
Unpack = Callable[[Sequence[bytes], int], list[T]]
"""Bodies of consecutive entries and the first one's id to what is wanted of them; ``CorruptEntryError``."""


class ReplicaReads:
    """The replicas of one ledger, as one reader sees them."""

    def __init__(
        self,
        ledger_id: int,
        codec: EntryCodec,
        cluster: Cluster,
        ensemble_size: int,
        *,
        avoid: str | None = None,
    ) -> None:
        """``avoid``: a bookie that is not asked."""
        self.entry_bytes = 1024  # of the last entry read alone
        self.digest_mismatches = 0  # answers whose bytes were not the entry's
        self._ledger_id, self._codec, self._cluster = ledger_id, codec, cluster
        self._transport, self._config = cluster.transport, cluster.config
        self._start = cluster.rng.randrange(ensemble_size)  # spreads readers over replicas
        self._reported: set[str] = set()
        self._avoid = avoid

    async def read_single(self, metadata: LedgerMetadata, entry_id: int, unpack: Unpack[T]) -> list[T]:
        """One entry.

        Raises:
            NoSuchEntryError: Every replica denies it.
            LedgerReadError: No replica gave a good answer.
        """
        request = ReadRequest(self._ledger_id, entry_id)

        async def ask(bookie: str) -> list[T]:
            reply = await self._transport.call(bookie, request)
            if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
                raise refusal_of(reply, bookie, self._ledger_id, entry_id)
            self.entry_bytes = max(1, len(reply.body))
            return unpack((reply.body,), entry_id)

        return await self._first_good(metadata, entry_id, ask)

    async def read_batch(
        self, metadata: LedgerMetadata, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]
    ) -> list[T] | None:
        """One or more consecutive entries of one replica; None if it is too old to give several at once.

        Raises: what ``read_single`` raises, for the first of them.
        """
        request = BatchReadRequest(
            self._ledger_id,
            first,
            request_id=0,  # the transport numbers them
            count_max=min(last - first + 1, 2**31 - 1),
            size_bytes_max=min(size_bytes_max, self._config.transport.frame_bytes_max),
        )

        async def ask(bookie: str) -> list[T] | None:
            try:
                reply = await self._transport.call(bookie, request)
                if not isinstance(reply, BatchReadReply) or reply.code is not Code.OK or not reply.bodies:
                    raise refusal_of(reply, bookie, self._ledger_id, first)
            except (BookieUnavailableError, BadRequestRefusal, BadVersionRefusal):
                if await self._answers_single_read(bookie, first):
                    # Bookies older than 4.17 close the connection on this request. The answer to a plain
                    # one tells them from bookies that are away.
                    return None
                raise
            # A bookie sends what it has, also entries that are not confirmed yet.
            return unpack(reply.bodies[: last - first + 1], first)

        return await self._first_good(metadata, first, ask)

    async def _answers_single_read(self, bookie: str, entry_id: int) -> bool:
        try:
            await read_entry(self._transport, bookie, ReadRequest(self._ledger_id, entry_id), self._codec)
        except (BookieError, CorruptEntryError):
            return False
        return True

    async def _first_good(
        self, metadata: LedgerMetadata, entry_id: int, ask: Callable[[str], Awaitable[T]]
    ) -> T:
        """Ask one replica after the other, the next one also when those before are slow."""
        order = self._order(metadata, entry_id)
        reading = EntryRead(self._ledger_id, entry_id, order)
        waited_for: list[str] = []
        results: list[T] = []
        errors: list[LedgerError] = []
        all_failed = trio.Event()

        async def attempt(bookie: str, scope: trio.CancelScope) -> None:
            waited_for.append(bookie)
            try:
                results.append(await ask(bookie))
                waited_for.remove(bookie)
                scope.cancel()
            except (BookieError, CorruptEntryError) as exc:
                waited_for.remove(bookie)
                self._failed(reading, bookie, exc)
                if not waited_for:
                    all_failed.set()
            except LedgerError as exc:
                errors.append(exc)  # raised below: a nursery would wrap it into a group
                scope.cancel()

        async with trio.open_nursery() as nursery:
            while (bookie := reading.next_bookie()) is not None:
                all_failed = trio.Event()
                nursery.start_soon(attempt, bookie, nursery.cancel_scope)
                with trio.move_on_after(self._config.speculative_read_s or float("inf")):
                    await all_failed.wait()
        if errors:
            raise errors[0]
        if not results:
            raise reading.error()
        for bookie in waited_for:
            self._cluster.membership.was_slow(bookie)
        return results[0]

    def _order(self, metadata: LedgerMetadata, entry_id: int) -> list[str]:
        membership = self._cluster.membership
        start = self._start
        if metadata.write_quorum == metadata.ensemble_size:
            # The write set begins at entry modulo size. Sticky: with the same replica for all entries.
            start = self._start - entry_id if self._config.sticky_reads else 0
        return reading_order(
            [bookie for bookie in replicas(metadata, entry_id) if bookie != self._avoid],
            start=start,
            suspects=membership.suspects,
            readonly=membership.readonly,
            slow=membership.slow,
            writable=membership.writable,
            distance=self._cluster.placer.distance,
        )

    def _failed(self, reading: EntryRead, bookie: str, reason: Exception) -> None:
        reading.failed(bookie, reason)
        membership = self._cluster.membership
        membership.count_errors(bookie, 1, reason)
        if isinstance(reason, BookieUnavailableError):
            membership.suspect(bookie)
        elif isinstance(reason, BookieTimeoutError):
            membership.was_slow(bookie)
        elif isinstance(reason, CorruptEntryError):
            self.digest_mismatches += 1
            if bookie not in self._reported:
                self._reported.add(bookie)
                logger.warning(
                    "bookie %s holds damaged entries of ledger %d (told once for each reader and bookie): %s",
                    bookie,
                    self._ledger_id,
                    reason,
                )
        self._start += 1
