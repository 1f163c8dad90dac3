"""The handle of a ledger that is read, closed or still growing.

Inside: reading entries one by one and in batches, reading ahead, the LAC and waiting for more entries.
Not inside: the choice of replicas (``replica_reads``), recovery (``opening``), bytes (``digest``).
Always: a returned entry was verified (digest and ids) and is not beyond the last confirmed one, but for
``read_unconfirmed``; ``last_confirmed`` never decreases, and grows only by bytes under a digest or by closed
metadata.

Source: LedgerHandle.java, ReadOnlyLedgerHandle.java, BatchedReadOp.java; docs/protocol.md 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from types import TracebackType
from typing import TypeVar

import trio

from ledger.catalog.catalog import Versioned
from ledger.context import ClientContext
from ledger.digest import ENTRY_HEADER, Entry, EntryCodec
from ledger.errors import (
    CorruptEntryError,
    EntryBeyondLacError,
    LedgerClosedError,
    LedgerError,
    LedgerReadError,
    NoSuchLedgerError,
)
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import MetadataError, SessionExpiredError
from ledger.packed_entries import SIZE_BYTES
from ledger.pickling import ProcessBound
from ledger.read.lac_poll import LacPoll
from ledger.read.lac_query import query_lac
from ledger.read.local_reads import LocalReads
from ledger.read.payloads_ahead import RANGES_MAX, PayloadsAhead
from ledger.read.recent_entries import RecentEntries
from ledger.read.replica_reads import ReplicaReads, Unpack
from ledger.read.replica_rules import replicas, segment_stop
from ledger.read.standing_poll import StandingPoll
from ledger.runtime.statistics.names import ENTRIES_READ, LAC_WAIT, LAC_WAITS, READ_ENTRY, READS
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.trio_only import check_thread
from ledger.wire.entry_lac import credible_lac
from ledger.wire.messages import LocatedReply

METADATA_RETRY_S = 0.2
CONTAINED_PAUSE_S = 60.0  # after an error that nobody expected; it may come again at once
NO_BATCHES_S = 60.0  # without batch reads after one lost a connection, which may also have been chance

T = TypeVar("T")


class ReadHandle(ProcessBound):
    """Reads one ledger. Leaving ``async with`` closes the handle and does not change the ledger."""

    def __init__(
        self,
        current: Versioned,
        codec: EntryCodec,
        context: ClientContext,
        nursery: trio.Nursery,
        *,
        lac: int = -1,
    ) -> None:
        self.ledger_id = current.ledger_id
        self._current = current
        self._thread = get_ident()  # of the run whose handle it is
        self._codec, self._context, self._nursery = codec, context, nursery
        self._config, self._recorder = context.config, context.recorder
        self._lac = current.metadata.last_entry_id if current.metadata.is_closed else lac
        metadata = current.metadata
        # A batch holds consecutive entries of one bookie, so each bookie must hold every entry.
        self._may_batch = metadata.ensemble_size == metadata.write_quorum
        self._batches_again_at = 0.0
        self._replicas = ReplicaReads(current.ledger_id, codec, context, metadata.ensemble_size)
        self._ahead = PayloadsAhead(
            self._read_some_payloads, nursery, overhead_bytes=codec.overhead_bytes + SIZE_BYTES
        )
        self._local: LocalReads | None = None
        if context.open_entry_log is not None and self._may_batch:
            self._local = LocalReads(context.open_entry_log)
        self._scope = trio.CancelScope()
        self._is_open = True
        self._polls: set[LacPoll] = set()  # they restart when the metadata changes
        self._idle_poll: LacPoll | None = None  # for the next wait
        self._ended_waits = 0  # calls of ``end_waits``
        self._recent = RecentEntries()
        self._standing = StandingPoll(
            context.transport,
            codec,
            current.ledger_id,
            self._raise_lac,
            self._recent.add,
            self._config.long_poll_max_s,
        )

    def __repr__(self) -> str:
        state = "closed handle of" if not self._is_open else "of closed" if self.is_closed else "of open"
        return f"<ReadHandle {state} ledger {self.ledger_id}, last confirmed {self.last_confirmed}>"

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this handle last read it."""
        return self._current.metadata

    @property
    def is_closed(self) -> bool:
        """True if the ledger is closed: ``last_confirmed`` is its last entry and stays it."""
        return self._current.metadata.is_closed

    @property
    def last_confirmed(self) -> int:
        """The last entry this handle knows to be confirmed; -1 if there is none."""
        return self._lac

    @property
    def length_bytes(self) -> int | None:
        """Payload bytes of the ledger, once it is closed."""
        return self.metadata.length_bytes if self.is_closed else None

    @property
    def digest_mismatches(self) -> int:
        """Replies whose bytes were not those of the entry. After each, the next replica was tried."""
        return self._replicas.digest_mismatches

    def start(self) -> None:
        """Follow the metadata of a ledger that is not closed yet. Called once, by the client."""
        if not self.is_closed:
            self._nursery.start_soon(self._follow_metadata)

    async def read(self, first: int, last: int) -> list[Entry]:
        """Read all entries from ``first`` to ``last``, both inclusive. A cancelled read changes nothing.

        Raises:
            ValueError: Not ``0 <= first <= last``.
            EntryBeyondLacError: ``last`` is not known to be confirmed.
            LedgerClosedError: This handle is closed.
            NoSuchEntryError: All replicas of an entry denied it: a confirmed entry is lost. The replicas are
                those in the newest metadata, or in the last known metadata if the store cannot be read.
            LedgerReadError: No replica returned an entry; the message has the reason of each.
        """
        self._check_thread()
        self._check_range(first, last)
        return await self._read_all(first, last)

    async def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """Read entries from ``first`` to ``last``, both inclusive, although they may not be confirmed.

        Warning: an entry beyond ``last_confirmed`` was perhaps never acknowledged to its writer. It may be
        gone later: a recovery may close the ledger in front of it, and another reader never sees it. Other
        bookies may not have it. So decide nothing by it that must hold. For what is confirmed but not known
        here yet, call ``read_last_confirmed`` and then ``read``. A cancelled read changes nothing.

        Raises:
            ValueError: Not ``0 <= first <= last``.
            LedgerClosedError: This handle is closed.
            NoSuchEntryError: All replicas of an entry denied it: it is not written yet, or not there.
            LedgerReadError: No replica returned an entry; the message has the reason of each.
        """
        self._check_thread()
        self._check_bounds(first, last)
        return await self._read_all(first, last)

    async def _read_all(self, first: int, last: int) -> list[Entry]:
        entries: list[Entry] = []
        while first <= last:
            some = await self._read_some(first, last, self._config.batch_read_bytes_max, self._unpack_entries)
            entries += some
            first += len(some)
        return entries

    async def read_payloads(self, first: int, last: int, *, size_bytes_max: int | None = None) -> list[bytes]:
        """Read the payloads of one or more entries from ``first`` on, at most up to ``last``.

        This is the way to catch up with a long ledger. The result is as long as one reply. Call again with
        the same ``last`` for the entries after it, which are read in the background. A cancelled
        read changes nothing.

        Args:
            size_bytes_max: The approximate limit of the result; at least one entry is returned.

        Raises: the errors of ``read``.
        """
        self._check_thread()
        size = size_bytes_max or self._config.batch_read_bytes_max
        payloads = self.take_recent(first, last)
        if payloads:
            await trio.lowlevel.checkpoint_if_cancelled()
            return payloads
        payloads = await self._ahead.take(first, last)
        if not payloads:  # if reading ahead failed, this read raises the reason
            payloads = await self._read_some(first, last, size, self._unpack_payloads)
        following = first + len(payloads)
        is_local = self._local is not None and self._local.holds(following)  # nothing to wait for
        if following <= last and self._is_open and not is_local:
            # An entry log that this process reads itself is read in the order of its entries.
            ranges_max = RANGES_MAX if self._local is None else 1
            self._ahead.plan(payloads, following, last, size, ranges_max=ranges_max)
        return payloads

    async def read_last_confirmed(self) -> int:
        """Read the LAC from the bookies; update ``last_confirmed`` and return it.

        It may be lower than the writer's LAC: bookies receive the LAC with the next entry, or by
        ``write_explicit_lac``. A cancelled call changes nothing.

        Raises:
            LedgerClosedError: This handle is closed.
            LedgerReadError: Too few bookies replied.
        """
        self._check_thread()
        self._check_open()
        if self.is_closed:
            await trio.lowlevel.checkpoint()
        else:
            self._raise_lac(await query_lac(self._context, self._current, self._codec))
        return self._lac

    async def wait_last_confirmed_beyond(self, entry_id: int, *, timeout_s: float) -> int:
        """Wait until an entry after ``entry_id`` is confirmed or the ledger is closed; return the LAC.

        After ``timeout_s`` it returns the LAC known so far. Unreachable bookies raise no error: the wait
        continues. A cancelled wait changes nothing.

        Raises:
            LedgerClosedError: This handle is closed.
        """
        self._check_thread()
        self._check_open()
        if self._lac > entry_id or self.is_closed or timeout_s <= 0:
            await trio.lowlevel.checkpoint()
            return self._lac
        self._recorder.counts[LAC_WAITS] += 1
        with self._recorder.operation(LAC_WAIT):
            await self._poll_beyond(entry_id, timeout_s)
        return self._lac

    async def _poll_beyond(self, entry_id: int, timeout_s: float) -> None:
        ended_waits = self._ended_waits
        deadline_s = trio.current_time() + timeout_s
        while True:
            poll, self._idle_poll = self._idle_poll, None
            if poll is None or not poll.fits(self._current):
                poll = LacPoll(self._context, self._current, self._codec, self._raise_lac, self._standing)
            self._polls.add(poll)  # no checkpoint since the metadata were read
            try:
                await poll.run(entry_id, timeout_s)
            finally:
                self._polls.discard(poll)
            if self._lac > entry_id or self.is_closed:
                self._idle_poll = poll
                return
            timeout_s = deadline_s - trio.current_time()
            if self._ended_waits != ended_waits or timeout_s <= 0:
                return

    def end_waits(self) -> None:
        """Let every ``wait_last_confirmed_beyond`` of this handle return soon, with the LAC known so far."""
        self._ended_waits += 1
        for poll in self._polls:
            poll.stop()

    def take_recent(self, first: int, last: int) -> list[bytes]:
        """As ``read_payloads``, of entries that came with replies to long polls; empty if there are none."""
        self._check_range(first, last)
        return self._recent.take(first, last)

    async def close(self) -> None:
        """Stop the background tasks of this handle. The ledger stays as it is. Closing twice is allowed."""
        self._check_thread()
        self._stop()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> ReadHandle:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stop()

    def _check_thread(self) -> None:
        check_thread(self._thread, f"ledger {self.ledger_id}")

    def _stop(self) -> None:
        self._is_open = False
        self._scope.cancel()
        self._standing.end()
        self._ahead.drop()
        if self._local is not None:
            self._local.drop()

    def _check_open(self) -> None:
        if not self._is_open:
            raise LedgerClosedError(self.ledger_id, "this handle is closed; open the ledger again")

    def _check_bounds(self, first: int, last: int) -> None:
        self._check_open()
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last} are no range")

    def _check_range(self, first: int, last: int) -> None:
        self._check_bounds(first, last)
        if last > self._lac:
            raise EntryBeyondLacError(self.ledger_id, last, self._lac)

    def _raise_lac(self, lac: int) -> None:
        if lac > self._lac and not self.is_closed:
            self._lac = lac

    def _unpack_payloads(self, bodies: Sequence[bytes], first: int) -> list[bytes]:
        payloads = self._codec.payloads(bodies, self.ledger_id, first)
        if not self.is_closed:
            _, entry_id, lac, _ = ENTRY_HEADER.unpack_from(bodies[len(payloads) - 1])
            self._raise_lac(credible_lac(entry_id, lac))
        return payloads

    def _unpack_entries(self, bodies: Sequence[bytes], first: int) -> list[Entry]:
        entries: list[Entry] = []
        for entry_id, body in enumerate(bodies, first):
            try:
                entries.append(self._codec.unpack(body, self.ledger_id, entry_id))
            except CorruptEntryError:
                if not entries:
                    raise
                break  # return the verified ones; the next read tries this one on another replica
        self._raise_lac(entries[-1].lac)
        return entries

    async def _read_some_payloads(self, first: int, last: int, size_bytes_max: int) -> list[bytes]:
        return await self._read_some(first, last, size_bytes_max, self._unpack_payloads)

    async def _read_some(self, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]) -> list[T]:
        """Read one or more entries from ``first`` on; return them unpacked and verified."""
        while True:
            metadata = self.metadata
            try:
                with self._recorder.operation(READ_ENTRY):
                    found = await self._read_some_by(metadata, first, last, size_bytes_max, unpack)
            except LedgerReadError:
                if not await self._has_moved(metadata, first):
                    raise
            else:
                counts = self._recorder.counts
                counts[READS] += 1
                counts[ENTRIES_READ] += len(found)
                return found

    async def _read_some_by(
        self, metadata: LedgerMetadata, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]
    ) -> list[T]:
        stop = segment_stop(metadata, first)
        if stop is not None:
            last = min(last, stop - 1)
        if self._may_batch and last > first and trio.current_time() >= self._batches_again_at:
            batch = await self._read_locally(metadata, first, last, size_bytes_max, unpack)
            if batch is None:
                batch = await self._replicas.read_batch(metadata, first, last, size_bytes_max, unpack)
            if batch is not None:
                return batch
            self._batches_again_at = trio.current_time() + NO_BATCHES_S
        return await self._replicas.read_some(metadata, first, last, size_bytes_max, unpack)

    async def _read_locally(
        self, metadata: LedgerMetadata, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]
    ) -> list[T] | None:
        """Read from the bookie's files if they are within reach; None: ask the bookie for the entries."""
        local = self._local
        if local is None:
            return None
        if not local.holds(first):
            if not local.may_locate:
                return None
            found = await self._replicas.locate(metadata, first, last, size_bytes_max, unpack)
            if not isinstance(found, LocatedReply):
                return found
            if not self._is_open or not local.take(found):
                return None
        entries = await local.read(last, size_bytes_max)
        try:
            unpacked = unpack(entries, first) if entries else None
        except CorruptEntryError:
            unpacked = None  # the bookie has moved it or knows of the damage, and the client reports it
        if not unpacked:
            local.fail()
            return None
        if local.holds(first):  # no other task has read them since
            local.advance(len(unpacked))
        return unpacked

    async def _has_moved(self, metadata: LedgerMetadata, entry_id: int) -> bool:
        """True if the newest metadata, if the store can be read, name other bookies for the entry."""
        # The metadata of this handle may be older than an ensemble change or a re-replication: the bookies
        # that it names may never have received the entry.
        with trio.move_on_after(self._config.transport.request_timeout_s):
            try:
                self._update(await self._context.catalog.get_newest(self.ledger_id))
            except (MetadataError, LedgerError):
                pass  # the reason why the read failed is more useful
        return replicas(self.metadata, entry_id) != replicas(metadata, entry_id)

    async def _follow_metadata(self) -> None:
        with self._scope:
            while not self.is_closed:
                watch = trio.Event()
                try:
                    found = await self._context.catalog.get(self.ledger_id, watch=watch)
                except (NoSuchLedgerError, SessionExpiredError):
                    return  # the known LAC stays true; the next read raises the error
                except (MetadataError, LedgerError):
                    await trio.sleep(METADATA_RETRY_S)
                    continue
                except Exception as exc:  # ends this round, not the client
                    report_contained("watch of a ledger", exc, ledger_id=self.ledger_id)
                    await trio.sleep(CONTAINED_PAUSE_S)
                    continue
                self._update(found)
                if not self.is_closed:
                    await watch.wait()

    def _update(self, found: Versioned) -> None:
        if found.version <= self._current.version:
            return
        self._current = found
        if found.metadata.is_closed:
            self._lac = max(self._lac, found.metadata.last_entry_id)
            self._standing.end()
        for poll in self._polls:
            poll.stop()
