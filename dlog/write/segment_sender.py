"""Sending batches to the segment in use, within a limit of bytes in flight.

Records that callers only submit each take an entry of their own if they come more slowly than entries are
acknowledged. With ``linger_ms``, an entry whose records no caller waits for is sent this long after the entry
before, at the earliest. A record after a pause is sent at once, and so is a record that a caller waits for.

Inside: the order and the time of sending, acknowledgements and failures of the ledger in use, waiting for
capacity, control records that make the last records visible to readers.
Not inside: which segment is in use (``segment_roller``), which records share an entry (``batcher``), entry
ids and outcomes (``segment_writer``).
Always: nothing is sent while ``is_sending`` is False; the first failure of the ledger in use is the only one
that counts, and nothing is sent to that ledger after it.

Source: DistributedLog, BKLogSegmentWriter.java (docs/stream-format.md 4.8).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import trio

from dlog import statistics_names as names
from dlog.config import WriterConfig
from dlog.errors import LogLockLostError, RecordOutcome, WriteError
from dlog.format.hash_chain import CHAIN_RECORD_BYTES
from dlog.format.record import CONTROL_PAYLOAD, KEEP_ALIVE_PAYLOAD
from dlog.write.batcher import Batch, Batcher
from dlog.write.pending import wait_settled
from dlog.write.segment_writer import SegmentWriter
from ledger.errors import LedgerError
from ledger.handle import WriteHandle
from ledger.replication_asked import AskedReplication
from namespace.segments.segment import LogSegment


@attrs.frozen
class SegmentInUse:
    """A segment with its ledger."""

    writer: SegmentWriter
    handle: WriteHandle
    segment: LogSegment
    began_s: float

    @property
    def asked(self) -> AskedReplication | None:
        """What the segment's ledger should have, if it began on fewer bookies; else None."""
        return AskedReplication.of(self.handle.metadata.custom)


class SegmentSender:
    """Sends what the batcher gathers to the segment that ``segment_roller`` chose.

    Args:
        on_progress: Called after an acknowledgement, after a failure, and when records wait for the first
            segment. It must neither block nor raise.
    """

    def __init__(self, config: WriterConfig, *, on_progress: Callable[[], None]) -> None:
        self.batcher = Batcher(
            entry_bytes_target=config.entry_bytes_target,
            reserved_bytes=CHAIN_RECORD_BYTES if config.hash_chain else 0,
            on_wanted=self.pump,
        )
        self.in_use: SegmentInUse | None = None
        self.is_sending = False  # False while the next segment is not decided: records gather
        self.failure: BaseException | None = None  # of the ledger in use
        self.stopped: WriteError | None = None  # why nothing more can be written
        self.refusal: WriteError | None = None  # why nothing more can be submitted: stopped, or closing
        self.is_closing = False
        self.finished = trio.Event()  # the last segment is completed, or the writer has stopped
        self._on_progress = on_progress
        self._linger_s = config.linger_ms / 1000
        self._due_s = -math.inf  # before it, an entry that no caller waits for is not sent
        self._holds = trio.Event()  # set while records wait for that time
        self._visibility_delay_s = config.visibility_delay_ms / 1000
        self._keep_alive_s = config.keep_alive_s
        self._bytes_max = config.bytes_in_flight_max
        self._ledger_bytes_max = 2 * config.bytes_in_flight_max
        self._in_flight_bytes = 0
        self._recovered = trio.Event()  # the end of the failed ledger is decided, or known to stay unknown
        self._capacity = trio.Event()
        self._capacity_waits = 0  # callers that wait for ``_capacity``
        self._ledger_waits: set[trio.CancelScope] = set()  # of callers that wait for a slow replica
        self._commit_wanted = trio.Event()
        # For the statistics: all but what the newest segment counts itself.
        self._newest: SegmentWriter | None = None
        self._before = (0, 0, 0)  # records, entries and bytes sent to the segments before it
        self._segments = self._rolls = self._failures = self._waits = self._degraded = 0

    def counters(self) -> dict[str, int]:
        """What this writer has done so far, by the names of its statistics."""
        records, entries, size_bytes = self._sent
        return {
            names.RECORDS_SENT: records,
            names.ENTRIES_SENT: entries,
            names.BYTES_SENT: size_bytes,
            names.SEGMENTS_BEGUN: self._segments,
            names.SEGMENTS_DEGRADED: self._degraded,
            names.SEGMENTS_ROLLED: self._rolls,
            names.SEGMENTS_FAILED: self._failures,
            names.CAPACITY_WAITS: self._waits,
            names.LOCKS_LOST: int(isinstance(self.stopped, LogLockLostError)),
            names.WRITERS_OPENED: 1,
        }

    def gauges(self) -> dict[str, int]:
        """The same of values that rise and fall."""
        is_degraded = self.in_use is not None and self.in_use.asked is not None
        return {names.WAITING_BYTES: self.waiting_bytes, names.DEGRADED_SEGMENTS: int(is_degraded)}

    @property
    def _sent(self) -> tuple[int, int, int]:
        records, entries, size_bytes = self._before
        if (newest := self._newest) is None:
            return self._before
        return records + newest.position, entries + newest.entry_count, size_bytes + newest.size_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of records that are neither durable nor failed."""
        return self._in_flight_bytes + self.batcher.size_bytes

    @property
    def is_over_limit(self) -> bool:
        """True if the caller should ``wait_capacity`` before it submits more."""
        if self._in_flight_bytes + self.batcher.size_bytes >= self._bytes_max:
            return True
        in_use = self.in_use
        # The ledger keeps a confirmed entry in memory until its slowest replica has it.
        return in_use is not None and in_use.handle.bytes_in_flight >= self._ledger_bytes_max

    async def wait_capacity(self) -> None:
        """Return when the writer is below its limits; raise the reason if it has stopped."""
        self._waits += self.is_over_limit
        while self.is_over_limit and self.stopped is None:
            in_use = self.in_use
            if in_use is None or self.failure is not None or self.waiting_bytes >= self._bytes_max:
                self._capacity_waits += 1
                try:
                    await self._capacity.wait()
                finally:
                    self._capacity_waits -= 1
            else:
                # Returns also when the ledger fails. Then ``failure`` is set; the recovery frees capacity.
                with trio.CancelScope() as scope:
                    self._ledger_waits.add(scope)
                    try:
                        await in_use.handle.wait_bytes_in_flight_below(self._ledger_bytes_max)
                    finally:
                        self._ledger_waits.discard(scope)
        if self.stopped is not None:
            raise self.stopped.about(self.stopped.outcome)

    def use(self, in_use: SegmentInUse) -> None:
        """Send to this segment from now on."""
        self._segments += 1
        self._degraded += in_use.asked is not None
        self._rolls += self.in_use is not None
        self._before, self._newest = self._sent, in_use.writer
        self.in_use = in_use
        in_use.handle.on_confirmed(self._on_confirmed(in_use))
        self.failure = None
        self.is_sending = True
        self.pump()

    def pump(self) -> None:
        """Send the batches that are due. Called after a record was added or an acknowledgement came."""
        in_use = self.in_use
        if not self.is_sending or in_use is None:
            if in_use is None and self.batcher:
                self._on_progress()
            return
        writer, batcher = in_use.writer, self.batcher
        window = self._bytes_max
        has_sent = False
        while self._in_flight_bytes < window:
            batch = batcher.take(idle=writer.is_quiet and self._is_due())
            if batch is None:
                break
            if not self._submit(in_use, batch):
                batcher.put_back([batch])
                return
            has_sent = True
        if has_sent:
            if self._linger_s:
                self._due_s = trio.current_time() + self._linger_s
            if writer.has_one_in_flight:
                in_use.handle.send_now()  # a burst gathers after this entry
            else:
                in_use.handle.send_soon()

    def _is_due(self) -> bool:
        """True if an entry that is not full may be sent; else ``send_held`` sends it."""
        if not self._linger_s or self.batcher.is_wanted or self.is_closing:
            return True
        if trio.current_time() >= self._due_s:
            return True
        if self.batcher:
            self._holds.set()
        return False

    def send_now(self) -> None:
        """Have the ledger send what was given to it, for a caller that waits for its record."""
        if self.in_use is not None:
            self.in_use.handle.send_now()

    def send(self, in_use: SegmentInUse, batch: Batch, *, control_payload: bytes = CONTROL_PAYLOAD) -> bool:
        """Send a batch as the segment's next entry; False if the ledger has failed."""
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
            self._segment_failed(in_use, exc)
            return False
        writer.sent(batch, entry_id, len(entry))
        self._in_flight_bytes += batch.size_bytes
        return True

    def _send_parts(self, in_use: SegmentInUse, batch: Batch) -> bool:
        # No other entry comes between the parts, and a record has all its parts in one ledger: if this one
        # fails, the next ledger gets the whole record.
        for entry in in_use.writer.encode_parts(batch):
            try:
                entry_id = in_use.handle.submit(entry)
            except LedgerError as exc:
                self._segment_failed(in_use, exc)
                return False
            in_use.writer.sent_part(entry_id, len(entry))
        return True

    def begin_closing(self) -> None:
        """From now on hold no record back."""
        self.is_closing = True
        self.pump()

    def recovered(self, last_entry_id: int) -> list[Batch]:
        """Settle what was in flight: a recovery closed the ledger in use at this entry.

        No segment is in use afterwards. Returns the batches that the ledger does not hold; they wait for the
        next segment, in their order.
        """
        assert self.in_use is not None  # a batch is sent into a segment
        freed_bytes, left = self.in_use.writer.resolve(last_entry_id)
        self._in_flight_bytes -= freed_bytes + sum(batch.size_bytes for batch in left)
        self.in_use, self.failure = None, None
        self._recovered.set()
        self.batcher.put_back(left)
        self._free_capacity()
        return left

    def give_up(self) -> list[Batch]:
        """Abandon the segment in use; return the batches in flight. Their outcome is unknown."""
        in_use, self.in_use, self.failure = self.in_use, None, None
        self._recovered.set()
        self._in_flight_bytes = 0
        if in_use is None:
            return []
        in_use.handle.abandon()
        return in_use.writer.give_up()

    def stop(self, error: WriteError) -> list[Batch]:
        """Send nothing more; return the batches that were never sent. Only the first error counts."""
        if self.stopped is None:
            self.stopped = self.refusal = error
        self.is_sending = False
        never_sent = self.batcher.take_all()
        self._capacity.set()
        for scope in self._ledger_waits:
            scope.cancel()
        return never_sent

    def _on_confirmed(self, in_use: SegmentInUse) -> Callable[[int, BaseException | None], None]:
        writer = in_use.writer

        def on_confirmed(lac: int, error: BaseException | None) -> None:
            if writer.is_over or in_use is not self.in_use:
                return
            self._in_flight_bytes -= writer.confirmed(lac)
            if error is not None:
                self._segment_failed(in_use, error)
                return
            if self._capacity_waits:
                self._free_capacity()
            if self.is_sending:
                self.pump()
                if writer.is_idle and writer.needs_commit:
                    self._commit_wanted.set()
                    if not writer.was_wanted:
                        in_use.handle.hint_now()  # no caller is about to append again
            self._on_progress()

        return on_confirmed

    def _segment_failed(self, in_use: SegmentInUse, cause: BaseException) -> None:
        if self.failure is None and in_use is self.in_use:
            self.failure = cause
            self._failures += 1
            self._recovered = trio.Event()
            self.is_sending = False
            self._on_progress()

    def _free_capacity(self) -> None:
        if self.waiting_bytes <= self._bytes_max // 2:
            self._capacity.set()
            self._capacity = trio.Event()

    # Visibility. An entry carries the LAC that the writer knew when it sent the entry. So readers see an
    # entry once a later one is durable that was sent after the first had become durable.

    async def serve(self) -> None:
        """Run the tasks that send control records; for a task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keep_visible)
            nursery.start_soon(self.send_held)
            if self._keep_alive_s is not None:
                nursery.start_soon(self.keep_alive, self._keep_alive_s)

    async def send_held(self) -> None:
        """Send records when the time is over for which they wait for others; for a task."""
        while True:
            await self._holds.wait()
            await trio.sleep_until(self._due_s)
            self._holds = trio.Event()  # entries that were sent meanwhile may have moved the time
            self.pump()

    async def keep_visible(self) -> None:
        """Send a control record when the last user records stay the last for the configured delay; for a
        task."""
        while True:
            await self._commit_wanted.wait()
            in_use = self.in_use
            seen = None if in_use is None else in_use.writer.entry_count
            await trio.sleep(self._visibility_delay_s)
            self._commit_wanted = trio.Event()
            in_use = self.in_use
            if in_use is None or not self.is_sending:
                continue
            writer = in_use.writer
            if writer.is_idle and writer.needs_commit:
                if writer.entry_count == seen:
                    self.send(in_use, Batch())
                else:
                    self._commit_wanted.set()

    async def keep_alive(self, interval_s: float) -> None:
        """Send a control record whenever nothing was sent for this long; for a task.

        A segment that a roll began without a record gets control records too, unlike in Apache's writer.
        Otherwise an idle log whose segment was rolled by its age would look dead.
        """
        seen: tuple[int, int] | None = None  # the ledger and its entries half an interval ago
        while True:
            await trio.sleep(interval_s / 2)
            in_use, before = self.in_use, seen
            seen = None if in_use is None else (in_use.writer.ledger_id, in_use.writer.entry_count)
            if in_use is not None and seen == before and self.is_sending and in_use.writer.is_idle:
                self.send(in_use, Batch(), control_payload=KEEP_ALIVE_PAYLOAD)
                seen = None

    async def make_visible(self, batch: Batch) -> None:
        """Return when a reader that looks now sees the durable batch; raise if the writer has stopped."""
        while self.stopped is None and not self.finished.is_set():
            in_use = self.in_use
            if in_use is None and self.is_closing:
                await self.finished.wait()
                continue
            if in_use is None or in_use.writer.segment_seqno != batch.segment_seqno or in_use.writer.is_over:
                return  # a rolled segment is visible to its last record, a recovered one is closed
            writer = in_use.writer
            if writer.visible_entry_id >= batch.entry_id:
                return
            if self.failure is not None:
                await self._recovered.wait()
                continue
            newest = writer.newest_in_flight
            follower = Batch() if newest is None or newest.lac < batch.entry_id else newest
            if follower is newest or self.send(in_use, follower):
                await wait_settled(follower)
        if self.stopped is not None:
            raise self.stopped.about(RecordOutcome.DURABLE)
