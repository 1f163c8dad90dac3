"""Writing a log: what the one writer holds.

Inside: taking records, sending batches to the segment in use, telling each caller what became of its record,
making the last records visible. Not inside: which segment is in use and what happens when it fails
(``segment_keeper``), gathering (``batcher``), entry ids (``segment_writer``).
Always: records leave, and are answered, in the order they were submitted; a record is answered once, as
durable or as failed; after the first failure nothing later is ever answered as durable in a place before it.

Source: DistributedLog, BKAsyncLogWriter.java, BKLogSegmentWriter.java; the transaction id of a record without
one is the write proxy's: the wall clock in milliseconds, or the last id if that is greater.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import trio

from dlog.batcher import Batch
from dlog.config import WriterConfig
from dlog.errors import (
    RecordOutcome,
    RecordTooLongError,
    TxidOutOfOrderError,
    WriterOverloadedError,
)
from dlog.pending import Pending, wait_settled
from dlog.record import PAYLOAD_BYTES_MAX, TXID_MAX
from dlog.segment_keeper import SegmentKeeper
from namespace.dlsn import DLSN

OVERLOAD_FACTOR = 4  # submit() refuses beyond so many times what wait_room() waits for


def wall_ms() -> int:
    """Milliseconds since the epoch, by the system's clock."""
    return time.time_ns() // 1_000_000


class LogWriter:
    """Appends records to a log. Made by ``Namespace.open_writer``; closing it completes the segment in use.

    Appending while other tasks append is what makes it fast: whoever comes while an entry is on its way
    shares the next one.
    """

    def __init__(
        self,
        log: str,
        keeper: SegmentKeeper,
        config: WriterConfig,
        *,
        last_txid: int,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.log = log
        self._keeper = keeper
        self._batcher = keeper.batcher
        self._config = config
        self._wall_ms = wall_ms
        self._last_txid = last_txid
        self._newest: Batch | None = None  # of the record submitted last
        self._submit_bytes_max = OVERLOAD_FACTOR * config.bytes_in_flight_max

    def __repr__(self) -> str:
        return f"<LogWriter of {self.log!r}: {self._keeper.describe()}, last txid {self._last_txid}>"

    @property
    def last_txid(self) -> int:
        """The transaction id of the record submitted last, or found last in the log; -1 if there is none."""
        return self._last_txid

    @property
    def bytes_in_flight(self) -> int:
        """Bytes submitted whose records are neither durable nor failed yet."""
        return self._keeper.waiting_bytes

    @property
    def bytes_in_flight_max(self) -> int:
        """From here on ``wait_room`` waits."""
        return self._config.bytes_in_flight_max

    async def append(self, payload: bytes, *, txid: int | None = None) -> DLSN:
        """Write one record; return its position once it, and every record before it, is durable.

        Durable means synced to the disks of an ack quorum of bookies. If cancelled, the record may or may not
        be written; use ``submit`` to be able to ask later.

        Args:
            payload: At most ``PAYLOAD_BYTES_MAX`` bytes; empty is allowed.
            txid: At least that of the record before; None for the wall clock in milliseconds (or the last id,
                if
                greater).

        Raises:
            RecordTooLongError, TxidOutOfOrderError: Nothing was written.
            LogFencedError: Another writer took over; ``outcome`` says what became of this record.
            LogWriteError: The writer had to stop; ``outcome`` likewise.
            WriterClosedError: Nothing was written.
        """
        keeper = self._keeper
        if keeper.is_crowded:
            payload = as_bytes(payload)  # of this moment, whatever the caller's buffer holds after the wait
            await self.wait_room()
        batch, slot = self._take(payload, txid)
        if not batch.is_settled:
            await wait_settled(batch)
        return Pending(batch, slot).dlsn

    async def append_many(
        self, payloads: Iterable[bytes], *, txids: Iterable[int] | None = None
    ) -> list[DLSN]:
        """Write records in order, packed into as few entries as fit; return their positions once all are
        durable.

        All are checked before any is written, and nobody else's records come between them. If cancelled or
        failed, any number of them, from the first on, may be written.

        Args:
            txids: One for each payload, never decreasing; None for one common id, as in ``append``.

        Raises:
            What ``append`` raises; the outcome is that of the first record that is not durable.
        """
        if self._keeper.is_crowded:
            payloads = [as_bytes(each) for each in payloads]
            await self.wait_room()
        # From here to the end of _take_many nobody else runs: the ids that were checked are still in order,
        # and no other record comes between these. How fast they leave is bounded where they leave.
        records, ids = self._checked(payloads, txids)
        runs = self._take_many(records, ids) if records else []
        dlsns: list[DLSN] = []
        for batch, slot, count in runs:
            if not batch.is_settled:
                await wait_settled(batch)
            if batch.error is not None:
                batch.raise_error()
            seqno, entry_id = batch.segment_seqno, batch.entry_id
            dlsns += [DLSN(seqno, entry_id, each) for each in range(slot, slot + count)]
        return dlsns

    def submit(self, payload: bytes, *, txid: int | None = None) -> Pending:
        """Take one record without waiting; await what this returns for its position.

        Call ``wait_room`` now and then, so that memory stays bounded.

        Raises:
            RecordTooLongError, TxidOutOfOrderError, WriterOverloadedError, WriterClosedError: Nothing was
                taken. LogFencedError, LogWriteError: The writer has stopped; nothing was taken.
        """
        return Pending(*self._take(payload, txid))

    async def wait_room(self) -> None:
        """Return when less than ``bytes_in_flight_max`` bytes wait to become durable; at once if that is so.

        Raises:
            LogFencedError, LogWriteError: The writer has stopped.
        """
        await self._keeper.wait_room()

    async def flush(self) -> None:
        """Return once everything submitted before is durable, and visible to every reader that looks.

        If cancelled, nothing is lost and nothing is undone.

        Raises:
            LogFencedError, LogWriteError: Some of it is not durable; the records' own outcomes tell which.
        """
        newest = self._newest
        if newest is None:
            await trio.lowlevel.checkpoint()
            return
        self._batcher.cut()
        self._keeper.pump()
        await wait_settled(newest)
        if newest.error is not None:
            newest.raise_error()
        await self._keeper.make_visible(newest)

    async def truncate(self, first_kept: DLSN) -> DLSN | None:
        """Give up every record before a position, so that readers begin there; return what is first now.

        Records are marked, not deleted. Only segments that were completed can be marked, so what is returned
        may lie before ``first_kept``: everything in the segment in use stays. None: there is no segment yet.
        A record given up stays so: truncating at an earlier position changes nothing. If cancelled, or if
        the connection is lost, part of it may be done, from the first record on; call it again.

        Raises:
            LogFencedError, LogWriteError, WriterClosedError: The writer has stopped.
            LogUnavailableError, LogMetadataError
        """
        return await self._keeper.truncate(first_kept)

    async def aclose(self) -> None:
        """Write everything submitted, complete the segment in use and give the lock back. Idempotent.

        If cancelled, or if bookies or metadata stay out of reach, the writer is over all the same; the next
        writer's recovery finds every durable record.

        Raises:
            LogFencedError, LogWriteError: Some submitted record is not durable.
        """
        await self._keeper.aclose()

    def _take(self, payload: bytes, txid: int | None) -> tuple[Batch, int]:
        keeper = self._keeper
        if keeper.refusal is not None:
            raise keeper.refusal.about(RecordOutcome.NOT_WRITTEN)
        if payload.__class__ is not bytes:
            payload = as_bytes(payload)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise RecordTooLongError(len(payload), PAYLOAD_BYTES_MAX)
        last_txid = self._last_txid
        if txid is None:
            txid = max(last_txid, self._wall_ms())
        elif not last_txid <= txid < TXID_MAX or txid < 0:
            raise TxidOutOfOrderError(self.log, txid, last_txid)
        if keeper.waiting_bytes > self._submit_bytes_max:
            raise WriterOverloadedError(self.log, keeper.waiting_bytes, self._submit_bytes_max)
        self._last_txid = txid
        batch, slot = self._batcher.add(payload, txid)
        self._newest = batch
        keeper.pump()
        return batch, slot

    def _take_many(self, payloads: Sequence[bytes], txids: Sequence[int]) -> list[tuple[Batch, int, int]]:
        keeper = self._keeper
        if keeper.refusal is not None:
            raise keeper.refusal.about(RecordOutcome.NOT_WRITTEN)
        self._last_txid = txids[-1]
        runs = self._batcher.add_many(payloads, txids)
        self._newest = runs[-1][0]
        keeper.pump()
        return runs

    def _checked(
        self, payloads: Iterable[bytes], txids: Iterable[int] | None
    ) -> tuple[list[bytes], list[int]]:
        records = [each if each.__class__ is bytes else as_bytes(each) for each in payloads]
        if records and (longest := max(map(len, records))) > PAYLOAD_BYTES_MAX:
            raise RecordTooLongError(longest, PAYLOAD_BYTES_MAX)
        last_txid = self._last_txid
        if txids is None:
            return records, [max(last_txid, self._wall_ms())] * len(records)
        ids = list(txids)
        if len(ids) != len(records):
            raise ValueError(f"{len(records)} payloads, {len(ids)} txids: one each is needed")
        for txid in ids:
            if not last_txid <= txid < TXID_MAX or txid < 0:
                raise TxidOutOfOrderError(self.log, txid, last_txid)
            last_txid = txid
        return records, ids


def as_bytes(payload: object) -> bytes:
    """The payload as it is now: a buffer that its owner may fill again is copied.

    Raises:
        TypeError: It is neither bytes nor a bytearray or memoryview.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
