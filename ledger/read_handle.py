"""The handle of a ledger being read, closed or still growing.

Inside: reading entries one by one and in batches, reading ahead, the LAC and waiting for more.
Not inside: which replica is read (``replica_reads``), recovery (``opening``), bytes (``digest``).
Always: nothing is returned whose digest and ids were not verified, nothing beyond the last confirmed entry;
``last_confirmed`` never goes back and is believed only from bytes under a digest or from closed metadata.

Source: LedgerHandle.java, ReadOnlyLedgerHandle.java, BatchedReadOp.java; reference sections 6.1 to 6.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

import trio

from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.digest import ENTRY_HEADER, Entry, EntryCodec
from ledger.errors import (
    CorruptEntryError,
    EntryBeyondLacError,
    LedgerClosedError,
    LedgerError,
    LedgerReadError,
    NoSuchLedgerError,
)
from ledger.lac_poll import LacPoll
from ledger.metadata import LedgerMetadata
from ledger.opening import query_lac
from ledger.reader import replicas, segment_stop
from ledger.replica_reads import ReplicaReads, Unpack
from namespace.errors import NamespaceError, SessionExpiredError

SINGLE_READS_MAX = 64  # in flight at once where batch reads are not possible
METADATA_RETRY_S = 0.2
NO_BATCHES_S = 60.0  # after a connection that was lost over one: the bookie is too old, or it was chance

T = TypeVar("T")


class _Ahead:
    """A run of payloads being read before it is asked for."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.payloads: list[bytes] = []  # empty: it failed, or was cancelled


class ReadHandle:
    """Reads one ledger. Leaving ``async with`` closes the handle; the ledger is not touched."""

    def __init__(
        self,
        current: Versioned,
        codec: EntryCodec,
        cluster: Cluster,
        nursery: trio.Nursery,
        *,
        lac: int = -1,
    ) -> None:
        self.ledger_id = current.ledger_id
        self._current = current
        self._codec, self._cluster, self._nursery = codec, cluster, nursery
        self._config = cluster.config
        self._lac = current.metadata.last_entry_id if current.metadata.is_closed else lac
        metadata = current.metadata
        # A batch is a run of entries of one bookie, so each bookie must hold them all.
        self._may_batch = metadata.ensemble_size == metadata.write_quorum
        self._batches_again_at = 0.0
        self._replicas = ReplicaReads(current.ledger_id, codec, cluster, metadata.ensemble_size)
        self._ahead: _Ahead | None = None
        self._scope = trio.CancelScope()
        self._is_open = True
        self._polls: set[trio.CancelScope] = set()  # of waits, which begin anew when the metadata moves

    def __repr__(self) -> str:
        state = "closed handle of" if not self._is_open else "of closed" if self.is_closed else "of open"
        return f"<ReadHandle {state} ledger {self.ledger_id}, last confirmed {self.last_confirmed}>"

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this handle last read it."""
        return self._current.metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed: ``last_confirmed`` is its last entry for good."""
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
        """Answers of bookies whose bytes were not the entry's; each was read elsewhere, if it was read."""
        return self._replicas.digest_mismatches

    def start(self) -> None:
        """For the client: begin to follow the metadata of a ledger that may still be closed by somebody."""
        if not self.is_closed:
            self._nursery.start_soon(self._follow_metadata)

    async def read(self, first: int, last: int) -> list[Entry]:
        """The entries from ``first`` to ``last``, both inclusive, all of them.

        A cancelled read changes nothing.

        Raises:
            ValueError: Not ``0 <= first <= last``.
            EntryBeyondLacError: ``last`` is not known to be confirmed.
            NoSuchEntryError: All replicas that the newest metadata name deny an entry; those last known, if
                the metadata store gives none. In a confirmed range that means loss.
            LedgerReadError: None of them gave a good answer; the reasons of each are in it.
        """
        self._check_range(first, last)
        entries: list[Entry] = []
        while first <= last:
            run = await self._read_run(first, last, self._config.batch_read_bytes_max, self._unpack_entries)
            entries += run
            first += len(run)
        return entries

    async def read_payloads(self, first: int, last: int, *, size_bytes_max: int | None = None) -> list[bytes]:
        """The payloads of one or more entries from ``first`` on, not beyond ``last``; for catching up.

        As many as one answer brought; call again for the rest, with the same ``last``: what follows is being
        read meanwhile. A cancelled read changes nothing.

        Args:
            size_bytes_max: About how much to bring at once; at least one entry comes, however large.

        Raises: what ``read`` raises.
        """
        self._check_range(first, last)
        size = size_bytes_max or self._config.batch_read_bytes_max
        payloads: list[bytes] = []
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if ahead.first == first and ahead.last <= last:
                await ahead.done.wait()
                payloads = ahead.payloads
            else:
                ahead.scope.cancel()
        if not payloads:  # if reading ahead failed, reading now says why
            payloads = await self._read_run(first, last, size, self._unpack_payloads)
        following = first + len(payloads)
        if following <= last and self._is_open and self._ahead is None:
            self._ahead = _Ahead(following, last)
            self._nursery.start_soon(self._read_ahead, self._ahead, size)
        return payloads

    async def read_last_confirmed(self) -> int:
        """Ask the bookies how far the ledger is confirmed; the answer, which ``last_confirmed`` becomes too.

        Entries confirmed to the writer just now may be missing from it: bookies learn of the LAC with the
        next entry, or by ``write_explicit_lac``.

        Raises:
            LedgerReadError: Too few bookies answered.
        """
        self._check_open()
        if self.is_closed:
            await trio.lowlevel.checkpoint()
        else:
            self._raise_lac(await query_lac(self._cluster, self._current, self._codec))
        return self._lac

    async def wait_last_confirmed_beyond(self, entry_id: int, *, timeout_s: float) -> int:
        """Wait until an entry after ``entry_id`` is confirmed or the ledger is closed; the LAC then.

        After ``timeout_s`` it returns the LAC unchanged. It never raises because bookies are away: it waits.
        """
        self._check_open()
        with trio.move_on_after(timeout_s):
            while self._lac <= entry_id and not self.is_closed:
                poll = LacPoll(self._cluster, self._current, self._codec, self._raise_lac)
                with trio.CancelScope() as scope:
                    self._polls.add(scope)  # in the step in which the metadata were looked at
                    try:
                        await poll.run(entry_id)
                    finally:
                        self._polls.discard(scope)
        await trio.lowlevel.checkpoint()
        return self._lac

    async def close(self) -> None:
        """Stop what this handle does in the background. The ledger is not touched; closing twice is fine."""
        self._is_open = False
        self._scope.cancel()
        if self._ahead is not None:
            self._ahead.scope.cancel()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> ReadHandle:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._is_open = False
        self._scope.cancel()
        if self._ahead is not None:
            self._ahead.scope.cancel()

    def _check_open(self) -> None:
        if not self._is_open:
            raise LedgerClosedError(self.ledger_id, "this handle is closed; open the ledger again")

    def _check_range(self, first: int, last: int) -> None:
        self._check_open()
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last} are no range")
        if last > self._lac:
            raise EntryBeyondLacError(self.ledger_id, last, self._lac)

    def _raise_lac(self, lac: int) -> None:
        if lac > self._lac and not self.is_closed:
            self._lac = lac

    def _unpack_payloads(self, bodies: Sequence[bytes], first: int) -> list[bytes]:
        payloads = self._codec.payloads(bodies, self.ledger_id, first)
        if not self.is_closed:
            self._raise_lac(ENTRY_HEADER.unpack_from(bodies[len(payloads) - 1])[2])
        return payloads

    def _unpack_entries(self, bodies: Sequence[bytes], first: int) -> list[Entry]:
        entries: list[Entry] = []
        for entry_id, body in enumerate(bodies, first):
            try:
                entries.append(self._codec.unpack(body, self.ledger_id, entry_id))
            except CorruptEntryError:
                if not entries:
                    raise
                break  # the verified ones are good; the next run tries this one elsewhere
        self._raise_lac(entries[-1].lac)
        return entries

    async def _read_ahead(self, ahead: _Ahead, size_bytes_max: int) -> None:
        try:
            with ahead.scope:
                ahead.payloads = await self._read_run(
                    ahead.first, ahead.last, size_bytes_max, self._unpack_payloads
                )
        except LedgerError:
            pass  # whoever wants these entries reads them again, and is told
        finally:
            ahead.done.set()

    async def _read_run(self, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]) -> list[T]:
        """One or more entries from ``first`` on, unpacked and verified."""
        while True:
            metadata = self.metadata
            try:
                return await self._read_run_by(metadata, first, last, size_bytes_max, unpack)
            except LedgerReadError:
                if not await self._were_replaced(metadata, first):
                    raise

    async def _read_run_by(
        self, metadata: LedgerMetadata, first: int, last: int, size_bytes_max: int, unpack: Unpack[T]
    ) -> list[T]:
        stop = segment_stop(metadata, first)
        if stop is not None:
            last = min(last, stop - 1)
        if self._may_batch and last > first and trio.current_time() >= self._batches_again_at:
            batch = await self._replicas.read_batch(metadata, first, last, size_bytes_max, unpack)
            if batch is not None:
                return batch
            self._batches_again_at = trio.current_time() + NO_BATCHES_S
        count = max(1, min(last - first + 1, size_bytes_max // self._replicas.entry_bytes, SINGLE_READS_MAX))
        runs = await self._replicas.read_singles(metadata, first, count, unpack)
        return [one for run in runs for one in run]

    async def _were_replaced(self, metadata: LedgerMetadata, entry_id: int) -> bool:
        """Whether the entry is on other bookies than this metadata names, as far as can be told."""
        # What this handle knows may lag behind the writer, or behind a re-replication if the ledger is
        # closed: the bookies that were asked may never have been given the entry.
        with trio.move_on_after(self._config.transport.request_timeout_s):
            try:
                self._learn(await self._cluster.catalog.get_newest(self.ledger_id))
            except (NamespaceError, LedgerError):
                pass  # why the read failed says more
        return replicas(self.metadata, entry_id) != replicas(metadata, entry_id)

    async def _follow_metadata(self) -> None:
        with self._scope:
            while not self.is_closed:
                watch = trio.Event()
                try:
                    found = await self._cluster.catalog.get(self.ledger_id, watch=watch)
                except (NoSuchLedgerError, SessionExpiredError):
                    return  # what is known stays true; reading says the rest
                except (NamespaceError, LedgerError):
                    await trio.sleep(METADATA_RETRY_S)
                    continue
                self._learn(found)
                if not self.is_closed:
                    await watch.wait()

    def _learn(self, found: Versioned) -> None:
        if found.version <= self._current.version:
            return
        self._current = found
        if found.metadata.is_closed:
            self._lac = max(self._lac, found.metadata.last_entry_id)
        for scope in self._polls:
            scope.cancel()
