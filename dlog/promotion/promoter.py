"""Doing the steps of one log's promotion: forward to the target, back, and the final purge.

Inside: each step of ``steps`` on the two open namespaces. Not inside: their order (``steps``), transactions
(``nodes``), one segment's copy (``write.segment_copy``).
Always: a step that failed or was interrupted is done again from what both sides store; a ledger at the target
that is not part of the log there is recorded as allocated, so that the next attempt deletes it; nothing at
the source is deleted before ``purge``.

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import trio

from dlog.context import NamespaceContext
from dlog.errors import (
    CorruptLogError,
    EndOfStreamError,
    LogFencedError,
    LogMetadataError,
    LogNotFoundError,
    LogUnavailableError,
    NamespaceLostError,
    PromotionError,
    translated,
)
from dlog.ownership import LedgerMark, MadeHere, NamedByLog, ReplacedAllocation, delete_ledger
from dlog.promotion import nodes
from dlog.promotion.progress import OnProgress, PromotionProgress, PromotionStatus, no_report
from dlog.promotion.record import SourcePhase, SourceRecord, TargetPhase, TargetRecord
from dlog.promotion.steps import Step, next_step, next_undo_step
from dlog.read.entries import open_segment_ledger
from dlog.retry_policy import RetryPolicy
from dlog.write.full_ensemble import count_degraded
from dlog.write.segment_copy import SegmentCopy
from ledger.metadata_store import errors as store_errors
from ledger.metadata_store.lock import DistributedLock
from namespace import logs
from namespace.log_identity import keeps_chain_in
from namespace.log_metadata import LogMetadata
from namespace.origin import read_origin
from namespace.segment_nodes import delete_segment, list_segments, record_allocation
from namespace.segments.segment import LogSegment
from namespace.segments.truncation import purgeable

T = TypeVar("T")

TAIL_ENTRIES_MAX = 64  # fewer entries may be left to copy when writing stops for the hand-over
TAIL_ROUNDS_MAX = 50  # of catching up with a writer; then its rest is copied while it waits


@attrs.frozen
class _Tail:
    """The copy of a segment that was still being written."""

    copy: SegmentCopy
    metadata: LogMetadata  # of the target, with the copy's ledger as the allocated one


class Promoter:
    """Promotes one log, or undoes that. Each call may be repeated after a crash, also by another process."""

    def __init__(
        self,
        source: NamespaceContext,
        target: NamespaceContext,
        log: str,
        *,
        lock_timeout_s: float = 0,
        on_progress: OnProgress = no_report,
    ) -> None:
        self._source, self._target, self.log = source, target, log
        self._here, self._there = source.nodes(log), target.nodes(log)
        self._lock_timeout_s, self._on_progress = lock_timeout_s, on_progress
        self._tail: _Tail | None = None
        self._failed_step: Step | None = None  # the step whose last attempts failed
        self._failed_since_s = 0.0
        self._progress = PromotionProgress(log, "", 0, 0, 0)
        retry = source.config.writer
        self._retry_policy = RetryPolicy(timeout_s=retry.retry_timeout_s, pause_s=retry.retry_pause_s)

    async def run(self) -> None:
        """Do all steps that are left. If cancelled or failed, ``run`` or ``undo`` of any process continues.

        Raises:
            LogNotFoundError, LogExistsError, PromotionError, LogMetadataError, CorruptLogError
            LogUnavailableError: One side stayed out of reach.
        """
        async with self._locked():
            try:
                while True:
                    source, target, exists = await self._read()
                    step = next_step(self.log, source, target, target_exists=exists)
                    if step is None:
                        return
                    await self._persistently(step, source, target)
            finally:
                self._drop_tail()

    async def undo(self) -> None:
        """Give the promotion up, delete the copies, and let the source take records as before.

        Raises:
            PromotionError: The hand-over is complete: the target takes records.
            LogUnavailableError: One side stayed out of reach; call it again.
        """
        async with self._locked():
            while True:
                source, target, _ = await self._read()
                if target is not None and source is None and target.source != self._source.uri:
                    target = None  # a copy of another log
                step = next_undo_step(self.log, source, target)
                if step is None:
                    return
                await self._persistently(step, source, target)

    async def status(self) -> PromotionStatus | None:
        """What both sides store; None if the source has no promotion."""
        source, target, _ = await self._read()
        if source is None:
            return None
        is_ours = target is not None and target.id == source.id
        ours = await self._reading(self._originals)
        theirs = await self._reading(self._copied) if is_ours else ()
        copied = {each.segment_seqno for each in theirs}
        is_active = is_ours and target is not None and target.phase is TargetPhase.ACTIVE
        return PromotionStatus(
            log=self.log,
            target=source.target,
            phase=source.phase.value,
            is_purged=source.is_purged,
            segments=len(ours),
            segments_copied=sum(each.segment_seqno in copied for each in ours),
            takes_records=source.target
            if is_active
            else None
            if source.phase is SourcePhase.HANDED_OVER
            else self._source.uri,
        )

    async def purge(self) -> int:
        """Delete the segments at the source and their ledgers, after a complete promotion; return how many.

        Raises:
            PromotionError: The promotion is not complete.
            CorruptLogError: A copy is not as long as its original; nothing was deleted.
        """
        async with self._locked():
            source, target, _ = await self._read()
            if source is None or source.phase is not SourcePhase.DONE:
                raise PromotionError(
                    self.log, "it is not promoted, or not completely; `dlog promote --status` shows it"
                )
            if target is None or target.id != source.id or target.phase is not TargetPhase.ACTIVE:
                raise PromotionError(
                    self.log,
                    f"{source.target} does not have its copy any more; nothing was deleted. Delete the log's"
                    " directory by hand if the records are not needed",
                )
            with translated(self.log, "deleting its segments at the source"):
                ours = (await list_segments(self._here, gaps_ok=True)).segments
                if not source.is_purged:
                    await self._check_copies(ours)
                    await nodes.mark_purged(self._here, source)
                await self._delete_ledgers(self._source, ours)
        return len(ours)

    async def _check_copies(self, ours: Sequence[LogSegment]) -> None:
        theirs = {each.segment_seqno: each for each in await self._copied()}
        for segment in ours:
            if segment.segment_seqno < min(theirs, default=0):
                continue  # truncated and deleted at the target since
            copy = theirs.get(segment.segment_seqno)
            original = await self._source.client.metadata(segment.ledger_id)
            stored = None if copy is None else await self._target.client.metadata(copy.ledger_id)
            if (
                stored is None
                or not stored.is_closed
                or (stored.last_entry_id, stored.length_bytes)
                != (original.last_entry_id, original.length_bytes)
            ):
                raise CorruptLogError(
                    self.log, segment.first_dlsn, "the target has no complete copy; nothing was deleted"
                )

    # The order of steps.

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        lock = await self._retry_policy.until_done(
            self._acquired, subject=lambda: f"log {self.log}: promotion", on_timeout=lambda exc, _: exc
        )
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await lock.release()

    async def _acquired(self) -> DistributedLock:
        store, path = self._source.store, nodes.move_lock_path(self._here)
        with translated(self.log, "acquiring the lock of its promotion"):
            try:
                await store.create(path)
            except store_errors.NodeExistsError:
                pass
            except store_errors.NoNodeError as exc:
                raise LogNotFoundError(self.log) from exc
            lock = DistributedLock(store, path, self._source.client_id)
            try:
                await lock.acquire(self._lock_timeout_s)
            except store_errors.LockTakenError as exc:
                raise PromotionError(
                    self.log,
                    f"{exc.owner or 'another process'} is promoting it now; wait, or end that process",
                ) from exc
        return lock

    async def _read(self) -> tuple[SourceRecord | None, TargetRecord | None, bool]:
        async def read() -> tuple[SourceRecord | None, TargetRecord | None, bool]:
            target = await nodes.read_target(self._there)
            exists = await logs.log_exists(self._there)
            return await nodes.read_source(self._here), target, exists

        return await self._reading(read)

    async def _reading(self, read: Callable[[], Awaitable[T]]) -> T:
        async def translating() -> T:
            with translated(self.log, "reading the state of its promotion"):
                return await read()

        return await self._retry_policy.until_done(
            translating, subject=lambda: f"log {self.log}: promotion", on_timeout=lambda exc, _: exc
        )

    async def _persistently(
        self, step: Step, source: SourceRecord | None, target: TargetRecord | None
    ) -> None:
        """Do a step, also over short losses of a store: then both sides are read again first."""
        self._report(step=step.value)

        async def do() -> None:
            with translated(self.log, f"promoting it: {step.value}"):
                await self._do(step, source, target)

        try:
            await do()
            self._failed_step = None
        except LogFencedError as exc:
            raise PromotionError(
                self.log, f"another process has changed it: {exc.evidence}; try --resume"
            ) from exc
        except LogUnavailableError as exc:
            self._drop_tail()
            # The step may have happened. ``run`` reads both sides again; this call only waits until it can.
            if not await self._is_to_be_repeated(step, exc):
                raise

    async def _is_to_be_repeated(self, step: Step, exc: LogUnavailableError) -> bool:
        now_s = trio.current_time()
        if isinstance(exc, NamespaceLostError):
            return False
        if self._failed_step is not step:
            self._failed_since_s, self._failed_step = now_s, step
        if now_s - self._failed_since_s > self._source.config.writer.retry_timeout_s:
            return False
        await trio.sleep(self._retry_policy.pause_s_max)
        return True

    async def _do(self, step: Step, source: SourceRecord | None, target: TargetRecord | None) -> None:
        here, there = self._source, self._target
        match step:
            case Step.BEGIN:
                record = SourceRecord(uuid.uuid4().hex, there.uri, SourcePhase.COPYING)
                await nodes.begin(self._here, record)
                return
            case Step.DELETE_TARGET:
                await self._delete_target()
                return
            case Step.CANCEL_TARGET:
                assert target is not None  # the step follows from it
                await nodes.put_target(self._there, target, TargetPhase.UNDOING)
                return
        assert source is not None  # the step follows from it
        match step:
            case Step.CREATE_TARGET:
                copying = TargetRecord(source.id, here.uri, TargetPhase.COPYING)
                origin = await read_origin(self._here)
                root = (await here.store.get(self._here.root_path)).value
                await nodes.create_target(self._there, copying, origin, keeps_chain=keeps_chain_in(root))
            case Step.COPY:
                assert target is not None  # the step follows from it
                await self._copy(target)
                await nodes.hand_over(self._here, source)
            case Step.FINISH:
                assert target is not None  # the step follows from it
                await self._finish(target)
            case Step.CONCLUDE:
                ours = await self._originals()
                done = attrs.evolve(
                    source, phase=SourcePhase.DONE, last_seqno=ours[-1].segment_seqno if ours else 0
                )
                await nodes.put_source(self._here, source, done)
            case Step.REOPEN_SOURCE:
                await nodes.reopen_source(self._here, source)
            case Step.FORGET:
                await nodes.forget(self._here, source)

    # Copying.

    async def _originals(self) -> tuple[LogSegment, ...]:
        return (await list_segments(self._here)).segments

    async def _copied(self) -> tuple[LogSegment, ...]:
        return (await list_segments(self._there)).segments

    async def _next_segment(self) -> LogSegment | None:
        """The first segment that the target lacks and needs; None if it has all."""
        ours, theirs = await self._originals(), await self._copied()
        given_up = {each.segment_seqno for each in purgeable(ours)}
        wanted = [each for each in ours if each.segment_seqno not in given_up]
        for each in ours:
            if each.version < 2:
                raise LogMetadataError(
                    f"log {self.log!r}: segment {each.name} is of metadata version 1, which has no number;"
                    " such a log cannot be promoted"
                )
        if theirs and wanted and wanted[0].segment_seqno > theirs[-1].segment_seqno + 1:
            # The log was truncated meanwhile beyond all that was copied. The target must have no gap.
            for each in theirs:
                await self._delete_segment(self._target, each)
            theirs = ()
        last = theirs[-1].segment_seqno if theirs else 0
        left = [each for each in wanted if each.segment_seqno > last]
        self._report(segments=len(wanted), segments_copied=len(wanted) - len(left))
        return left[0] if left else None

    async def _copy(self, target: TargetRecord) -> None:
        """Copy completed segments, and most of the one in progress, while the source takes records."""
        self._drop_tail()
        while (segment := await self._next_segment()) is not None:
            if not segment.in_progress:
                await self._copy_completed(segment, target)
            elif not await self._copy_tail(segment, target):
                return

    async def _copy_completed(self, segment: LogSegment, target: TargetRecord) -> None:
        tail, self._tail = self._tail, None
        if tail is None or tail.copy.segment.ledger_id != segment.ledger_id:
            if tail is not None:
                tail.copy.handle.abandon()
            tail = await self._new_copy(segment)
        try:
            opened = await open_segment_ledger(
                self._source.client, segment.ledger_id, self._source.config.password, recover=False
            )
            async with opened as original:
                await tail.copy.finish(original, segment)
            copied = attrs.evolve(segment, ledger_id=tail.copy.handle.ledger_id)
            await nodes.add_segment(tail.metadata, target, copied)
        except BaseException:
            tail.copy.handle.abandon()
            raise

    async def _copy_tail(self, segment: LogSegment, target: TargetRecord) -> bool:
        """Copy a segment in progress; True if it was completed meanwhile and more segments may follow."""
        self._tail = await self._new_copy(segment)
        copy = self._tail.copy
        opened = await open_segment_ledger(
            self._source.client, segment.ledger_id, self._source.config.password, recover=False
        )
        async with opened as original:
            for _ in range(TAIL_ROUNDS_MAX):
                is_closed, last = original.is_closed, original.last_confirmed
                await copy.copy_up_to(original, last)
                await copy.check()
                if is_closed:
                    break
                await original.read_last_confirmed()
                if original.last_confirmed - last <= TAIL_ENTRIES_MAX:
                    break
        for each in await self._originals():
            if each.ledger_id == segment.ledger_id and not each.in_progress:
                await self._copy_completed(each, target)
                return True
        return False

    async def _new_copy(self, segment: LogSegment) -> _Tail:
        """A ledger at the target for a segment, recorded as allocated."""
        there, config = self._target, self._target.config
        before = await logs.open_log(self._there, closed_too=True)
        custom = LedgerMark(there.path, self.log, before.log_id).custom | before.allocation_stamp
        handle = await there.client.create_from(config.ledger_spec(custom))
        count_degraded(there.client, self.log, handle, segment.segment_seqno)
        try:
            try:
                metadata = await record_allocation(before, handle.ledger_id)
            except LogFencedError:
                await delete_ledger(there.client, handle.ledger_id, MadeHere(handle.metadata.custom))
                raise
            if (left := before.allocated_ledger_id) is not None:  # by an attempt that ended
                await delete_ledger(there.client, left, ReplacedAllocation(before))
        except BaseException:
            handle.abandon()
            raise
        copy = SegmentCopy(
            self.log,
            segment,
            there.client,
            handle,
            shared_with_java=bool(config.shared_with_java),
            on_copied=self._count,
        )
        return _Tail(copy, metadata)

    async def _finish(self, target: TargetRecord) -> None:
        """Complete the source, copy what is left of it, and open the target."""
        lifecycle = self._source.lifecycle(self.log, self._source.store)
        await lifecycle.refresh(closed_too=True)
        try:
            # It fences the ledgers: a writer that still has one open writes nothing more.
            await lifecycle.recover_all()
        except EndOfStreamError:
            pass  # a sealed log: recovered as any other, and sealed at the target too
        while (segment := await self._next_segment()) is not None:
            if segment.in_progress:
                raise LogMetadataError(
                    f"log {self.log!r}: segment {segment.segment_seqno} is in progress after the hand-over;"
                    " nothing was changed"
                )
            await self._copy_completed(segment, target)
        originals = {each.segment_seqno: each for each in await self._originals()}
        changes = []
        for copy in await self._copied():
            original = originals.get(copy.segment_seqno)
            if original is not None:
                marked = attrs.evolve(original, ledger_id=copy.ledger_id)
            elif copy.segment_seqno < min(originals, default=0):
                marked = copy.truncated()  # the source has purged it since
            else:
                raise CorruptLogError(
                    self.log, copy.first_dlsn, "the target has a segment that the source lacks"
                )
            if marked != copy:
                changes.append((copy, marked))
        await nodes.set_marks(self._there, target, changes)
        metadata = await logs.open_log(self._here, closed_too=True)
        extras = await nodes.extras_of(self._here)
        await nodes.activate(self._there, target, extras, max_txid=metadata.max_txid)

    async def _delete_target(self) -> None:
        listed = await list_segments(self._there, gaps_ok=True)
        await self._delete_ledgers(self._target, listed.segments)
        await logs.delete_log_nodes(self._there)

    async def _delete_segment(self, side: NamespaceContext, segment: LogSegment) -> None:
        named = NamedByLog.as_segment(side.nodes(self.log), segment.name)
        await delete_ledger(side.client, segment.ledger_id, named)
        await delete_segment(side.nodes(self.log), segment)

    async def _delete_ledgers(self, side: NamespaceContext, segments: Sequence[LogSegment]) -> None:
        for segment in segments:
            await self._delete_segment(side, segment)
        metadata = await logs.open_log(side.nodes(self.log), closed_too=True)
        if (left := metadata.allocated_ledger_id) is not None:
            claim = NamedByLog.as_allocated(side.nodes(self.log))
            await delete_ledger(side.client, left, claim)

    def _drop_tail(self) -> None:
        if self._tail is not None:
            self._tail.copy.handle.abandon()
            self._tail = None

    def _count(self, size_bytes: int) -> None:
        self._report(bytes_copied=self._progress.bytes_copied + size_bytes)

    def _report(self, **changes: Any) -> None:
        self._progress = attrs.evolve(self._progress, **changes)
        self._on_progress(self._progress)
