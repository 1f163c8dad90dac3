"""Which segment a writer writes to: starting, rolling, recovering and completing it.

Inside: the one task that changes the segment in use, what is sent to it, and what happens when its ledger
fails.
Not inside: the API (``log_writer``), counting (``segment_writer``), metadata and ledgers of segments
(``segments``).
Always: only ``run`` changes which segment is in use; nothing is sent to a segment before everything sent to
the one before it is durable and visible, so the log has no holes whatever happens; a batch is written to
another segment only after a recovery closed its ledger without it; whoever lost the log writes nothing more.

Source: DistributedLog, BKAbstractLogWriter.java, BKLogWriteHandler.java (reference 4.5 to 4.10). Unlike
there, records submitted during a roll wait only for the old segment's acknowledgements, its closing control
record's last, and one transaction, since the new ledger is created beforehand; and records that a failed
segment did not keep are written again by the library, not by its user.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from dlog.batcher import Batch, Batcher
from dlog.config import WriterConfig
from dlog.errors import (
    DLogError,
    LogFencedError,
    LogUnavailableError,
    LogWriteError,
    RecordOutcome,
    WriteError,
    WriterClosedError,
)
from dlog.patience import Patience
from dlog.pending import wait_settled
from dlog.rolling import should_roll
from dlog.segment_writer import SegmentWriter
from dlog.segments import LogSegments
from ledger.errors import LedgerError
from ledger.handle import WriteHandle
from namespace.dlsn import DLSN
from namespace.lock import DistributedLock
from namespace.segment import LogSegment

T = TypeVar("T")

logger = logging.getLogger(__name__)


@attrs.frozen
class _InUse:
    """A segment with its ledger."""

    writer: SegmentWriter
    handle: WriteHandle
    segment: LogSegment
    began_s: float


class SegmentKeeper:
    """Keeps a segment to write to for as long as the log is this writer's. ``run`` must run in a task."""

    def __init__(
        self, log: str, segments: LogSegments, lock: DistributedLock, config: WriterConfig, *, last_txid: int
    ) -> None:
        self.log = log
        self.batcher = Batcher(entry_bytes_target=config.entry_bytes_target)
        self.stopped: WriteError | None = None  # why nothing more can be written
        self.refusal: WriteError | None = None  # why nothing more can be submitted: that, or closing
        self._segments, self._lock, self._config = segments, lock, config
        self._patience = Patience(log, config)
        self._last_txid = last_txid
        self._in_use: _InUse | None = None
        self._sending = False  # False while which segment is next is not decided: records gather
        self._failure: BaseException | None = None  # of the ledger in use
        self._old: deque[_InUse] = deque()  # rolled, durable, to be completed; oldest first
        self._spare: WriteHandle | None = None  # a ledger created for a roll that could not be made
        self._roll_not_before_s = 0.0
        self._in_flight_bytes = 0
        self._lost: list[Batch] = []  # that failed
        self._is_closing = False
        self._decided = trio.Event()  # what becomes of the segment whose ledger failed
        self._work = trio.Event()  # something for run() to look at
        self._room = trio.Event()
        self._commit_wanted = trio.Event()
        self._finished = trio.Event()
        self._scope = trio.CancelScope()

    def describe(self) -> str:
        """Where things stand, for ``repr``."""
        if self.stopped is not None:
            return f"stopped ({type(self.stopped).__name__})"
        if self._finished.is_set():
            return "closed"
        where = "no segment yet" if self._in_use is None else f"segment {self._in_use.writer.segment_seqno}"
        return f"{where}, {self.waiting_bytes} bytes waiting"

    @property
    def waiting_bytes(self) -> int:
        """Bytes of records that are neither durable nor failed."""
        return self._in_flight_bytes + self.batcher.size_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether whoever can wait should ``wait_room``."""
        if self._in_flight_bytes + self.batcher.size_bytes >= self._config.bytes_in_flight_max:
            return True
        in_use = self._in_use
        # A slow replica holds entries in the ledger's window although they are confirmed long since.
        return in_use is not None and in_use.handle.bytes_in_flight >= self._config.bytes_in_flight_max * 2

    async def wait_room(self) -> None:
        """Return once there is room again; raise why not if the writer has stopped."""
        while self.is_crowded and self.stopped is None:
            if self.waiting_bytes >= self._config.bytes_in_flight_max:
                await self._room.wait()
            elif self._in_use is not None:
                # The handle may end meanwhile; then what is waiting moves on and this looks again.
                await self._in_use.handle.wait_room()
                if self.is_crowded:
                    await trio.sleep(0.001)
        if self.stopped is not None:
            raise self.stopped.about(self.stopped.outcome)

    def pump(self) -> None:
        """Send what it is time to send. Called whenever a record was added or an acknowledgement came."""
        in_use = self._in_use
        if not self._sending or in_use is None:
            if in_use is None and self.batcher:
                self._work.set()
            return
        writer, batcher = in_use.writer, self.batcher
        window = self._config.bytes_in_flight_max
        while self._in_flight_bytes < window:
            batch = batcher.take(idle=writer.is_quiet)
            if batch is None:
                return
            if not self._send(in_use, batch):
                batcher.put_back([batch])
                return

    def _send(self, in_use: _InUse, batch: Batch) -> bool:
        writer = in_use.writer
        entry = writer.encode(batch)
        try:
            entry_id = in_use.handle.submit(entry)
        except LedgerError as exc:
            self._segment_failed(in_use, exc)
            return False
        writer.sent(batch, entry_id, len(entry))
        self._in_flight_bytes += batch.size_bytes
        return True

    def _on_confirmed(self, in_use: _InUse) -> Callable[[int, BaseException | None], None]:
        writer = in_use.writer

        def on_confirmed(lac: int, error: BaseException | None) -> None:
            if writer.is_over or in_use is not self._in_use:
                return
            self._in_flight_bytes -= writer.confirmed(lac)
            if error is not None:
                self._segment_failed(in_use, error)
                return
            self._give_room()
            if self._sending:
                self.pump()
                if writer.is_idle and writer.needs_commit:
                    self._commit_wanted.set()
                if self._is_closing or self._roll_is_due(in_use):
                    self._work.set()
            else:
                self._work.set()

        return on_confirmed

    def _segment_failed(self, in_use: _InUse, cause: BaseException) -> None:
        if self._failure is None and in_use is self._in_use:
            self._failure = cause
            self._decided = trio.Event()
            self._sending = False
            self._work.set()

    def _give_room(self) -> None:
        if (
            self._room.statistics().tasks_waiting
            and self.waiting_bytes <= self._config.bytes_in_flight_max // 2
        ):
            self._room.set()
            self._room = trio.Event()

    # Visibility: readers see an entry once one is durable that was sent after it had become durable, and so
    # carries its id, or a later one, as the LAC.

    async def keep_visible(self) -> None:
        """Add a control record whenever the last user records have been alone for the configured delay;
        for a task."""
        while True:
            await self._commit_wanted.wait()
            in_use = self._in_use
            seen = None if in_use is None else in_use.writer.entry_count
            await trio.sleep(self._config.visibility_delay_ms / 1000)
            self._commit_wanted = trio.Event()
            in_use = self._in_use
            if in_use is None or not self._sending:
                continue
            writer = in_use.writer
            if writer.is_idle and writer.needs_commit:
                if writer.entry_count == seen:
                    self._send(in_use, Batch())
                else:
                    self._commit_wanted.set()

    async def make_visible(self, batch: Batch) -> None:
        """Return once readers that look can see the durable batch; raise if the writer has stopped."""
        while self.stopped is None and not self._finished.is_set():
            in_use = self._in_use
            if in_use is None and self._is_closing:
                await self._finished.wait()  # by then the last segment is closed, or the writer has stopped
                continue
            if in_use is None or in_use.writer.segment_seqno != batch.segment_seqno or in_use.writer.is_over:
                return  # rolled segments are visible to their last record, recovered ones are closed
            writer = in_use.writer
            if writer.visible_entry_id >= batch.entry_id:
                return
            if self._failure is not None:
                await self._decided.wait()
                continue
            newest = writer.newest_in_flight
            follower = Batch() if newest is None or newest.lac < batch.entry_id else newest
            if follower is newest or self._send(in_use, follower):
                await wait_settled(follower)
        if self.stopped is not None:
            raise self.stopped.about(RecordOutcome.DURABLE)

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
        except BaseException as exc:
            self._give_up(f"unexpected {type(exc).__name__}: {exc}", exc)
            raise
        finally:
            if self._in_use is not None:
                self._in_use.handle.abandon()
            self._finished.set()

    async def _step(self) -> bool:
        """One step; False if none is left."""
        in_use = self._in_use
        try:
            if self._failure is not None:
                await self._recover()
            elif self.stopped is not None:
                if in_use is None or in_use.writer.is_idle:
                    return False
                await self._work.wait()
            elif in_use is None and self.batcher:
                await self._begin()
            elif in_use is not None and self._sending and self._roll_is_due(in_use):
                await self._roll(in_use)
            elif self._old:
                await self._complete_oldest()
            elif self._is_closing and not self.batcher and (in_use is None or in_use.writer.is_idle):
                if in_use is None:
                    return False
                self._retire(in_use)
            else:
                await self._work.wait()
        except LogFencedError as exc:
            self._stop(exc)
        except (LogUnavailableError, WriteError) as exc:
            self._stop(exc if isinstance(exc, WriteError) else self._write_error(exc), exc)
        except DLogError as exc:
            self._stop(self._write_error(exc), exc)
        return True

    async def _begin(self) -> None:
        handle = await self._persistently(self._allocated)
        first_txid = self.batcher.first_txid
        segment = await self._persistently(
            lambda: self._segments.start(handle, self._last_txid if first_txid is None else first_txid)
        )
        self._use(handle, segment)

    async def _allocated(self) -> WriteHandle:
        if self._spare is not None:
            handle, self._spare = self._spare, None
            return handle
        return await self._segments.allocate()

    def _use(self, handle: WriteHandle, segment: LogSegment) -> None:
        writer = SegmentWriter(
            segment.segment_seqno, segment.ledger_id, segment.first_txid, self._segments.compression
        )
        self._in_use = in_use = _InUse(writer, handle, segment, trio.current_time())
        handle.on_confirmed(self._on_confirmed(in_use))
        self._failure = None
        self._sending = True
        self.pump()

    def _roll_is_due(self, in_use: _InUse) -> bool:
        now_s = trio.current_time()
        return (
            should_roll(
                record_count=in_use.writer.position,
                size_bytes=in_use.writer.size_bytes,
                age_s=now_s - in_use.began_s,
                segment_bytes_max=self._config.segment_bytes_max,
                segment_age_s_max=self._config.segment_age_s_max,
            )
            and now_s >= self._roll_not_before_s
            and not self._is_closing
        )

    async def _roll(self, in_use: _InUse) -> None:
        writer = in_use.writer
        try:
            while self._old:
                # Segments are completed in order, and no more than two are in progress.
                await self._complete_oldest(raising=True)
            handle = await self._allocated()
            if not self._lock.held:
                self._spare = handle
                raise LogUnavailableError(f"log {self.log!r}: out of touch with the metadata store")
        except LogUnavailableError as exc:
            # The old segment is as good as ever; it only grows beyond its limit.
            logger.warning("log %s: segment %d not rolled: %s", self.log, writer.segment_seqno, exc)
            self._roll_not_before_s = trio.current_time() + self._patience.pause_s_max
            return
        self._sending = False
        if not await self._finish(in_use):
            self._spare = handle
            return
        segment = await self._persistently(lambda: self._segments.start(handle, writer.last_txid))
        self._last_txid = writer.last_txid
        self._old.append(in_use)
        self._use(handle, segment)

    async def _finish(self, in_use: _InUse) -> bool:
        """Wait until all that was sent is durable and visible; False if the ledger failed before."""
        writer = in_use.writer
        while self._failure is None:
            if not writer.is_idle:
                self._work = trio.Event()
                await self._work.wait()
            elif writer.needs_commit and self.stopped is None:
                # Sent only now: beside user records in flight it would carry a LAC before them, and who opens
                # the log by its next segment would miss them for as long as this one is not closed.
                self._send(in_use, Batch())
            else:
                return True
        return False

    def _retire(self, in_use: _InUse) -> None:
        assert in_use.writer.is_idle
        self._sending = False
        self._in_use = None
        self._old.append(in_use)

    async def _complete_oldest(self, *, raising: bool = False) -> None:
        old = self._old[0]
        writer = old.writer
        try:
            await self._segments.close(old.handle, old.segment)
            await self._segments.complete(
                old.segment,
                last_txid=writer.last_txid,
                record_count=writer.position,
                last_dlsn=writer.last_dlsn,
            )
        except LogUnavailableError as exc:
            if raising:
                raise
            logger.warning("log %s: segment %d not completed yet: %s", self.log, writer.segment_seqno, exc)
            with trio.move_on_after(self._config.retry_pause_s):
                await self._work.wait()
            return
        writer.is_over = True
        self._old.popleft()

    async def _recover(self) -> None:
        """The ledger in use failed: let its recovery decide, answer what it holds, write the rest again."""
        in_use, cause = self._in_use, self._failure
        assert in_use is not None
        assert cause is not None
        writer = in_use.writer
        logger.warning("log %s: segment %d failed: %s", self.log, writer.segment_seqno, cause)
        in_use.handle.abandon()  # no acknowledgement may come in between any more
        try:
            last_entry_id = await self._persistently(
                lambda: self._segments.recovered_end(in_use.segment), even_if_stopped=True
            )
        except WriteError as exc:
            self._give_up(exc.message, exc)
            return
        freed_bytes, left = writer.resolve(last_entry_id)
        self._in_flight_bytes -= freed_bytes + sum(batch.size_bytes for batch in left)
        self._last_txid = max(self._last_txid, writer.last_txid if not left else writer.first_txid)
        self._in_use, self._failure = None, None
        self._decided.set()
        self.batcher.put_back(left)
        self._give_room()
        if self.stopped is not None:
            self._stop(self.stopped)
            return
        while self._old:
            await self._persistently(lambda: self._complete_oldest(raising=True))
        # Whoever fenced the ledger may have taken the log. This finds out, or starting the next segment does:
        # both are conditional on what this writer knows, and raise LogFencedError.
        await self._persistently(lambda: self._segments.settle_own(in_use.segment))
        if not self._lock.held:
            await self._persistently(self._still_ours)

    async def _still_ours(self) -> None:
        if not self._lock.held:
            raise LogUnavailableError(f"log {self.log!r}: out of touch with the metadata store")

    async def truncate(self, first_kept: DLSN) -> DLSN | None:
        """See ``LogWriter.truncate``. It changes no segment in use, so it need not wait for ``run``."""
        if self.refusal is not None:
            raise self.refusal.about(RecordOutcome.NOT_WRITTEN)
        return await self._segments.truncate(first_kept)

    async def watch_lock(self) -> None:
        """Stop the writer when its lock is lost; for a task."""
        await self._lock.wait_lost()
        self._stop(LogFencedError(self.log, "its lock was lost, with the session or by somebody's hand"))

    async def _persistently(self, step: Callable[[], Awaitable[T]], *, even_if_stopped: bool = False) -> T:
        """Try until it works or cannot any more; LogWriteError then, the stop's error once stopped."""
        return await self._patience.until_done(
            step, refusal=lambda: None if even_if_stopped else self.stopped
        )

    # Stopping.

    def _write_error(self, exc: DLogError) -> WriteError:
        return LogWriteError(self.log, str(exc), RecordOutcome.NOT_WRITTEN)

    def _stop(self, error: WriteError, cause: BaseException | None = None) -> None:
        """Nothing more is sent. What was never sent is not written; what is in flight, its ledger decides."""
        if self.stopped is None:
            if cause is not None and cause is not error:
                error.__cause__ = cause
            self.stopped = self.refusal = error
        self._sending = False
        for batch in self.batcher.take_all():
            self._tell(batch, RecordOutcome.NOT_WRITTEN)
        self._room.set()
        self._work.set()

    def _give_up(self, evidence: str, cause: BaseException | None = None) -> None:
        """What is in flight stays unknown."""
        self._stop(LogWriteError(self.log, evidence), cause)
        in_use, self._in_use, self._failure = self._in_use, None, None
        self._decided.set()
        if in_use is not None:
            in_use.handle.abandon()
            for batch in in_use.writer.give_up():
                self._tell(batch, RecordOutcome.UNKNOWN)
        self._in_flight_bytes = 0

    def _tell(self, batch: Batch, outcome: RecordOutcome) -> None:
        assert self.stopped is not None
        if batch.payloads:
            self._lost.append(batch)
        batch.failed(self.stopped.about(outcome))

    async def aclose(self) -> None:
        """See ``LogWriter.aclose``."""
        if self.refusal is None:
            self.refusal = WriterClosedError(self.log)
        self._is_closing = True
        self._work.set()
        try:
            with trio.move_on_after(self._config.close_timeout_s):
                await self._finished.wait()
        finally:
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._finished.wait()
                await self._lock.release()
        for batch in self._lost:
            if not batch.error_was_seen:
                batch.raise_error()
