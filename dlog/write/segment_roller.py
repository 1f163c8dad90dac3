"""Which segment a writer writes to: starting, rolling, recovering and completing segments.

Inside: the one task that changes the segment in use, and the reaction to a failed ledger.
Not inside: the API (``log_writer``), sending and visibility (``segment_sender``), entry ids and outcomes
(``segment_writer``), transactions and ledgers of segments (``segment_lifecycle``).
Always: only ``run`` changes which segment is in use; nothing is sent to a segment before everything sent to
the segment before it is durable and visible, so a crash leaves no hole in the log; a batch is written to
another segment only after a recovery closed its ledger without it; a writer that lost the log writes nothing
more.

Source: DistributedLog, BKAbstractLogWriter.java, BKLogWriteHandler.java (docs/stream-format.md 4.4 to 4.9).
Two things differ. The new ledger is created before the roll: records submitted during a roll wait only for
the old segment's acknowledgements, the acknowledgement of its last control record, and one transaction. And
the library, not its user, writes again the records that a failed segment did not keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

import trio

from dlog.config import WriterConfig
from dlog.errors import (
    DiskFullError,
    DLogError,
    LogFencedError,
    LogPromotedError,
    LogUnavailableError,
    LogWriteError,
    NamespaceLostError,
    RecordOutcome,
    TooFewBookiesError,
    WriteError,
    WriterClosedError,
    WriterDiskFullError,
    as_dlog_error,
    error_of_system,
)
from dlog.format.hash_chain import ChainValue
from dlog.retry_policy import RetryPolicy
from dlog.statistics_names import ROLL
from dlog.write import segment_events
from dlog.write.batcher import Batch
from dlog.write.full_ensemble import FullEnsembleWatch
from dlog.write.lock_watch import Follow, LockWatch
from dlog.write.rolling import should_roll
from dlog.write.segment_lifecycle import SegmentLifecycle
from dlog.write.segment_sender import SegmentInUse, SegmentSender
from dlog.write.segment_writer import SegmentWriter
from dlog.write.space import Purger
from ledger.errors import LedgerError
from ledger.handle import WriteHandle
from ledger.metadata_store.lock import DistributedLock
from ledger.runtime.tasks.failure_domain import first_line, report_contained
from ledger.runtime.tasks.task_errors import first_error
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment

T = TypeVar("T")


class SegmentRoller:
    """Keeps a segment in use while the writer holds the log. Run ``run`` in a task."""

    def __init__(
        self,
        log: str,
        lifecycle: SegmentLifecycle,
        lock: DistributedLock,
        config: WriterConfig,
        *,
        last_txid: int,
        chain: ChainValue | None = None,
        failed_before: Iterable[Batch] = (),
        bookies_timeout_s: float | None = None,
        follow: Follow | None = None,
    ) -> None:
        """Args:
        bookies_timeout_s: How long the first segment waits for enough bookies, if that is shorter than the
            retry timeout; None: as long as that.
        failed_before: Batches of the writer before it was reopened; ``aclose`` raises their errors, too.
        follow: Called when another program has changed the log; None for a log that cannot be promoted.
        """
        self.log, self.last_txid_before = log, last_txid
        self.sender = SegmentSender(config, on_progress=self._on_progress)
        self._lifecycle, self._locks, self._config = lifecycle, LockWatch(lock), config
        self._barren_since_s: float | None = None  # since when segments fail without an entry
        self._retry_policy = RetryPolicy(timeout_s=config.retry_timeout_s, pause_s=config.retry_pause_s)
        limits_s = (config.retry_timeout_s, bookies_timeout_s)
        self._bookies_timeout_s = min(limit_s for limit_s in limits_s if limit_s is not None)
        self._follow = follow
        self._is_promoted = False  # seen by another task than ``run``
        self._moved = trio.Event()  # pulsed when the writer has followed a promotion, or has stopped
        self._last_txid, self._chain = last_txid, chain  # at the end of the segments before the one in use
        self._newest_writer: SegmentWriter | None = None
        self._old: deque[SegmentInUse] = deque()  # rolled, durable, to be completed; oldest first
        self._spare: WriteHandle | None = None  # a ledger created for a roll that could not be made
        self._roll_not_before_s, self._failed = 0.0, list(failed_before)
        self._work = trio.Event()  # ``run`` has something to do
        self._ended, self._scope = trio.Event(), trio.CancelScope()
        self._full_ensemble = FullEnsembleWatch(self._wake)
        self.purger = Purger(log, lambda: self._lifecycle.purge(), lambda: self._lifecycle.has_garbage())

    def describe(self) -> str:
        """The writer's state, for ``repr``."""
        sender = self.sender
        if sender.stopped is not None:
            return f"stopped ({type(sender.stopped).__name__})"
        if sender.finished.is_set():
            return "closed"
        where = f"segment {sender.in_use.writer.segment_seqno}" if sender.in_use else "no segment yet"
        return f"{where}, {sender.waiting_bytes} bytes waiting"

    @property
    def has_written(self) -> bool:
        """True if this writer has had a segment."""
        return self._newest_writer is not None

    # The life of segments.

    async def run(self) -> None:
        """Do what the segments need until the writer is closed or stops; for a task."""
        try:
            with self._scope:
                while True:
                    self._work = trio.Event()
                    if not await self._step():
                        break
            if self._scope.cancelled_caught:
                self._give_up("it was closed before everything could be written")
        except Exception as exc:
            report_contained("writer of a log", exc)
            self._give_up_by(exc)
        except BaseException as exc:
            self._give_up(f"unexpected {type(exc).__name__}", exc)
            raise
        finally:
            if self.sender.in_use is not None:
                self.sender.in_use.handle.abandon()
            self.sender.finished.set()
            self._pulse()

    async def _step(self) -> bool:
        """Do one step; False if none is left."""
        sender = self.sender
        in_use = sender.in_use
        try:
            if self._is_promoted and sender.stopped is None:
                raise LogFencedError(self.log, "it was promoted")
            if sender.failure is not None:
                await self._recover()
            elif sender.stopped is not None:
                if in_use is None or in_use.writer.is_idle:
                    return False
                await self._work.wait()
            elif in_use is None and sender.batcher:
                await self._begin()
            elif in_use is not None and sender.is_sending and self._roll_is_due(in_use):
                with self._lifecycle.operation(ROLL, "roll"):
                    await self._roll(in_use)
            elif self._old:
                await self._complete_oldest()
            elif sender.is_closing and not sender.batcher and (in_use is None or in_use.writer.is_idle):
                if in_use is None:
                    return False
                self._retire(in_use)
            else:
                await self._work.wait()
        except LogFencedError as exc:
            await self._follow_or_stop(exc)
        except (LogUnavailableError, WriteError) as exc:
            self._stop(exc if isinstance(exc, WriteError) else self._write_error(exc), exc)
        except DLogError as exc:
            self._stop(self._write_error(exc), exc)
        return True

    def _wake(self) -> None:
        self._work.set()

    def _on_progress(self) -> None:
        sender = self.sender
        in_use = sender.in_use
        if not sender.is_sending or in_use is None or sender.is_closing or self._roll_is_due(in_use):
            self._work.set()

    async def _begin(self) -> None:
        first_txid = self.sender.batcher.first_txid
        first_txid = self._last_txid if first_txid is None else first_txid
        begun = None if self._spare else await self._persistently(lambda: self._lifecycle.begin(first_txid))
        if begun is None:
            handle = await self._persistently(self._allocated)
            begun = handle, await self._persistently(lambda: self._lifecycle.start(handle, first_txid))
        self._use(*begun)

    async def _allocated(self, *, full: bool = False) -> WriteHandle:
        if self._spare is not None:
            handle, self._spare = self._spare, None
            return handle
        return await (self._lifecycle.allocate(full=True) if full else self._lifecycle.allocate())

    def _use(self, handle: WriteHandle, segment: LogSegment) -> None:
        if self._newest_writer is not None:
            # The segment before is at its end: its records are durable, and the rest waits in the batcher.
            self._chain = self._newest_writer.durable_chain
        writer = self._newest_writer = SegmentWriter(
            segment.segment_seqno,
            segment.ledger_id,
            segment.first_txid,
            self._lifecycle.compression,
            self._chain,
        )
        in_use = SegmentInUse(writer, handle, segment, trio.current_time())
        self._full_ensemble.begin(self._lifecycle.wait_full_ensemble if in_use.asked else None)
        self.sender.use(in_use)
        segment_events.segment_begun(self.log, segment)
        if in_use.asked is not None:
            number = segment.segment_seqno
            segment_events.segment_degraded(self.log, handle, in_use.asked, number=number)

    def _roll_is_due(self, in_use: SegmentInUse) -> bool:
        return (
            self._should_roll(in_use, lacks_bookies=self._full_ensemble.is_full)
            and trio.current_time() >= self._roll_not_before_s
            and not self.sender.is_closing
        )

    def _should_roll(self, in_use: SegmentInUse, *, lacks_bookies: bool) -> bool:
        return should_roll(
            record_count=in_use.writer.position,
            size_bytes=in_use.writer.size_bytes,
            age_s=trio.current_time() - in_use.began_s,
            segment_bytes_max=self._config.segment_bytes_max,
            segment_age_s_max=self._config.segment_age_s_max,
            lacks_bookies=lacks_bookies,
        )

    async def _roll(self, in_use: SegmentInUse) -> None:
        writer = in_use.writer
        try:
            while self._old:
                # Segments are completed in order, and no more than two are in progress.
                await self._complete_oldest(raising=True)
            # A roll for nothing but a full ensemble does not begin another segment without it.
            handle = await self._allocated(full=not self._should_roll(in_use, lacks_bookies=False))
            if not self._locks.lock.held:
                self._spare = handle
                raise LogUnavailableError(f"log {self.log!r}: out of touch with the metadata store")
        except LogUnavailableError as exc:
            # The old segment still takes records. It only grows beyond its limit.
            segment_events.roll_failed(self.log, writer.segment_seqno, exc)
            self._full_ensemble.again(self._retry_policy.pause_s_max)
            self._roll_not_before_s = trio.current_time() + self._retry_policy.pause_s_max
            return
        self.sender.is_sending = False
        if not await self._finish(in_use):
            self._spare = handle
            return
        segment = await self._persistently(lambda: self._lifecycle.start(handle, writer.last_txid))
        self._last_txid = writer.last_txid
        self._old.append(in_use)
        self._use(handle, segment)

    async def _finish(self, in_use: SegmentInUse) -> bool:
        """Wait until all that was sent is durable and visible; False if the ledger fails before."""
        sender, writer = self.sender, in_use.writer
        while sender.failure is None:
            if not writer.is_idle:
                self._work = trio.Event()
                await self._work.wait()
            elif writer.needs_commit and sender.stopped is None:
                # The control record is sent when nothing else is in flight. Sent beside user records it would
                # carry a LAC before them. A reader that opens the log by its next segment would then miss
                # them until this ledger is closed.
                sender.send(in_use, Batch())
            else:
                return True
        return False

    def _retire(self, in_use: SegmentInUse) -> None:
        assert in_use.writer.is_idle  # awaited above
        self.sender.is_sending = False
        self.sender.in_use = None
        self._old.append(in_use)

    async def _complete_oldest(self, *, raising: bool = False) -> None:
        old = self._old[0]
        writer = old.writer
        try:
            await self._lifecycle.close(old.handle, old.segment)
            await self._lifecycle.complete(
                old.segment,
                last_txid=writer.last_txid,
                record_count=writer.position,
                last_dlsn=writer.last_dlsn,
            )
        except LogUnavailableError as exc:
            if raising:
                raise
            segment_events.completion_failed(self.log, writer.segment_seqno, exc)
            with trio.move_on_after(self._config.retry_pause_s):
                await self._work.wait()
            return
        writer.is_over = True
        segment_events.segment_completed(self.log, writer.segment_seqno, writer.position)
        self._old.popleft()
        if not self.sender.is_closing:
            self.request_purge()

    async def _recover(self) -> None:
        """Recover the failed ledger: settle the records that it holds, and write the others again."""
        sender = self.sender
        in_use, cause = sender.in_use, sender.failure
        assert in_use is not None  # the phase has a segment
        assert cause is not None  # the phase has a cause
        writer = in_use.writer
        segment_events.segment_failed(self.log, writer.segment_seqno, cause)
        in_use.handle.abandon()  # so that no acknowledgement arrives during the recovery
        if isinstance(cause, LedgerError):
            known = as_dlog_error(cause, self.log, "writing")
            if isinstance(known, DiskFullError):  # the next segment would meet the same
                self._stop(self._write_error(known), cause)
        try:
            last_entry_id = await self._persistently(
                lambda: self._lifecycle.recovered_end(in_use.segment), even_if_stopped=True
            )
        except DLogError as exc:
            # Also an error that no retry mends, such as damaged ledger metadata: the end stays unknown.
            self._give_up(exc.message if isinstance(exc, WriteError) else str(exc), exc)
            return
        left = sender.recovered(last_entry_id)
        self._last_txid = max(self._last_txid, writer.last_txid if not left else writer.first_txid)
        if sender.stopped is None and self._is_barren_for_too_long(last_entry_id):
            evidence = f"no segment took a record for {self._config.retry_timeout_s:g} s: {cause}"
            self._stop(LogWriteError(self.log, evidence, RecordOutcome.NOT_WRITTEN), cause)
        if sender.stopped is not None:
            self._stop(sender.stopped)
            return
        while self._old:
            await self._persistently(lambda: self._complete_oldest(raising=True))
        # Another writer may have fenced the ledger and taken the log. This call finds out, or starting the
        # next segment does: both are conditional on what this writer knows, and raise LogFencedError.
        await self._persistently(lambda: self._lifecycle.settle_own(in_use.segment))
        if not self._locks.lock.held:
            await self._persistently(partial(self._locks.check_held, self.log))

    def _is_barren_for_too_long(self, last_entry_id: int) -> bool:
        """True if all segments have failed without an entry for the retry timeout.

        Bookies that let each ledger be begun and recovered, and take no entry, would otherwise get a new
        segment after each failure, for ever.
        """
        now_s = trio.current_time()
        if last_entry_id >= 0:
            self._barren_since_s = None
            return False
        if self._barren_since_s is None:
            self._barren_since_s = now_s
        return now_s - self._barren_since_s >= self._config.retry_timeout_s

    async def _follow_or_stop(self, cause: LogFencedError) -> None:
        """Go on in the namespace that the log was promoted to. Stop if another writer has taken the log."""
        sender, in_use = self.sender, self.sender.in_use
        is_done = sender.is_closing and not sender.batcher and (in_use is None or in_use.writer.is_idle)
        if self._follow is None or sender.stopped is not None or is_done:
            self._stop(cause)
            return
        try:
            found = await self._persistently(self._follow)
            if found is None:
                self._stop(cause)
                return
            before, self._lifecycle, self._is_promoted = self._lifecycle, found[0], False
            lock = self._locks.replace(found[1])
            await self._leave(before)
            await lock.release()
        except (LogUnavailableError, WriteError) as exc:
            self._stop(exc if isinstance(exc, WriteError) else self._write_error(exc), exc)
        except DLogError as exc:
            self._stop(self._write_error(exc), exc)
        finally:
            self._pulse()

    async def _leave(self, lifecycle: SegmentLifecycle) -> None:
        """Settle what is in flight in the ledgers that the promotion has fenced. It completes them."""
        while self._old:
            (old := self._old.popleft()).handle.abandon()
            old.writer.is_over = True
        if self._spare is not None:
            self._spare.abandon()
            self._spare = None
        if (in_use := self.sender.in_use) is None:
            return
        writer = in_use.writer
        self.sender.is_sending = False
        in_use.handle.abandon()  # so that no acknowledgement arrives during the recovery
        try:
            last_entry_id = await self._persistently(lambda: lifecycle.recovered_end(in_use.segment))
        except DLogError as exc:
            self._give_up(exc.message if isinstance(exc, WriteError) else str(exc), exc)
            return
        left = self.sender.recovered(last_entry_id)
        self._last_txid = max(self._last_txid, writer.last_txid if not left else writer.first_txid)

    def _pulse(self) -> None:
        """Wake the tasks that wait for the end of a move; each looks again."""
        self._moved.set()
        self._moved = trio.Event()

    async def truncate(self, first_kept: DLSN) -> DLSN | None:
        """See ``LogWriter.truncate``. It changes no segment in use, so it need not wait for ``run``."""
        while True:
            if self.sender.refusal is not None:
                raise self.sender.refusal.about(RecordOutcome.NOT_WRITTEN)
            try:
                first_left = await self._lifecycle.truncate(first_kept)
            except LogPromotedError:
                self._is_promoted = True
                self._work.set()
                await self._moved.wait()
            else:
                self.request_purge()
                return first_left

    def request_purge(self) -> None:
        """Delete truncated segments soon, if the writer is configured so."""
        if self._config.purge:
            self.purger.request()

    async def watch_lock(self) -> None:
        """Stop the writer when its lock is lost; for a task."""
        await self._locks.watch(lambda: self._stop(self._locks.loss(self.log)))

    async def follow_promotion(self, wait_promoted: Callable[[], Awaitable[None]]) -> None:
        """Follow the log to another namespace as soon as it is handed over; for a task."""
        await wait_promoted()
        self._is_promoted = True
        self._work.set()

    async def _persistently(self, step: Callable[[], Awaitable[T]], *, even_if_stopped: bool = False) -> T:
        """Repeat the step while it raises LogUnavailableError.

        Raises:
            LogWriteError: The retry timeout ended, or the session with the metadata store.
            WriteError: The writer has stopped; not with ``even_if_stopped``.
        """

        def check() -> None:
            if self.sender.stopped is not None and not even_if_stopped:
                raise self.sender.stopped

        try:
            return await self._retry_policy.until_done(
                step,
                subject=lambda: f"log {self.log}",
                on_timeout=lambda exc, _: self._write_error(exc),
                check=check,
                timeout_s=self._timeout_s,
            )
        except NamespaceLostError as exc:
            # The lock belongs to this session. The task that watches it may notice a moment later.
            locks = self._locks
            raise locks.loss(self.log) if locks.is_session_over else self._write_error(exc) from exc

    def _timeout_s(self, error: LogUnavailableError) -> float:
        # Bookies that this writer has used may return. A cluster that was too small from the start does not
        # grow while the caller waits.
        is_too_small = isinstance(error, TooFewBookiesError) and not self.has_written
        return self._bookies_timeout_s if is_too_small else self._config.retry_timeout_s

    # Stopping.

    def _write_error(self, exc: DLogError) -> WriteError:
        kind = WriterDiskFullError if isinstance(exc, DiskFullError) else LogWriteError
        return kind(self.log, str(exc), RecordOutcome.NOT_WRITTEN)

    def _stop(self, error: WriteError, cause: BaseException | None = None) -> None:
        """Send nothing more. A batch never sent is not written; the ledger decides about one in flight."""
        if self.sender.stopped is None:
            if cause is not None and cause is not error:
                error.__cause__ = error_of_system(cause) or cause
            segment_events.writer_stopped(self.log, error)
        for batch in self.sender.stop(error):
            self._fail(batch, RecordOutcome.NOT_WRITTEN)
        self._work.set()
        self._pulse()

    def _give_up(self, evidence: str, cause: BaseException | None = None) -> None:
        """Stop and abandon the ledger in use. The outcome of records in flight stays unknown."""
        kind = WriterDiskFullError if isinstance(cause, DiskFullError) else LogWriteError
        self._stop(kind(self.log, evidence), cause)
        for batch in self.sender.give_up():
            self._fail(batch, RecordOutcome.UNKNOWN)

    def _fail(self, batch: Batch, outcome: RecordOutcome) -> None:
        assert self.sender.stopped is not None  # checked by the caller
        if batch.txids:
            self._failed.append(batch)
        batch.failed(self.sender.stopped.about(outcome))

    async def _guarded(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task of this writer. Its error ends the writer, not the block that the writer is open in."""
        try:
            await task()
        except Exception as exc:
            report_contained("writer of a log", exc)
            self._give_up_by(exc)

    def _give_up_by(self, error: Exception) -> None:
        cause = first_error(error)
        self._give_up(f"unexpected {type(cause).__name__}: {first_line(cause)}", cause)

    async def serve(
        self, *, purge: bool, wait_promoted: Callable[[], Awaitable[None]] = trio.sleep_forever
    ) -> None:
        """Run the tasks beside ``run`` until ``end`` is called; for a task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._guarded, self.sender.serve)
            nursery.start_soon(self._guarded, self.watch_lock)
            nursery.start_soon(self._guarded, self._full_ensemble.run)
            if self._follow is not None:
                # At once, also with nothing to write: no other writer gets the lock there first.
                nursery.start_soon(self._guarded, partial(self.follow_promotion, wait_promoted))
            if purge:
                nursery.start_soon(self.purger.run)
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    async def aclose(self) -> None:
        """See ``LogWriter.aclose``."""
        await self._finish_all()
        for batch in self._failed:
            if not batch.error_was_seen:
                batch.raise_error()

    async def end(self) -> list[Batch]:
        """Settle what a stopped writer has in flight, release the lock, end the tasks.

        Returns:
            The batches that failed and whose error no caller has got yet.
        """
        await self._finish_all()
        self._ended.set()
        return [batch for batch in self._failed if not batch.error_was_seen]

    async def _finish_all(self) -> None:
        sender = self.sender
        if sender.refusal is None:
            sender.refusal = WriterClosedError(self.log)
        sender.begin_closing()
        self._work.set()
        try:
            with trio.move_on_after(self._config.close_timeout_s):
                await sender.finished.wait()
        finally:
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await sender.finished.wait()
                await self._locks.release()
