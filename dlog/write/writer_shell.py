"""The tasks of a log's writer: they perform what its machine decides.

Inside: the one task that begins, rolls, recovers and completes segments, and follows a log that moves; the
watch of the lock; callers that wait for visibility; stopping and ending; the events in the life of segments
(``docs/events.md``).
Not inside: what to do next, and what is sent (``writer_machine``), its times (``writer_timers``), waiting for
capacity (``capacity``), the API (``log_writer``), transactions and ledgers of segments
(``segment_lifecycle``), acquiring the lock (``opening``).
Always: only ``run`` changes which segment is in use; a lock that a move replaced before it was lost is
no loss; the lock is released after every record has its outcome.

Source: DistributedLog, BKAbstractLogWriter.java, BKLogWriteHandler.java (docs/stream-format.md 4.4 to 4.9).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar, assert_never

import trio

from dlog import statistics_names as names
from dlog.config import WriterConfig
from dlog.errors import (
    DiskFullError,
    DLogError,
    LogFencedError,
    LogLockLostError,
    LogMovedError,
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
from dlog.write.actions import (
    Action,
    Begin,
    Complete,
    End,
    Follow,
    Recover,
    Roll,
    SegmentInUse,
    Stop,
    Wait,
)
from dlog.write.batcher import Batch
from dlog.write.capacity import Capacity
from dlog.write.full_ensemble import FullEnsembleWatch, report_degraded
from dlog.write.pending import wait_settled
from dlog.write.segment_lifecycle import SegmentLifecycle
from dlog.write.space import Purger
from dlog.write.writer_machine import WriterMachine
from dlog.write.writer_state import Intake, Phase
from dlog.write.writer_timers import WriterTimers
from ledger.causes import with_hidden_cause
from ledger.errors import LedgerError
from ledger.handle import WriteHandle
from ledger.metadata_store.lock import DistributedLock
from ledger.metadata_store.store import SessionState
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import first_line, report_contained
from ledger.runtime.tasks.task_errors import first_error
from ledger.runtime.tasks.timers import Timers
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment

logger = get_logger(__name__)

T = TypeVar("T")

# The log's segments and its lock in the namespace that it was moved to; None if it was not.
FollowLog = Callable[[], Awaitable[tuple[SegmentLifecycle, DistributedLock] | None]]


class WriterNamespaceLostError(WriteError, NamespaceLostError):
    """The namespace of a writer is lost: its directory was moved, removed or replaced. Open it again."""


class WriterShell:
    """Keeps a segment in use while the writer holds the log. Run ``run`` and ``serve`` in tasks."""

    def __init__(
        self,
        log: str,
        lifecycle: SegmentLifecycle,
        lock: DistributedLock,
        config: WriterConfig,
        *,
        last_txid: int,
        timers: Timers,
        chain: ChainValue | None = None,
        failed_before: Iterable[Batch] = (),
        bookies_timeout_s: float | None = None,
        follow: FollowLog | None = None,
    ) -> None:
        """Args:
        timers: Of the client; they call while it is open.
        bookies_timeout_s: How long the first segment waits for enough bookies, if that is shorter than the
            retry timeout; None: as long as that.
        failed_before: Batches of the writer before it was reopened; ``aclose`` raises their errors, too.
        follow: Called when another program has changed the log; None for a log that cannot move.
        """
        self.log, self.last_txid_before = log, last_txid
        self.machine = WriterMachine(
            config,
            self,
            # Not ``trio.current_time``, which fails outside of the run: faces in other threads ask, too.
            clock=trio.lowlevel.current_clock().current_time,
            last_txid=last_txid,
            chain=chain,
            failed_before=failed_before,
            can_follow=follow is not None,
        )
        self.finished = trio.Event()  # the last segment is completed, or the writer has stopped
        self.lock = lock
        self._lifecycle, self._config, self._follow = lifecycle, config, follow
        self._retry_policy = RetryPolicy(timeout_s=config.retry_timeout_s, pause_s=config.retry_pause_s)
        limits_s = (config.retry_timeout_s, bookies_timeout_s)
        self._bookies_timeout_s = min(limit_s for limit_s in limits_s if limit_s is not None)
        self._spare: WriteHandle | None = None  # a ledger created for a roll that could not be made
        self._work = trio.Event()  # ``run`` has something to do
        self._scope = trio.CancelScope()  # of ``run``
        self._serving, self._lock_watch = trio.CancelScope(), trio.CancelScope()
        self._is_released = False
        self._changed = trio.Event()  # pulsed after a recovery, after a move, and when the writer stops
        self.timers = WriterTimers(self.machine, config, timers, self._faulty)
        self.capacity = Capacity(self.machine, config.bytes_in_flight_max)
        # Its calls for each append go there without a step between.
        self.want_visible, self.hold = self.timers.want_visible, self.timers.hold
        self.free_capacity = self.capacity.free
        self._full_ensemble = FullEnsembleWatch(self.machine.full_ensemble_is_there)
        self.purger = Purger(
            log, lambda: self._lifecycle.purge(), lambda: self._lifecycle.has_garbage(), timers
        )

    # What the machine tells; see ``writer_machine.Shell``.

    def wake(self) -> None:
        self._work.set()

    # For people.

    def describe(self) -> str:
        """The writer's state, for ``repr``."""
        machine = self.machine
        if machine.stopped is not None:
            return f"stopped ({type(machine.stopped).__name__})"
        if self.finished.is_set():
            return "closed"
        where = f"segment {machine.in_use.writer.segment_seqno}" if machine.in_use else "no segment yet"
        return f"{where}, {machine.waiting_bytes} bytes waiting"

    def counters(self) -> dict[str, int]:
        """What this writer has done so far, by the names of its statistics."""
        machine = self.machine
        records, entries, size_bytes = machine.sent
        return {
            names.RECORDS_SENT: records,
            names.ENTRIES_SENT: entries,
            names.BYTES_SENT: size_bytes,
            names.SEGMENTS_BEGUN: machine.begun_count,
            names.SEGMENTS_DEGRADED: machine.degraded_count,
            names.SEGMENTS_ROLLED: machine.roll_count,
            names.SEGMENTS_FAILED: machine.failure_count,
            names.CAPACITY_WAITS: self.capacity.wait_count,
            names.LOCKS_LOST: int(isinstance(machine.stopped, LogLockLostError)),
            names.WRITERS_OPENED: 1,
        }

    def gauges(self) -> dict[str, int]:
        """The same of values that rise and fall."""
        in_use = self.machine.in_use
        return {
            names.WAITING_BYTES: self.machine.waiting_bytes,
            names.DEGRADED_SEGMENTS: int(in_use is not None and in_use.asked is not None),
        }

    # The task that changes segments.

    async def run(self) -> None:
        """Do what the segments need until the writer is closed or stops; for a task."""
        try:
            with self._scope:
                while True:
                    self._work = trio.Event()
                    action = self.machine.next_action()
                    if isinstance(action, End):
                        break
                    await self._perform(action)
            if self._scope.cancelled_caught:
                self._give_up("it was closed before everything could be written")
        except Exception as exc:
            self._faulty(exc)
        except BaseException as exc:
            self._give_up(f"unexpected {type(exc).__name__}", exc)
            raise
        finally:
            self.timers.stop()
            self.finished.set()
            self._pulse()

    async def _perform(self, action: Action) -> None:
        try:
            match action:
                case Begin(first_txid):
                    await self._begin(first_txid)
                case Roll(in_use):
                    with self._lifecycle.operation(names.ROLL, "roll"):
                        await self._roll(in_use)
                case Recover(in_use, cause):
                    await self._recover(in_use, cause)
                case Complete(oldest):
                    await self._complete(oldest)
                case Follow(fenced):
                    await self._follow_or_stop(fenced)
                case Stop(fenced):
                    self._stop(fenced)
                case Wait():
                    await self._work.wait()
                case End():
                    pass  # ``run`` looks for it
                case _:
                    assert_never(action)
        except LogFencedError as exc:
            self.machine.overtaken(exc)
        except DLogError as exc:
            self._stop(exc if isinstance(exc, WriteError) else self._write_error(exc), exc)

    async def _begin(self, first_txid: int) -> None:
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
        if self.machine.phase is not Phase.OPENING:  # the writer stopped while the segment was begun
            handle.abandon()
            return
        in_use = self.machine.begin(handle, segment, self._lifecycle.compression)
        self._full_ensemble.begin(self._lifecycle.wait_full_ensemble if in_use.asked else None)
        number, ledger_id = segment.segment_seqno, segment.ledger_id
        extra = event("segment.begun", log=self.log, segment=number, ledger=ledger_id)
        logger.info("log %s: segment %d begins, in ledger %d", self.log, number, ledger_id, extra=extra)
        if in_use.asked is not None:
            report_degraded(self.log, handle, in_use.asked, number=number)

    async def _roll(self, in_use: SegmentInUse) -> None:
        machine = self.machine
        try:
            while machine.old:
                # Segments are completed in order, and no more than two are in progress.
                await self._complete(machine.old[0], raising=True)
            # A roll for nothing but a full ensemble does not begin another segment without it.
            handle = await self._allocated(full=not machine.roll_is_due())
            if not self.lock.held:
                self._spare = handle
                raise LogUnavailableError(f"log {self.log!r}: out of touch with the metadata store")
        except LogUnavailableError as exc:
            # The old segment still takes records. It only grows beyond its limit.
            number = in_use.writer.segment_seqno
            extra = event("segment.roll_failed", log=self.log, segment=number, error=exc)
            logger.warning("log %s: segment %d not rolled: %s", self.log, number, exc, extra=extra)
            self._full_ensemble.again(self._retry_policy.pause_s_max)
            machine.roll_later(self._retry_policy.pause_s_max)
            return
        if not await self._finished(in_use):
            self._spare = handle
            return
        last_txid = in_use.writer.last_txid
        self._use(handle, await self._persistently(lambda: self._lifecycle.start(handle, last_txid)))

    async def _finished(self, in_use: SegmentInUse) -> bool:
        """Wait until all that was sent is durable and visible; False if the ledger fails before."""
        machine = self.machine
        if not machine.roll(in_use):
            return False
        while machine.phase is Phase.ROLLING:
            self._work = trio.Event()
            if machine.finish():
                return True
            await self._work.wait()
        return False  # the ledger has failed, or the writer has stopped

    async def _complete(self, oldest: SegmentInUse, *, raising: bool = False) -> None:
        writer = oldest.writer
        number = writer.segment_seqno
        try:
            await self._lifecycle.close(oldest.handle, oldest.segment)
            await self._lifecycle.complete(
                oldest.segment,
                last_txid=writer.last_txid,
                record_count=writer.position,
                last_dlsn=writer.last_dlsn,
            )
        except LogUnavailableError as exc:
            if raising:
                raise
            extra = event("segment.completion_failed", log=self.log, segment=number, error=exc)
            logger.warning("log %s: segment %d not completed yet: %s", self.log, number, exc, extra=extra)
            with trio.move_on_after(self._config.retry_pause_s):
                await self._work.wait()
            return
        extra = event("segment.completed", log=self.log, segment=number, records=writer.position)
        logger.info(
            "log %s: segment %d is complete, with %d records", self.log, number, writer.position, extra=extra
        )
        self.machine.completed()
        if self.machine.intake is Intake.OPEN:
            self.request_purge()

    async def _recover(self, in_use: SegmentInUse, cause: BaseException) -> None:
        """Recover the failed ledger: settle the records that it holds, and write the others again."""
        machine, number = self.machine, in_use.writer.segment_seqno
        extra = event("segment.failed", log=self.log, segment=number, error=cause)
        logger.warning("log %s: segment %d failed: %s", self.log, number, cause, extra=extra)
        if isinstance(cause, LedgerError):
            known = as_dlog_error(cause, self.log, "writing")
            if isinstance(known, DiskFullError | NamespaceLostError):  # the next segment would meet the same
                self._stop(self._write_error(known), cause)
        last_entry_id = await self._settle(in_use, self._lifecycle, even_if_stopped=True)
        if last_entry_id is None:
            return
        if machine.is_barren_for_too_long(last_entry_id):
            evidence = f"no segment took a record for {self._config.retry_timeout_s:g} s: {cause}"
            self._stop(LogWriteError(self.log, evidence, RecordOutcome.NOT_WRITTEN), cause)
            return
        # A writer that has stopped gets no further: each step asks first.
        while machine.old:
            await self._persistently(lambda: self._complete(machine.old[0], raising=True))
        # Another writer may have fenced the ledger and taken the log. This call finds out, or starting the
        # next segment does: both are conditional on what this writer knows, and raise LogFencedError.
        await self._persistently(lambda: self._lifecycle.settle_own(in_use.segment))
        await self._persistently(self._check_held)

    async def _settle(
        self, in_use: SegmentInUse, lifecycle: SegmentLifecycle, *, even_if_stopped: bool = False
    ) -> int | None:
        """Recover the ledger in use; return its last entry. None if its end stays unknown."""
        in_use.handle.abandon()  # so that no acknowledgement arrives during the recovery
        try:
            last_entry_id = await self._persistently(
                lambda: lifecycle.recovered_end(in_use.segment), even_if_stopped=even_if_stopped
            )
        except DLogError as exc:
            # Also an error that no retry mends, such as damaged ledger metadata: the end stays unknown.
            reason = exc.message if isinstance(exc, WriteError) else str(exc)
            self._give_up(exc.evidence if isinstance(exc, LogWriteError) else reason, exc)
            return None
        if self.machine.in_use is not in_use:
            return None  # an error in another task has given it up
        self.machine.settle(last_entry_id)
        self._pulse()
        return last_entry_id

    async def _check_held(self) -> None:
        """Raise while it is not known whether the lock is held."""
        if not self.lock.held:
            raise LogUnavailableError(f"log {self.log!r}: out of touch with the metadata store")

    async def _follow_or_stop(self, fenced: LogFencedError) -> None:
        """Continue in the namespace that the log was moved to. Stop if another writer has the log."""
        assert self._follow is not None  # else the machine says Stop
        machine = self.machine
        try:
            found = await self._persistently(self._follow)
            if found is None:
                self._stop(fenced)
                return
            before, lock = self._lifecycle, self.lock
            self._lifecycle, self.lock = found
            self._lock_watch.cancel()
            # What is in flight is in ledgers that were fenced for the move, which completes them.
            for each in machine.moved():
                each.handle.abandon()
            if self._spare is not None:
                self._spare.abandon()
                self._spare = None
            if machine.in_use is not None:
                await self._settle(machine.in_use, before)
            await lock.release()
        except DLogError as exc:
            self._stop(exc if isinstance(exc, WriteError) else self._write_error(exc), exc)
        finally:
            self._pulse()

    async def _persistently(self, step: Callable[[], Awaitable[T]], *, even_if_stopped: bool = False) -> T:
        """Repeat the step while it raises LogUnavailableError.

        Raises:
            LogWriteError: The retry timeout ended, or the session with the metadata store.
            WriteError: The writer has stopped; not with ``even_if_stopped``.
        """

        def check() -> None:
            if self.machine.stopped is not None and not even_if_stopped:
                raise self.machine.stopped

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
            is_over = self.lock.session.state is SessionState.EXPIRED
            raise self._lock_loss() if is_over else self._write_error(exc) from None

    def _timeout_s(self, error: LogUnavailableError) -> float:
        # Bookies that this writer has used may return. A cluster that was too small from the start does not
        # grow while the caller waits.
        is_too_small = isinstance(error, TooFewBookiesError) and not self.machine.has_begun
        return self._bookies_timeout_s if is_too_small else self._config.retry_timeout_s

    # The tasks beside it.

    async def serve(
        self, *, purge: bool, wait_moved: Callable[[], Awaitable[None]] = trio.sleep_forever
    ) -> None:
        """Watch the lock, and run the tasks beside ``run``, until ``end`` is called; for a task."""
        async with trio.open_nursery() as nursery:

            def start(task: Callable[[], Awaitable[None]]) -> None:
                nursery.start_soon(self._guarded, task)

            if self.timers.needs_task:
                start(self.timers.run)
            if self._follow is not None:
                # At once, also with nothing to write: no other writer gets the lock there first.
                start(partial(self.follow_move, wait_moved))
            self._full_ensemble.start_with(start)
            if purge:
                self.purger.begin(start)
            try:
                with self._serving:
                    await self._guarded(self.watch_lock)
                    await trio.sleep_forever()
            finally:
                self._full_ensemble.end()
                self.purger.end()
                nursery.cancel_scope.cancel()

    async def _guarded(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task of this writer. Its error ends the writer, not the block that the writer is open in."""
        try:
            await task()
        except Exception as exc:
            self._faulty(exc)

    def _faulty(self, error: Exception) -> None:
        report_contained("writer of a log", error)
        self._give_up_by(error)

    async def watch_lock(self) -> None:
        """Stop the writer when its present lock is lost; not if the writer releases it; for a task."""
        while True:
            with trio.CancelScope() as self._lock_watch:  # until another lock is in its place
                if self._is_released:
                    await trio.sleep_forever()
                lock = self.lock
                await lock.wait_lost()
                if lock is self.lock:
                    self._stop(self._lock_loss())  # in this moment
                    return

    def _lock_loss(self) -> WriteError:
        session = self.lock.session
        if session.replaced is not None:
            return WriterNamespaceLostError(f"log {self.log!r}: {session.replaced}; the writer has stopped")
        if session.state is SessionState.EXPIRED:
            return LogLockLostError(self.log, "the session with the metadata store expired")
        return LogLockLostError(self.log, "the lock's node was deleted")

    async def follow_move(self, wait_moved: Callable[[], Awaitable[None]]) -> None:
        """Follow the log to another namespace as soon as it is handed over; for a task."""
        await wait_moved()
        self.machine.overtaken(LogFencedError(self.log, "it was moved to another namespace"))

    def request_purge(self) -> None:
        """Delete truncated segments soon, if the writer is configured so."""
        if self._config.purge:
            self.purger.request()

    # What callers wait for.

    async def wait_stopped(self) -> WriteError | None:
        """Return the reason when the writer has stopped; None once it is closed."""
        while (stopped := self.machine.stopped) is None and not self.finished.is_set():
            await self._changed.wait()
        return stopped

    async def make_visible(self, batch: Batch) -> None:
        """Return when a reader that looks now sees the durable batch; raise if the writer has stopped."""
        machine = self.machine
        while machine.stopped is None and not self.finished.is_set():
            if machine.in_use is None and machine.intake is Intake.CLOSING:
                await self.finished.wait()
            elif machine.is_visible(batch):
                return
            elif machine.phase in (Phase.RECOVERING, Phase.MOVING):
                await self._changed.wait()
            elif (follower := machine.follower(batch)) is not None:
                await wait_settled(follower)
        if machine.stopped is not None:
            raise machine.stopped.about(RecordOutcome.DURABLE)

    async def truncate(self, first_kept: DLSN) -> DLSN | None:
        """See ``LogWriter.truncate``. It changes no segment in use, so it need not wait for ``run``."""
        while True:
            if self.machine.refusal is not None:
                raise self.machine.refusal.about(RecordOutcome.NOT_WRITTEN)
            lifecycle = self._lifecycle
            try:
                first_left = await lifecycle.truncate(first_kept)
            except LogMovedError:
                if lifecycle is self._lifecycle:
                    self.machine.overtaken(LogFencedError(self.log, "it was moved to another namespace"))
                    await self._changed.wait()
            else:
                self.request_purge()
                return first_left

    def _pulse(self) -> None:
        """Wake the tasks that wait for a change; each looks again."""
        self._changed.set()
        self._changed = trio.Event()

    # Stopping.

    def _write_error(self, exc: DLogError) -> WriteError:
        if isinstance(exc, NamespaceLostError) and self.lock.session.replaced is not None:
            return self._lock_loss()
        kind = WriterDiskFullError if isinstance(exc, DiskFullError) else LogWriteError
        return kind(self.log, str(exc), RecordOutcome.NOT_WRITTEN)

    def _stop(self, error: WriteError, cause: BaseException | None = None) -> None:
        """Send nothing more; see ``WriterMachine.stop``."""
        self._report_stop(error, cause)
        self.machine.stop(error)
        self.capacity.release()
        self._pulse()

    def _give_up(self, evidence: str, cause: BaseException | None = None) -> None:
        """Stop and abandon the ledger in use. The outcome of records in flight stays unknown."""
        kind = WriterDiskFullError if isinstance(cause, DiskFullError) else LogWriteError
        error = kind(self.log, evidence)
        self._report_stop(error, cause)
        self.machine.give_up(error)
        self.capacity.release()
        self._pulse()

    def broken(self, cause: BaseException) -> None:
        """An error, perhaps of a signal handler, came in the middle of taking a record: give up."""
        self._give_up(f"interrupted while it took a record: {type(cause).__name__}: {first_line(cause)}")

    def _give_up_by(self, error: Exception) -> None:
        cause = first_error(error)
        self._give_up(f"unexpected {type(cause).__name__}: {first_line(cause)}", cause)

    def _report_stop(self, error: WriteError, cause: BaseException | None) -> None:
        if self.machine.stopped is None:
            if cause is not None and cause is not error:
                with_hidden_cause(error, cause)  # the message has it
                if (system := error_of_system(cause)) is not None:
                    error.__cause__ = system
            extra = event("writer.stopped", log=self.log, error=error)
            logger.info("the writer has stopped: %s", error, extra=extra)

    # The end.

    async def aclose(self) -> None:
        """See ``LogWriter.aclose``."""
        await self._finish_all()
        for batch in self.machine.failed:
            if not batch.error_was_seen:
                batch.raise_error()

    async def end(self) -> list[Batch]:
        """Settle what a stopped writer has in flight, release the lock, end the tasks.

        Returns:
            The batches that failed and whose error no caller has got yet.
        """
        await self._finish_all()
        self._serving.cancel()
        return [batch for batch in self.machine.failed if not batch.error_was_seen]

    async def _finish_all(self) -> None:
        self.machine.close(WriterClosedError(self.log))
        try:
            with trio.move_on_after(self._config.close_timeout_s):
                await self.finished.wait()
        finally:
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self.finished.wait()
                self._is_released = True
                await self.lock.release()
