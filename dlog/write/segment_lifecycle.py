"""The life of a log's segments, for its writer: metadata and ledgers together.

Inside: starting, completing, recovering and deleting a segment; deciding whether a transaction was applied
whose reply was lost.
Not inside: when a step happens (``writer_shell``), truncating and purging (``space``), records of the
segment in use (``segment_writer``), the transactions themselves (``namespace.segment_nodes``).
Always: entries are written to a ledger only after its segment is in the log's metadata; a segment is
completed only after the end of its ledger is decided; the versions that the writer read when it got the lock
are never read again to continue after a conflict, so an overtaken writer fails with ``LogFencedError``.

Source: DistributedLog, BKLogWriteHandler.java, SimpleLedgerAllocator.java
(docs/stream-format.md 3.7, 4.4 to 4.6).
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import attrs
import trio

from dlog.config import NamespaceConfig
from dlog.errors import (
    CorruptLogError,
    DLogError,
    EndOfStreamError,
    EntryFormatError,
    LogFencedError,
    LogMovedError,
    translated,
)
from dlog.format.compression import Compression
from dlog.format.large_record import is_in_parts
from dlog.format.record import TXID_INVALID, TXID_MAX
from dlog.ownership import (
    LedgerMark,
    NamedByLog,
    ReplacedAllocation,
    delete_ledger,
    delete_replaced,
    with_identity,
)
from dlog.read.entries import SCAN_ENTRIES_FIRST, SCAN_ENTRIES_MAX, open_segment_ledger, read_entries
from dlog.read.segment_reader import last_record_of
from dlog.statistics_names import SEGMENTS_COMPLETED
from dlog.write.space import mark_truncated, purge_segments, retain
from ledger.catalog.catalog import CommitLedger
from ledger.client import LedgerClient
from ledger.errors import LedgerClosedError, LedgerFencedError, NoSuchLedgerError
from ledger.handle import ReadHandle, WriteHandle
from ledger.metadata_store.errors import ConnectionLostError, MetadataError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import Create
from ledger.runtime.statistics.tracing import Span
from ledger.runtime.tasks.timers import Timers
from namespace.dlsn import DLSN
from namespace.heal_node import read_heals
from namespace.log_identity import ensure_log_id
from namespace.log_metadata import LogMetadata, next_segment_seqno
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.retention_node import read_retention
from namespace.segment_nodes import (
    complete_segment,
    delete_segment,
    list_segments,
    record_allocation,
    start_segment,
)
from namespace.segments.segment import EMPTY_SEGMENT_TXID, LogSegment, encode_segment, start_sequence_id_after
from namespace.segments.truncation import first_left, purgeable


@attrs.frozen
class _Uncertain:
    """A transaction that may or may not be applied. If it is, the node at ``path`` holds ``data``."""

    path: str
    data: bytes
    versions: tuple[int, int, int]  # of maxtxid, ledgers, allocation, before the transaction


def _versions(metadata: LogMetadata) -> tuple[int, int, int]:
    return metadata.max_txid_version, metadata.max_segment_seqno_version, metadata.allocation_version


class SegmentLifecycle:
    """Changes the segments of one log. Acquire the log's lock, then call ``refresh`` first."""

    def __init__(
        self,
        nodes: LogNodes,
        client: LedgerClient,
        config: NamespaceConfig,
        *,
        first_segment_seqno: int,
        wall_ms: Callable[[], int],
        may_retain: Callable[[], Awaitable[bool]] | None = None,
        degraded_ensemble: bool = False,
    ) -> None:
        self.log = nodes.name
        self._may_be_smaller = degraded_ensemble  # the ensemble of a new segment
        self._nodes, self._client = nodes, client
        self._config, self._first_segment_seqno, self._wall_ms = config, first_segment_seqno, wall_ms
        self._may_retain = may_retain  # whether the log's retention may truncate it; None: always
        self._metadata: LogMetadata | None = None
        self._segments: list[LogSegment] = []
        self._sizes: dict[int, int] = {}  # bytes of completed segments, by ledger id
        self._uncertain: _Uncertain | None = None
        self._begun: int | None = None  # the ledger of a segment that ``begin`` has not returned
        self._turn = trio.Lock()  # ``truncate`` runs in another task than the other calls

    @property
    def compression(self) -> Compression:
        """The compression of new entries."""
        return self._config.compression

    @property
    def timers(self) -> Timers:
        """Those of the client of the ledgers."""
        return self._client.timers

    @property
    def connect_timeout_s(self) -> float:
        """How long to wait for a cluster that is not there, or too small."""
        return self._config.connect_timeout_s

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """The segments as this writer last listed or changed them."""
        return tuple(self._segments)

    @property
    def last_txid(self) -> int:
        """The greatest transaction id of completed segments; -1 if there is none."""
        assert self._metadata is not None  # refresh() comes first
        ids = [segment.last_txid for segment in self._segments if not segment.in_progress]
        # A log without records stores 0, which is also a valid id. A record with that id is in ``ids``.
        return max([-1, self._metadata.max_txid or -1, *ids])

    async def keep_chain(self, wanted: bool) -> bool:
        """Whether the log has a hash chain; if ``wanted``, it has one from now on, for every writer.

        If cancelled, it may or may not have one.

        Raises: what ``ensure_log_id`` raises.
        """
        if wanted and not self._known.keeps_chain:
            known = await with_identity(self._known, self._client, self._segments)
            await ensure_log_id(self._nodes, known.log_id, keeps_chain=True)
            self._metadata = attrs.evolve(known, keeps_chain=True)
        return self._known.keeps_chain

    async def refresh(self, *, closed_too: bool = False) -> None:
        """Read the log's nodes and segments. Call it only once, right after acquiring the lock.

        Args:
            closed_too: Also if the log is closed, by a move that only completes what is in progress.

        Raises:
            LogNotFoundError, LogUnavailableError, LogMetadataError
            EndOfStreamError: The log is sealed.
            DLogError: The log is closed: it is being moved to another namespace, or was.
        """
        with translated(self.log, "opening it for writing"):
            self._metadata = await open_log(self._nodes, closed_too=closed_too)
            listed = await list_segments(self._nodes)
        self._segments = list(listed.segments)
        if self._metadata.sealed and not closed_too:
            raise EndOfStreamError(self.log)

    def operation(self, name: str, span: str) -> contextlib.AbstractContextManager[Span | None]:
        """Measure and trace the block, if that is turned on; see ``Recorder.operation``."""
        return self._client.recorder.operation(name, span, log=self.log)

    async def recover_all(self) -> None:
        """Recover every segment in progress, in order: an earlier writer left them."""
        for segment in [each for each in self._segments if each.in_progress]:
            await self._recover(segment)
        assert self._metadata is not None  # refresh() comes first
        if self._metadata.sealed:
            raise EndOfStreamError(self.log)

    async def recover_left_over(self) -> list[LogSegment]:
        """Read the log's nodes, recover every segment in progress, and return those that are completed now.

        Call it instead of ``refresh`` and ``recover_all``. A sealed log is no error.
        """
        with contextlib.suppress(EndOfStreamError):
            await self.refresh()
        left = {segment.ledger_id for segment in self._segments if segment.in_progress}
        with contextlib.suppress(EndOfStreamError):
            await self.recover_all()
        return [segment for segment in self._segments if segment.ledger_id in left]

    async def begin(self, first_txid: int) -> tuple[WriteHandle, LogSegment] | None:
        """Create a ledger and make it the log's newest segment, in one transaction; arguments as ``start``.

        Calling it again after LogUnavailableError is safe. None, with nothing done, if one transaction cannot
        do it: then call ``allocate`` and ``start``.

        Raises:
            LogFencedError: Another writer has started or completed a segment; nothing was changed.
        """
        await self._settle_uncertain()
        for left in [each for each in self._segments if each.ledger_id == self._begun and each.in_progress]:
            await self._recover(left)  # the reply was lost, and with it the only handle that writes to it
        self._begun = None
        # A ledger that an earlier writer left must be deleted once the node does not name it any more.
        if self._known.allocated_ledger_id is not None or not self._client.is_in_session(self._nodes.store):
            return None
        started: list[LogSegment] = []

        async def commit(ledger_id: int, ledger: Create) -> None:
            self._begun = ledger_id
            try:
                started.append(await self._started(ledger_id, first_txid, ledger))
            except (NodeExistsError, NoNodeError):
                raise  # about the ledger
            except MetadataError:
                with translated(self.log, "starting a segment"):
                    raise  # with the error of the system as its cause

        with translated(self.log, "starting a segment"):
            handle = await self._create(commit, may_be_smaller=self._may_be_smaller)
        self._begun = None
        return handle, started[0]

    async def wait_full_ensemble(self, steady_s: float) -> None:
        """Return once enough bookies for a whole ensemble have been writable for this long."""
        await self._client.membership.wait_writable(self._config.ensemble_size, steady_s)

    async def allocate(self, *, full: bool = False) -> WriteHandle:
        """Create a ledger for the next segment and record its id, so that a crash does not leak it.

        Args:
            full: It must have all bookies of its ensemble.
        """
        await self._settle_uncertain()
        with translated(self.log, "creating a ledger"):
            handle = await self._create(may_be_smaller=self._may_be_smaller and not full)
            before = self._known
            left_over = before.allocated_ledger_id
            try:
                await self._transact(
                    lambda: record_allocation(before, handle.ledger_id),
                    self._nodes.allocation_path,
                    b"%d" % handle.ledger_id,
                )
                # An earlier writer created it and never used it. (Older Java releases allocate ahead.)
                if left_over is not None:
                    await delete_ledger(self._client, left_over, ReplacedAllocation(before))
            except BaseException:
                handle.abandon()
                raise
        return handle

    async def start(self, handle: WriteHandle, first_txid: int) -> LogSegment:
        """Make the ledger the log's newest segment. Calling it again after LogUnavailableError is safe.

        Args:
            first_txid: ``TXID_MAX`` if the segment's first record is the end of the stream.

        Raises:
            LogFencedError: Another writer has started or completed a segment; nothing was changed.
        """
        if await self._settle_uncertain():
            for segment in self._segments:
                if segment.ledger_id == handle.ledger_id:
                    return segment
        with translated(self.log, "starting a segment"):
            return await self._started(handle.ledger_id, first_txid)

    async def _create(self, commit: CommitLedger | None = None, *, may_be_smaller: bool) -> WriteHandle:
        log_id = (await with_identity(self._known, self._client, self._segments)).log_id
        self._metadata = attrs.evolve(self._known, log_id=log_id)
        mark = LedgerMark(self._nodes.namespace_path, self.log, log_id)
        spec = self._config.ledger_spec(mark.custom | self._known.allocation_stamp)
        return await self._client.create_from(
            attrs.evolve(spec, may_be_smaller=may_be_smaller), commit=commit
        )

    async def _started(self, ledger_id: int, first_txid: int, ledger: Create | None = None) -> LogSegment:
        segment = LogSegment(
            segment_seqno=next_segment_seqno(
                self._known, self._segments, first_seqno=self._first_segment_seqno
            ),
            ledger_id=ledger_id,
            first_txid=max(first_txid, self._known.max_txid, 0),
        )
        sealing = first_txid == TXID_MAX
        await self._transact(
            lambda: start_segment(self._known, segment, sealing=sealing, ledger=ledger),
            self._path_of(segment),
            encode_segment(segment),
        )
        self._segments.append(segment)
        return segment

    async def close(self, handle: WriteHandle, segment: LogSegment) -> None:
        """Close the segment's ledger at its last entry, which is confirmed.

        Raises:
            LogFencedError: Another client recovers the ledger, or has closed it.
        """
        with translated(self.log, "closing a segment's ledger"):
            try:
                await handle.close()
            except LedgerClosedError:
                pass  # closed already
            except LedgerFencedError as exc:
                raise LogFencedError(self.log, str(exc)) from None

    async def complete(
        self, segment: LogSegment, *, last_txid: int, record_count: int, last_dlsn: DLSN | None
    ) -> None:
        """Complete a segment whose ledger is closed. Calling it again after LogUnavailableError is safe.

        Raises:
            LogFencedError: Another writer has completed it, or started another; nothing was changed.
        """
        await self._settle_uncertain()
        index = next(
            (i for i, each in enumerate(self._segments) if each.ledger_id == segment.ledger_id), None
        )
        if index is None or not self._segments[index].in_progress:
            return
        before = next(
            (each for each in self._segments if each.segment_seqno == segment.segment_seqno - 1), None
        )
        completed = segment.completed(
            last_txid=last_txid,
            record_count=record_count,
            last_entry_id=-1 if last_dlsn is None else last_dlsn.entry_id,
            last_slot_id=-1 if last_dlsn is None else last_dlsn.slot_id,
            completed_ms=self._wall_ms(),
            start_sequence_id=start_sequence_id_after(before),
        )
        with translated(self.log, "completing a segment"):
            await self._transact(
                lambda: complete_segment(self._known, segment, completed),
                self._path_of(completed),
                encode_segment(completed),
            )
        self._segments[index] = completed
        self._client.recorder.counts[SEGMENTS_COMPLETED] += 1

    async def truncate(self, first_kept: DLSN) -> DLSN | None:
        """Mark the records before a position as truncated; see ``LogWriter.truncate``. Repeating it is safe.

        Raises:
            LogFencedError: Another writer has taken over.
            LogUnavailableError: Some segments may be marked.
        """
        async with self._turn:
            await self._settle()
            listed = await mark_truncated(self._nodes, first_kept, check=self._check_ours)
            by_ledger = {segment.ledger_id: segment for segment in listed}
            self._segments = [by_ledger.get(each.ledger_id, each) for each in self._segments]
        return first_left(listed)

    def _check_ours(self, now: LogMetadata) -> None:
        if _versions(now) != _versions(self._known):
            raise LogFencedError(self.log, "another writer has changed its segments")

    async def has_garbage(self) -> bool:
        """True if segments are marked as truncated, or the log has a rule of retention."""
        if purgeable(self._segments):
            return True
        with translated(self.log, "reading its retention and its heals"):
            if await read_retention(self._nodes) is not None:
                return True
            return any(each.given_up is not None for each in (await read_heals(self._nodes)).heals)

    async def purge(self) -> tuple[LogSegment, ...]:
        """Apply the log's retention, then delete the segments marked as truncated; see ``space``."""
        with translated(self.log, "reading the access control entries"):
            may_retain = self._may_retain is None or await self._may_retain()
        if may_retain:
            now_ms = self._wall_ms()
            await retain(self._nodes, self._client, now_ms=now_ms, sizes=self._sizes)
        with translated(self.log, "deleting ledgers that a heal replaced"):
            await delete_replaced(self._nodes, self._client, now_ms=self._wall_ms())
        return await purge_segments(self._nodes, self._client)

    async def recovered_end(self, segment: LogSegment) -> int:
        """Recover the segment's ledger; return its last entry id, -1 if it has none.

        Afterwards the ledger is closed: it holds the entries up to this one, and never gets another.

        Raises:
            LogMovedError: The ledger is deleted, since the log is in another namespace.
        """
        with translated(self.log, f"recovering ledger {segment.ledger_id}"):
            try:
                opened = await open_segment_ledger(
                    self._client, segment.ledger_id, self._config.password, recover=True
                )
            except NoSuchLedgerError:
                # A recovery deleted it as empty. Or the log was moved and purged: then its entries are at
                # the target, and must not be written again.
                try:
                    await open_log(self._nodes)
                except LogMovedError as exc:
                    if exc.is_purged:
                        raise
                return -1
            async with opened as handle:
                return handle.last_confirmed

    async def settle_own(self, segment: LogSegment) -> None:
        """Complete or delete a segment of this writer after ``recovered_end``.

        Raises:
            LogFencedError: Another writer has done so, or has started the next segment.
        """
        await self._settle_uncertain()
        mine = next((each for each in self._segments if each.ledger_id == segment.ledger_id), None)
        if mine is not None and mine.in_progress:
            await self._recover(mine)

    async def _recover(self, segment: LogSegment) -> None:
        with translated(self.log, f"recovering segment {segment.segment_seqno}"):
            try:
                opened = await open_segment_ledger(
                    self._client, segment.ledger_id, self._config.password, recover=True
                )
            except NoSuchLedgerError:
                last_entry_id = -1  # an earlier recovery deleted the ledger and then stopped
            else:
                async with opened as handle:
                    last_entry_id = handle.last_confirmed
                    if last_entry_id >= 0:
                        last = await self._last_record(handle, segment)
            if last_entry_id < 0:
                claim = NamedByLog(self._nodes, self._path_of(segment))
                await delete_ledger(self._client, segment.ledger_id, claim)
                await delete_segment(self._nodes, segment)
                self._segments = [each for each in self._segments if each.ledger_id != segment.ledger_id]
                return
        txid, position, dlsn = last
        await self.complete(segment, last_txid=txid, record_count=position, last_dlsn=dlsn)

    async def _last_record(self, handle: ReadHandle, segment: LogSegment) -> tuple[int, int, DLSN | None]:
        """Transaction id, position and DLSN of the ledger's last record of any kind."""
        stop, window = handle.last_confirmed + 1, SCAN_ENTRIES_FIRST
        while stop > 0:
            first = max(0, stop - window)
            entries = await read_entries(handle, first, stop - 1)
            for entry_id, entry in reversed(list(enumerate(entries, first))):
                dlsn = DLSN(segment.segment_seqno, entry_id, 0)
                try:
                    last = last_record_of(entry, enveloped=segment.enveloped)
                except EntryFormatError as exc:
                    raise CorruptLogError(self.log, dlsn, str(exc)) from None
                if last is not None:
                    _, position, txid, slot_id = last
                    if txid == TXID_INVALID:
                        raise CorruptLogError(self.log, dlsn, f"a record has the reserved txid {txid}")
                    if position == 0 and segment.enveloped and is_in_parts(entry):
                        # Only the first parts of a record were written, so the log has no record with its
                        # id: it may be written again.
                        txid = EMPTY_SEGMENT_TXID
                    return txid, position, DLSN(segment.segment_seqno, entry_id, slot_id)
            stop, window = first, min(2 * window, SCAN_ENTRIES_MAX)
        return segment.first_txid, 0, None

    # Transactions whose reply may be lost.

    @property
    def _known(self) -> LogMetadata:
        assert self._metadata is not None, "refresh() comes first"  # refresh() comes first
        return self._metadata

    def _path_of(self, segment: LogSegment) -> str:
        return self._nodes.segment_path(segment.name)

    async def _transact(self, commit: Callable[[], Awaitable[LogMetadata]], path: str, data: bytes) -> None:
        """Commit. If the reply is lost, the next call first finds out whether the transaction was applied."""
        async with self._turn:
            assert self._uncertain is None  # settled by ``refresh``
            # Set before the commit: a cancelled commit is uncertain, too.
            self._uncertain = _Uncertain(path, data, _versions(self._known))
            try:
                metadata = await commit()
            except ConnectionLostError:
                raise
            except (MetadataError, DLogError):
                self._uncertain = None
                raise
            self._metadata, self._uncertain = metadata, None

    async def _settle_uncertain(self) -> bool:
        """Find out whether a transaction was applied whose reply was lost; True if it was.

        Raises:
            LogFencedError: The log's nodes are neither in the state before it nor in the state after it.
        """
        async with self._turn:
            return await self._settle()

    async def _settle(self) -> bool:
        uncertain = self._uncertain
        if uncertain is None:
            return False
        with translated(self.log, "finding out what a lost connection left"):
            await self._nodes.store.sync(uncertain.path)
            now = await open_log(self._nodes)
            try:
                found: bytes | None = (await self._nodes.store.get(uncertain.path)).value
            except NoNodeError:
                found = None
            if found == uncertain.data:
                # The data names our ledger, or its completion by us: no other writer writes the same data.
                listed = await list_segments(self._nodes)
                if any(
                    after not in (before, before + 1)
                    for before, after in zip(uncertain.versions, _versions(now), strict=True)
                ):
                    raise LogFencedError(self.log, "another writer has changed its segments")
                self._metadata, self._segments = now, list(listed.segments)
                self._uncertain = None
                return True
            if _versions(now) != uncertain.versions:
                raise LogFencedError(self.log, "another writer has changed its segments")
            self._uncertain = None
            return False
