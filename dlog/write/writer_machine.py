"""The writer of a log as a machine: what it sends when, and what it does next. It waits for nothing.

    in    ``pump``: a record was taken, or the time of one that was held has come · the callback of a ledger:
          entries are durable, or it has failed · ``stop``: the lock is lost, or a step failed for good ·
          ``overtaken``: another program has changed the log · ``close`` · the results of actions
    out   entries to the ledger in use, outcomes to batches, and from ``next_action`` one action at a time

Records that callers only submit each take an entry of their own if they come more slowly than entries are
acknowledged. With ``linger_ms``, an entry whose records no caller waits for is sent that long after the entry
before, at the earliest. A record after a pause is sent at once, and so is a record that a caller waits for.

Inside: the states (``writer_state``), the order and the time of sending, when a segment is rolled,
acknowledgements and failures, the batches of a writer that stops, counts.
Not inside: the actions (``actions``), performing them, waiting, the lock (``writer_shell``), timers
(``writer_timers``), which records share an entry (``batcher``), entry ids, outcomes and limits of one segment
(``segment_writer``).
Always: records are sent in phase RUNNING only; nothing is sent to a segment before everything sent to the
segment before it is durable and visible, so a crash leaves no hole in the log; a batch is written to another
segment only after a recovery closed its ledger without it; the first failure of the ledger in use is the only
one that counts, and nothing is sent to that ledger after it; a writer that stopped sends nothing more.

Source: DistributedLog, BKLogSegmentWriter.java, BKAbstractLogWriter.java, SizeBasedRollingPolicy.java,
TimeBasedRollingPolicy.java (docs/stream-format.md 4.4 to 4.9). Three things differ. The new ledger is created
before the roll: records submitted during a roll wait only for the old segment's acknowledgements, the
acknowledgement of its last control record, and one transaction. The library, not its user, writes again the
records that a failed segment did not keep. A time limit does not disable the size limit: either ends a
segment, so that no ledger of a busy log grows without bound.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from dlog.config import WriterConfig
from dlog.errors import LogFencedError, RecordOutcome, WriteError
from dlog.format.compression import Compression
from dlog.format.hash_chain import CHAIN_RECORD_BYTES, ChainValue
from dlog.format.record import CONTROL_PAYLOAD
from dlog.write.actions import (
    END,
    WAIT,
    Action,
    Begin,
    Complete,
    End,
    Follow,
    Recover,
    Roll,
    SegmentInUse,
    Stop,
)
from dlog.write.batcher import Batch, Batcher
from dlog.write.segment_writer import SegmentWriter, should_roll
from dlog.write.steps import a_step
from dlog.write.writer_state import Intake, Phase, WriterEvent, following
from ledger.errors import LedgerError
from ledger.replication_asked import AskedReplication
from namespace.segments.segment import LogSegment

if TYPE_CHECKING:
    from ledger.handle import WriteHandle

_RUNNING = Phase.RUNNING


class Shell(Protocol):
    """The calls of the machine to the code around it, while a call of the machine runs. None may raise."""

    def wake(self) -> None:
        """``next_action`` may return another action than before."""

    def want_visible(self) -> None:
        """After the visibility delay, ``send`` a control record if nothing was sent since."""

    def hold(self) -> None:
        """Records wait for ``due_s``: call ``pump`` then."""

    def free_capacity(self) -> None:
        """There may be capacity for callers that wait for it."""


class WriterMachine:
    """Decides for one writer, from the moment at which it has the log to its end."""

    def __init__(
        self,
        config: WriterConfig,
        shell: Shell,
        *,
        clock: Callable[[], float],
        last_txid: int = -1,
        chain: ChainValue | None = None,
        failed_before: Iterable[Batch] = (),
        can_follow: bool = False,
    ) -> None:
        """Args:
        clock: Seconds; only differences count.
        last_txid, chain: At the end of the log's segments.
        failed_before: Batches of the writer before it was reopened.
        can_follow: False for a log that cannot move.
        """
        self._config, self._shell, self._clock, self._can_follow = config, shell, clock, can_follow
        self.batcher = Batcher(
            entry_bytes_target=config.entry_bytes_target,
            reserved_bytes=CHAIN_RECORD_BYTES if config.hash_chain else 0,
            on_wanted=self.pump,
            clock=clock,
        )
        self.intake, self.phase = Intake.OPEN, Phase.OPENING
        self.in_step = False  # a change is half made; see ``a_step``
        self.refusal: WriteError | None = None  # why no record is taken; None while the intake is open
        self.in_use: SegmentInUse | None = None
        self.old: deque[SegmentInUse] = deque()  # durable and visible, to be completed; oldest first
        self.failed = list(failed_before)  # batches of records that are not written, or perhaps not
        self.callers_wait = False  # for capacity
        self.wants_visible = False  # the shell was asked to ``send_if_last``, and has not begun to do so
        self.due_s = -math.inf  # before it, an entry that no caller waits for is not sent
        self._failure: BaseException | None = None  # of the ledger in use
        self._overtaken: LogFencedError | None = None
        self._last_txid, self._chain = last_txid, chain  # at the end of the segments before the one in use
        self._newest: SegmentWriter | None = None
        self._in_flight_bytes = 0
        self._bytes_max = config.bytes_in_flight_max
        self.ledger_bytes_max = 2 * config.bytes_in_flight_max  # that the ledger in use keeps in memory
        self._linger_s = config.linger_ms / 1000
        self._has_full_ensemble = False  # bookies for a whole ensemble are there, which the segment has not
        self._roll_not_before_s = -math.inf
        self._barren_since_s: float | None = None  # since when segments fail without an entry
        self._wrote_before = False  # to the segments before the newest
        self._sent_before = (0, 0, 0)  # records, entries and bytes sent to the segments before the newest
        self.not_written_count = self.unknown_count = 0  # records that were taken
        self.begun_count = self.degraded_count = self.roll_count = self.failure_count = 0

    # What is true now.

    @property
    def stopped(self) -> WriteError | None:
        """Why nothing more is written; None unless the writer has stopped."""
        return self.refusal if self.intake is Intake.STOPPED else None

    @property
    def has_written(self) -> bool:
        """True if a record of this writer became durable."""
        return self._wrote_before or (self._newest is not None and self._newest.last_dlsn is not None)

    @property
    def has_failed_records(self) -> bool:
        """True if a record was not written, or that is unknown."""
        return self.not_written_count + self.unknown_count > 0

    @property
    def has_begun(self) -> bool:
        """True if this writer has had a segment."""
        return self._newest is not None

    @property
    def sent(self) -> tuple[int, int, int]:
        """Records, entries and bytes sent so far."""
        records, entries, size_bytes = self._sent_before
        if (newest := self._newest) is None:
            return self._sent_before
        return records + newest.position, entries + newest.entry_count, size_bytes + newest.size_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of records that are neither durable nor failed."""
        return self._in_flight_bytes + self.batcher.held_bytes

    @property
    def oldest_pending_s(self) -> float:
        """Seconds since the oldest record was taken that is neither durable nor failed; 0.0 without one."""
        in_use = self.in_use  # another thread may ask
        in_flight_s = math.inf if in_use is None else in_use.writer.oldest_since_s
        since_s = min(in_flight_s, self.batcher.oldest_since_s)
        return 0.0 if since_s == math.inf else max(self._clock() - since_s, 0.0)

    @property
    def is_full(self) -> bool:
        """True if as many bytes wait to become durable as the configuration allows."""
        return self._in_flight_bytes + self.batcher.held_bytes >= self._bytes_max

    @property
    def is_over_limit(self) -> bool:
        """True if the caller should wait for capacity before it submits more."""
        if self._in_flight_bytes + self.batcher.held_bytes >= self._bytes_max:
            return True
        in_use = self.in_use
        # The ledger keeps a confirmed entry in memory until its slowest replica has it.
        return in_use is not None and in_use.handle.bytes_in_flight >= self.ledger_bytes_max

    @property
    def _nothing_is_left(self) -> bool:
        return not self.batcher and (self.in_use is None or self.in_use.writer.is_idle)

    # Taking and sending.

    @a_step
    def pump(self, *, waits: bool = False) -> None:
        """Send the batches that are due.

        Args:
            waits: A caller is about to wait for a record that it gave: what the ledger holds leaves now.
        """
        self.pump_in_step(waits=waits)

    @a_step
    def flush(self) -> None:
        """Send all that was gathered, as far as the limits allow."""
        self.batcher.cut()
        self.pump_in_step()

    def pump_in_step(self, *, waits: bool = False) -> None:
        """As ``pump``, for a step that has begun."""
        in_use, batcher = self.in_use, self.batcher
        if self.phase is not _RUNNING or in_use is None:
            if in_use is None and batcher:
                self._shell.wake()
            return
        writer, window = in_use.writer, self._bytes_max
        has_sent = False
        while batcher.held_bytes and self._in_flight_bytes < window:
            is_quiet = not writer.user_batches_in_flight  # records do not gather after a control record
            batch = batcher.take(idle=is_quiet and (not self._linger_s or self._is_due()))
            if batch is None:
                break
            if not self._submit(in_use, batch):
                batcher.put_back([batch])
                return
            has_sent = True
        if has_sent:
            if self._linger_s:
                self.due_s = self._clock() + self._linger_s
            if waits or writer.has_one_in_flight:
                in_use.handle.send_now()  # a burst gathers after this entry
            else:
                in_use.handle.send_soon()
        elif waits:
            in_use.handle.send_now()

    def _is_due(self) -> bool:
        """True if an entry that is not full may be sent; else the shell pumps at ``due_s``."""
        if self.batcher.is_wanted or self.intake is not Intake.OPEN or self._clock() >= self.due_s:
            return True
        if self.batcher:
            self._shell.hold()
        return False

    def send(self, batch: Batch, *, control_payload: bytes = CONTROL_PAYLOAD) -> bool:
        """Send a batch as the next entry of the segment in use; False if its ledger has failed."""
        in_use = self.in_use
        assert in_use is not None  # the callers look at the phase
        assert self.phase in (Phase.RUNNING, Phase.ROLLING)  # the same
        in_use.handle.send_soon()
        return self._submit(in_use, batch, control_payload)

    def _submit(self, in_use: SegmentInUse, batch: Batch, control_payload: bytes = CONTROL_PAYLOAD) -> bool:
        # The ledger holds the entry until ``send_now`` or ``send_soon``.
        writer = in_use.writer
        if batch.is_large and not self._send_parts(in_use, batch):
            return False
        entry = writer.encode(batch, control_payload)
        try:
            entry_id = in_use.handle.submit(entry, hold=True)
        except LedgerError as exc:
            self.fail(in_use, exc)
            return False
        writer.sent(batch, entry_id, len(entry))
        self._in_flight_bytes += batch.held_bytes
        return True

    def _send_parts(self, in_use: SegmentInUse, batch: Batch) -> bool:
        # No other entry comes between the parts, and a record has all its parts in one ledger: if this one
        # fails, the next ledger gets the whole record.
        for entry in in_use.writer.encode_parts(batch):
            try:
                entry_id = in_use.handle.submit(entry)
            except LedgerError as exc:
                self.fail(in_use, exc)
                return False
            in_use.writer.sent_part(entry_id, len(entry))
        return True

    def _confirmed(self, in_use: SegmentInUse, lac: int, error: BaseException | None) -> None:
        """The callback of a ledger: its entries are durable up to ``lac``, and it may have failed."""
        writer = in_use.writer
        if writer.is_over or in_use is not self.in_use:
            return
        freed_bytes = writer.confirmed(lac)  # callbacks of records may submit more
        self._in_flight_bytes -= freed_bytes
        if error is not None:
            self.fail(in_use, error)
            return
        if self.callers_wait:
            self._shell.free_capacity()
        if self.phase is not _RUNNING:
            self._shell.wake()
            return
        if self.batcher.held_bytes:
            self.pump()
        if writer.is_unseen:
            if not self.wants_visible:
                self.wants_visible = True
                self._shell.want_visible()
            if not writer.was_wanted:
                in_use.handle.hint_now()  # no caller is about to append again
        if self.intake is not Intake.OPEN or self._roll_is_due(in_use):
            self._shell.wake()

    def fail(self, in_use: SegmentInUse, cause: BaseException) -> None:
        """The ledger has failed. Only the first failure of the one in use counts."""
        if self._failure is None and in_use is self.in_use:
            self._failure = cause
            self.failure_count += 1
            self._enter(WriterEvent.FAIL)
            self._shell.wake()

    # Visibility. An entry carries the LAC that the writer knew when it sent the entry. So readers see an
    # entry once a later one is durable that was sent after the first had become durable.

    def is_visible(self, batch: Batch) -> bool:
        """True if a reader that looks now sees this durable batch."""
        in_use = self.in_use
        if in_use is None or in_use.writer.segment_seqno != batch.segment_seqno or in_use.writer.is_over:
            return True  # a rolled segment is visible to its last record, a recovered one is closed
        return in_use.writer.visible_entry_id >= batch.entry_id

    @a_step
    def follower(self, batch: Batch) -> Batch | None:
        """The batch whose acknowledgement makes this durable one visible; None if the ledger failed."""
        assert self.in_use is not None  # else the batch is visible
        newest = self.in_use.writer.newest_in_flight
        if newest is not None and newest.lac >= batch.entry_id:
            return newest
        control = Batch()
        return control if self.send(control) else None

    @a_step
    def send_if_last(self, seen_entries: int | None) -> bool:
        """Send a control record if the last records are invisible and nothing was sent since.

        Returns:
            False if something was sent since, and readers do not see the last records yet.
        """
        if (in_use := self.in_use) is None or self.phase is not _RUNNING:
            return True
        writer = in_use.writer
        if not writer.is_unseen:
            return True
        if writer.entry_count != seen_entries:
            return False
        self.send(Batch())
        return True

    @a_step
    def send_if_silent(self, seen: tuple[int, int] | None, control_payload: bytes) -> tuple[int, int] | None:
        """Send a control record if nothing was sent since ``seen``; return what is seen now.

        A segment that a roll began without a record gets control records too, unlike in Apache's writer.
        Otherwise an idle log whose segment was rolled by its age would look dead.
        """
        if (in_use := self.in_use) is None:
            return None
        writer = in_use.writer
        now = writer.ledger_id, writer.entry_count
        if now == seen and self.phase is _RUNNING and writer.is_idle:
            self.send(Batch(), control_payload=control_payload)
            return None
        return now

    # The next action, and the results of actions.

    def next_action(self) -> Action:
        """What the one task that changes segments does now."""
        overtaken, self._overtaken = self._overtaken, None
        if overtaken is not None and self.intake is not Intake.STOPPED:
            if not self._can_follow or (self.intake is Intake.CLOSING and self._nothing_is_left):
                return Stop(overtaken)
            self._enter(WriterEvent.MOVE)
            return Follow(overtaken)
        in_use = self.in_use
        match self.phase:
            case Phase.RECOVERING:
                assert in_use is not None  # ``fail`` looked at it
                assert self._failure is not None  # ``fail`` set it
                return Recover(in_use, self._failure)
            case Phase.DRAINING:
                return self._end() if self.in_use is None or self.in_use.writer.is_idle else WAIT
            case Phase.ENDED:
                return END
            case Phase.ROLLING | Phase.MOVING:
                raise AssertionError(f"asked in phase {self.phase.name}, before the action of it was done")
            case Phase.OPENING if self.batcher:
                first_txid = self.batcher.first_txid
                return Begin(self._last_txid if first_txid is None else first_txid)
            case Phase.RUNNING if in_use is not None and self._roll_is_due(in_use):
                return Roll(in_use)
        if self.old:
            return Complete(self.old[0])
        if self.intake is not Intake.CLOSING or not self._nothing_is_left:
            return WAIT
        if in_use is None:
            return self._end()
        self._retire(in_use)
        return Complete(in_use)

    def _end(self) -> End:
        in_use, self.in_use = self.in_use, None
        self._enter(WriterEvent.END)
        if in_use is not None:
            in_use.handle.abandon()
        return END

    @a_step
    def begin(self, handle: WriteHandle, segment: LogSegment, codec: Compression) -> SegmentInUse:
        """A segment is in use; its ledger is empty."""
        if self._newest is not None:
            # The segment before is at its end: its records are durable, and the rest waits in the batcher.
            self._chain = self._newest.durable_chain
            self._wrote_before = self.has_written
        self._sent_before = self.sent
        writer = self._newest = SegmentWriter(
            segment.segment_seqno, segment.ledger_id, segment.first_txid, codec, self._chain
        )
        asked = AskedReplication.of(handle.metadata.custom)
        in_use = self.in_use = SegmentInUse(writer, handle, segment, self._clock(), asked)
        self.begun_count += 1
        self.degraded_count += asked is not None
        self._has_full_ensemble = False
        handle.on_confirmed(partial(self._confirmed, in_use))
        self._enter(WriterEvent.BEGIN)
        self.pump()
        return in_use

    def full_ensemble_is_there(self) -> None:
        """The segment in use has fewer bookies than asked, and the others are there now."""
        self._has_full_ensemble = True
        self._shell.wake()

    def roll_is_due(self) -> bool:
        """True if the segment in use has reached a limit, whatever bookies there are."""
        return self.in_use is not None and self._has_reached_limit(self.in_use, lacks_bookies=False)

    def _roll_is_due(self, in_use: SegmentInUse) -> bool:
        return (
            self.intake is Intake.OPEN
            and self._has_reached_limit(in_use, lacks_bookies=self._has_full_ensemble)
            and self._clock() >= self._roll_not_before_s
        )

    def _has_reached_limit(self, in_use: SegmentInUse, *, lacks_bookies: bool) -> bool:
        age_s_max = self._config.segment_age_s_max
        return should_roll(
            record_count=in_use.writer.position,
            size_bytes=in_use.writer.size_bytes,
            age_s=0.0 if age_s_max is None else self._clock() - in_use.began_s,
            segment_bytes_max=self._config.segment_bytes_max,
            segment_age_s_max=age_s_max,
            lacks_bookies=lacks_bookies,
        )

    def roll_later(self, pause_s: float) -> None:
        """The next ledger could not be made. The segment in use grows beyond its limit for this long."""
        self._has_full_ensemble = False
        self._roll_not_before_s = self._clock() + pause_s

    @a_step
    def roll(self, in_use: SegmentInUse) -> bool:
        """The next ledger is there: from now on records wait for the next segment.

        Returns:
            False if the segment has failed, or the writer has stopped. Then nothing has changed.
        """
        if self.phase is not _RUNNING or in_use is not self.in_use:
            return False
        self._enter(WriterEvent.ROLL)
        return True

    def finish(self) -> bool:
        """During a roll: True once all that was sent is durable and visible. Then no segment is in use."""
        in_use = self.in_use
        assert in_use is not None  # the phase is ROLLING
        if not in_use.writer.is_idle:
            return False
        if in_use.writer.needs_commit:
            # The control record is sent when nothing else is in flight. Sent beside user records it would
            # carry a LAC before them. A reader that opens the log by its next segment would then miss
            # them until this ledger is closed.
            self.send(Batch())
            return False
        self.roll_count += 1
        self._retire(in_use)
        return True

    def _retire(self, in_use: SegmentInUse) -> None:
        assert in_use.writer.is_idle  # looked at by the callers
        self._last_txid = in_use.writer.last_txid
        self.old.append(in_use)
        self.in_use = None
        self._enter(WriterEvent.RETIRE)

    def completed(self) -> SegmentInUse:
        """The oldest segment is completed. Return it."""
        oldest = self.old.popleft()
        oldest.writer.is_over = True
        return oldest

    def settle(self, last_entry_id: int) -> None:
        """A recovery closed the ledger in use at this entry: settle what was in flight.

        The batches that the ledger does not hold wait for the next segment, in their order.
        """
        assert self.in_use is not None  # the callers recovered its ledger
        writer = self.in_use.writer
        freed_bytes, left = writer.resolve(last_entry_id)
        self._in_flight_bytes -= freed_bytes + sum(batch.held_bytes for batch in left)
        self._last_txid = max(self._last_txid, writer.first_txid if left else writer.last_txid)
        self.in_use, self._failure = None, None
        self.batcher.put_back(left)
        if self.intake is Intake.STOPPED:
            self._enter(WriterEvent.SETTLE, WriterEvent.STOP)
            self._drop()
        else:
            self._enter(WriterEvent.SETTLE)
        self._shell.free_capacity()

    def is_barren_for_too_long(self, last_entry_id: int) -> bool:
        """True if all segments have failed without an entry for the retry timeout. This one ended there.

        Bookies that let each ledger be begun and recovered, and take no entry, would otherwise get a new
        segment after each failure, for ever.
        """
        now_s = self._clock()
        if last_entry_id >= 0:
            self._barren_since_s = None
            return False
        if self._barren_since_s is None:
            self._barren_since_s = now_s
        return now_s - self._barren_since_s >= self._config.retry_timeout_s

    def overtaken(self, cause: LogFencedError) -> None:
        """Another program has changed the log: a writer that took it, or a move."""
        self._overtaken = cause
        self._shell.wake()

    def moved(self) -> list[SegmentInUse]:
        """The log is found elsewhere. Return the segments to abandon: who moves the log completes them.

        The segment in use, if there is one, is not among them: it is recovered.
        """
        self._overtaken = None
        left = list(self.old)
        self.old.clear()
        for each in left:
            each.writer.is_over = True
        if self.in_use is None and self.phase is Phase.MOVING:
            self._enter(WriterEvent.SETTLE)
        return left

    # The end.

    @a_step
    def close(self, refusal: WriteError) -> None:
        """Take no more records. From now on hold none back. The first refusal counts."""
        if self.refusal is None:
            self.refusal = refusal
        self._enter(WriterEvent.CLOSE)
        self.pump()
        self._shell.wake()

    @a_step
    def seal(self, refusal: WriteError) -> Batch:
        """The same, with the end of the stream after all records. Return its batch."""
        end = self.batcher.end_stream()
        self.close(refusal)
        return end

    def stop(self, error: WriteError) -> None:
        """Send nothing more. A batch never sent is not written; the ledger decides about one in flight.

        Only the first error counts.
        """
        if self.intake is not Intake.STOPPED:
            self.refusal = error
        self._bytes_max = 0  # so ``append`` asks ``wait_capacity``, as for every reason to wait
        self._enter(WriterEvent.STOP)
        self._drop()
        self._shell.wake()

    def give_up(self, error: WriteError) -> None:
        """Stop at once and abandon the ledger in use. The outcome of records in flight stays unknown."""
        if self.intake is not Intake.STOPPED:
            self.refusal = error
        self._bytes_max = 0
        self._enter(WriterEvent.GIVE_UP)
        self._drop()
        in_use, self.in_use, self._failure = self.in_use, None, None
        self._in_flight_bytes = 0
        if in_use is not None:
            in_use.handle.abandon()
            for batch in in_use.writer.give_up():
                self._fail(batch, RecordOutcome.UNKNOWN)
        self._shell.wake()

    def refuse(self, error: WriteError) -> None:
        """Refuse every later record, and touch nothing else: the process was forked."""
        self.refusal, self.intake, self.phase = error, Intake.STOPPED, Phase.ENDED

    def _drop(self) -> None:
        for batch in self.batcher.take_all():
            self._fail(batch, RecordOutcome.NOT_WRITTEN)

    def _fail(self, batch: Batch, outcome: RecordOutcome) -> None:
        assert self.refusal is not None  # the callers have stopped the writer
        if batch.txids:
            self.failed.append(batch)
            if outcome is RecordOutcome.UNKNOWN:
                self.unknown_count += len(batch.txids)
            else:
                self.not_written_count += len(batch.txids)
        batch.failed(self.refusal.about(outcome))

    def _enter(self, *events: WriterEvent) -> None:
        self.intake, self.phase = following(self.intake, self.phase, *events)
