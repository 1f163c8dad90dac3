"""Reading entries of one ledger from whichever replica gives good ones first.

Inside: single and batch reads, what is remembered of replicas, telling of damage.
Not inside: the order in which replicas are asked (``reader``), when another one is asked too
(``replica_race``), what is read next (``read_handle``).
Always: what is returned was verified by ``unpack``; a replica whose bytes fail is told of in the log and
counted, and another one is asked.

Source: ReadOpBase.java, BatchedReadOp.java, DefaultSpeculativeRequestExecutionPolicy.java; reference sections
6.2 to 6.4 and 6.6.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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
from ledger.questions import entry_of, refusal_of
from ledger.reader import EntryRead, reading_order, replicas
from ledger.replica_race import ReplicaRace, run_races
from ledger.wire.codes import Code
from ledger.wire.messages import BatchReadReply, BatchReadRequest, ReadReply, ReadRequest, Reply

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
        return (await self.read_singles(metadata, entry_id, 1, unpack))[0]

    async def read_singles(
        self, metadata: LedgerMetadata, first: int, count: int, unpack: Unpack[T]
    ) -> list[list[T]]:
        """Consecutive entries, each asked for alone and all at once: as many from the first on as came.

        Raises: what ``read_single`` raises, for the first of them.
        """
        races = [self._single_race(metadata, entry_id, unpack) for entry_id in range(first, first + count)]
        await run_races(races)
        results: list[list[T]] = []
        for race in races:
            try:
                results.append(self._result_of(race))
            except LedgerError:
                if not results:
                    raise
                break
        return results

    def _single_race(
        self, metadata: LedgerMetadata, entry_id: int, unpack: Unpack[T]
    ) -> ReplicaRace[list[T]]:
        def take(bookie: str, reply: Reply) -> list[T]:
            if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
                raise refusal_of(reply, bookie, self._ledger_id, entry_id)
            self.entry_bytes = max(1, len(reply.body))
            return unpack((reply.body,), entry_id)

        reading = EntryRead(self._ledger_id, entry_id, self._order(metadata, entry_id))
        return ReplicaRace(
            self._transport,
            reading,
            ReadRequest(self._ledger_id, entry_id),
            take,
            speculative_s=self._config.speculative_read_s,
            on_failed=functools.partial(self._failed, reading),
        )

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

        def take(bookie: str, reply: Reply) -> list[T]:
            if not isinstance(reply, BatchReadReply) or reply.code is not Code.OK or not reply.bodies:
                raise refusal_of(reply, bookie, self._ledger_id, first)
            # A bookie sends what it has, also entries that are not confirmed yet.
            return unpack(reply.bodies[: last - first + 1], first)

        reading = EntryRead(self._ledger_id, first, self._order(metadata, first))
        race: _BatchRace[T] = _BatchRace(
            self._transport,
            reading,
            request,
            take,
            speculative_s=self._config.speculative_read_s,
            on_failed=functools.partial(self._failed, reading),
            single=ReadRequest(self._ledger_id, first),
            codec=self._codec,
        )
        await run_races([race])
        return self._result_of(race)

    def _result_of(self, race: ReplicaRace[T]) -> T:
        result = race.result()
        for bookie in race.slow:
            self._cluster.membership.was_slow(bookie)
        return result

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


class _BatchRace(ReplicaRace[list[T] | None]):
    """Bookies older than 4.17 close the connection on a batch read, which looks as if they were away.

    The answer to a plain read tells the two apart: None is the result if a bookie gives one.
    """

    def __init__(self, *args: Any, single: ReadRequest, codec: EntryCodec, **more: Any) -> None:
        super().__init__(*args, **more)
        self._single, self._codec = single, codec

    def _refused(self, bookie: str, reason: Exception) -> None:
        if not isinstance(reason, BookieUnavailableError | BadRequestRefusal | BadVersionRefusal):
            super()._refused(bookie, reason)
            return

        def take(bookie: str, reply: Reply) -> None:
            entry_of(reply, bookie, self._single, self._codec)

        def refused(bookie: str, of_single: Exception) -> None:
            # A bookie that answers the plain read has told what is the matter; the batch tells no more than
            # that it is old.
            is_away = isinstance(of_single, BookieUnavailableError | BookieTimeoutError)
            super(_BatchRace, self)._refused(bookie, reason if is_away else of_single)

        try:
            self._ask(bookie, self._single, take, refused)
        except BookieError:  # the transport is closed
            super()._refused(bookie, reason)
