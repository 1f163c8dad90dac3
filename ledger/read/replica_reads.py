"""Reading entries of one ledger from the first replica that returns good ones.

Inside: single and batch reads, the memory of slow and failing replicas, reporting damage.
Not inside: the order of replicas (``replica_rules``), trying another one (``speculative_read``), the choice
of the entries to read (``read.handle``).
Always: an entry that is returned was verified by ``unpack``; if the bytes from a replica fail, that is logged
and counted, and the next replica is tried.

Source: ReadOpBase.java, BatchedReadOp.java, DefaultSpeculativeRequestExecutionPolicy.java; docs/protocol.md
6.1 to 6.3, 6.5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ledger.codes import Code
from ledger.context import ClientContext
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
from ledger.read.replica_rules import EntryRead, reading_order, replicas
from ledger.read.speculative_read import SpeculativeRead, wait_reads
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.statistics.names import DIGEST_MISMATCHES
from ledger.transport.bookie_requests import entry_of, refusal_of
from ledger.wire.messages import BatchReadReply, BatchReadRequest, LocatedReply, ReadReply, ReadRequest, Reply

logger = get_logger(__name__)

SINGLE_READS_MAX = 64  # in flight at once if batch reads are not possible
T = TypeVar("T")
Unpack = Callable[[Sequence[bytes], int], list[T]]
"""Verifies the bodies of consecutive entries, given the first id, and makes the results from those in front
of the first bad one. Raises ``CorruptEntryError`` if the first one is bad."""


class ReplicaReads:
    """Reads of one ledger by one reader."""

    def __init__(
        self,
        ledger_id: int,
        codec: EntryCodec,
        context: ClientContext,
        ensemble_size: int,
        *,
        avoid: str | None = None,
    ) -> None:
        """``avoid``: a bookie to leave out."""
        self.entry_bytes = 1024  # size of the last entry that a single read returned
        self.digest_mismatches = 0  # replies whose bytes were not those of the entry
        self._ledger_id, self._codec, self._context = ledger_id, codec, context
        self._transport, self._config = context.transport, context.config
        self._start = context.rng.randrange(ensemble_size)  # random, to spread readers over the replicas
        self._reported: set[str] = set()
        self._avoid = avoid

    async def read_singles(
        self, metadata: LedgerMetadata, first: int, count: int, unpack: Unpack[T]
    ) -> list[list[T]]:
        """Read consecutive entries with one request each, all at once; return those before the first failure.

        Raises:
            NoSuchEntryError: Every replica denied the first entry.
            LedgerReadError: No replica returned the first entry.
        """
        reads = [self._single_read(metadata, entry_id, unpack) for entry_id in range(first, first + count)]
        await wait_reads(reads)
        results: list[list[T]] = []
        for read in reads:
            try:
                results.append(self._result_of(read))
            except LedgerError:
                if not results:
                    raise
                break
        return results

    async def read_some(
        self, metadata: LedgerMetadata, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]
    ) -> list[T]:
        """Read one or more consecutive entries with one request each, as many as seem to fit these bytes.

        Raises: as ``read_singles``.
        """
        count = max(1, min(last - first + 1, size_bytes_max // self.entry_bytes, SINGLE_READS_MAX))
        results = await self.read_singles(metadata, first, count, unpack)
        return [one for result in results for one in result]

    def _single_read(
        self, metadata: LedgerMetadata, entry_id: int, unpack: Unpack[T]
    ) -> SpeculativeRead[list[T]]:
        def take(bookie: str, reply: Reply) -> list[T]:
            if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
                raise refusal_of(reply, bookie, self._ledger_id, entry_id)
            self.entry_bytes = max(1, len(reply.body))
            return unpack((reply.body,), entry_id)

        reading = EntryRead(self._ledger_id, entry_id, self._order(metadata, entry_id))
        return SpeculativeRead(
            self._transport,
            reading,
            ReadRequest(self._ledger_id, entry_id),
            take,
            speculative_s=self._config.speculative_read_s,
            on_failed=functools.partial(self._failed, reading),
        )

    async def locate(
        self, metadata: LedgerMetadata, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]
    ) -> list[T] | LocatedReply | None:
        """As ``read_batch``, but a bookie whose files are within reach may reply where the entries are."""
        return await self._batch(metadata, first, last, size_bytes_max, unpack, locate=True)

    async def read_batch(
        self, metadata: LedgerMetadata, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]
    ) -> list[T] | None:
        """Read one or more consecutive entries from one replica; None if it is too old for batch reads.

        Raises: as ``read_singles``.
        """
        found = await self._batch(metadata, first, last, size_bytes_max, unpack, locate=False)
        assert not isinstance(found, LocatedReply)  # ``take`` returns one only with ``locate``
        return found

    async def _batch(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        size_bytes_max: int,
        unpack: Unpack[T],
        *,
        locate: bool,
    ) -> list[T] | LocatedReply | None:
        request = BatchReadRequest(
            self._ledger_id,
            first,
            request_id=0,  # set by the transport
            count_max=min(last - first + 1, 2**31 - 1),
            size_bytes_max=min(size_bytes_max, self._config.transport.frame_bytes_max),
            locate=locate,
        )

        def take(bookie: str, reply: Reply) -> list[T] | LocatedReply:
            if locate and isinstance(reply, LocatedReply) and reply.entry_id == first:
                return reply
            if not isinstance(reply, BatchReadReply) or reply.code is not Code.OK or not reply.bodies:
                raise refusal_of(reply, bookie, self._ledger_id, first)
            # A bookie also sends entries that are not confirmed yet.
            return unpack(reply.bodies[: last - first + 1], first)

        reading = EntryRead(self._ledger_id, first, self._order(metadata, first))
        read: _BatchRead[list[T] | LocatedReply] = _BatchRead(
            self._transport,
            reading,
            request,
            take,
            speculative_s=self._config.speculative_read_s,
            on_failed=functools.partial(self._failed, reading),
            single=ReadRequest(self._ledger_id, first),
            codec=self._codec,
        )
        await wait_reads([read])
        return self._result_of(read)

    def _result_of(self, read: SpeculativeRead[T]) -> T:
        result = read.result()
        for bookie in read.slow:
            self._context.membership.report_slow(bookie)
        return result

    def _order(self, metadata: LedgerMetadata, entry_id: int) -> list[str]:
        membership = self._context.membership
        start = self._start
        if metadata.write_quorum == metadata.ensemble_size:
            # The write set begins at entry id modulo ensemble size. Sticky reads start at the same replica
            # always.
            start = self._start - entry_id if self._config.sticky_reads else 0
        return reading_order(
            [bookie for bookie in replicas(metadata, entry_id) if bookie != self._avoid],
            start=start,
            suspects=membership.suspects,
            readonly=membership.readonly,
            slow=membership.slow,
            writable=membership.writable,
            distance=self._context.placer.distance,
        )

    def _failed(self, reading: EntryRead, bookie: str, reason: Exception) -> None:
        reading.on_failure(bookie, reason)
        membership = self._context.membership
        membership.report_errors(bookie, 1, reason)
        if isinstance(reason, BookieUnavailableError):
            membership.report_failure(bookie)
        elif isinstance(reason, BookieTimeoutError):
            membership.report_slow(bookie)
        elif isinstance(reason, CorruptEntryError):
            self.digest_mismatches += 1
            self._context.recorder.counts[DIGEST_MISMATCHES] += 1
            if bookie not in self._reported:
                self._reported.add(bookie)
                logger.warning(
                    "bookie %s holds damaged entries of ledger %d (logged once per reader and bookie): %s",
                    bookie,
                    self._ledger_id,
                    reason,
                    extra=event("entry.damaged", bookie=bookie, ledger=self._ledger_id, error=reason),
                )
        self._start += 1


class _BatchRead(SpeculativeRead[T | None]):
    """A batch read that finds out whether a bookie is too old for it.

    A bookie older than 4.17 closes the connection when it receives a batch read, as if it were down. A plain
    read shows the difference: if the bookie returns the entry, the result is None.
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

        def refused(bookie: str, single_reason: Exception) -> None:
            # The refusal of the plain read is more specific than that of the batch, unless the bookie is
            # down.
            is_down = isinstance(single_reason, BookieUnavailableError | BookieTimeoutError)
            super(_BatchRead, self)._refused(bookie, reason if is_down else single_reason)

        try:
            self._send(bookie, self._single, take, refused)
        except BookieError:  # the transport is closed
            super()._refused(bookie, reason)
