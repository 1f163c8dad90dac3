"""A submitted record and its outcome.

Inside: waiting for a batch to settle. Not inside: settling it (``segment_writer``, ``writer_machine``).
Always: an outcome never changes once it is decided; a cancelled wait changes nothing about the record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future

import trio

from dlog.errors import RecordOutcome, WriteError
from dlog.write.batcher import Batch
from ledger.pickling import ProcessBound
from ledger.runtime.tasks.futures import settle
from ledger.runtime.tasks.trio_only import check_thread
from namespace.dlsn import DLSN


async def wait_settled(batch: Batch) -> None:
    """Return when the batch is settled. A cancelled wait changes nothing about the batch.

    Raises:
        RuntimeError: The caller is in another thread than the writer's.
    """
    if batch.outcome is RecordOutcome.PENDING:
        check_thread(batch.thread, "the writer of the record")
        event = trio.Event()
        batch.on_settled(event.set)
        if not batch.is_wanted:
            batch.want()
        await event.wait()


async def settled_positions(ranges: list[tuple[Batch, int, int]]) -> list[DLSN]:
    """The positions of records once all are durable; else the error, with those that are."""
    dlsns: list[DLSN] = []
    for batch, slot, count in ranges:
        if not batch.is_settled:
            await wait_settled(batch)
        if batch.error is not None:
            try:
                batch.raise_error()
            except WriteError as exc:
                exc.durable = tuple(dlsns)
                raise
        dlsns += batch.positions(slot, count)
    return dlsns


class Pending(ProcessBound):
    """A submitted record. ``await`` it for its DLSN; several times, and also after a cancelled wait.

    Awaiting raises what ``LogWriter.append`` raises. Once the outcome is decided, it returns at once, without
    a checkpoint.
    """

    __slots__ = ("_batch", "_slot")

    def __init__(self, batch: Batch, slot: int) -> None:
        self._batch, self._slot = batch, slot

    def __repr__(self) -> str:
        where = f" at {self.dlsn!r}" if self.outcome is RecordOutcome.DURABLE else ""
        return f"<Pending record: {self.outcome.value}{where}>"

    def __await__(self) -> Generator[object, object, DLSN]:
        if not self._batch.is_settled:
            yield from wait_settled(self._batch).__await__()
        return self.dlsn

    @property
    def outcome(self) -> RecordOutcome:
        """The outcome of the record as known now."""
        return self._batch.outcome

    @property
    def dlsn(self) -> DLSN:
        """The record's position.

        Raises:
            WriteError: It was not written, or that is unknown. The error says why, and whether the record may
                be in the log.
            RuntimeError: The outcome is still PENDING: await the record.
        """
        return self._batch.dlsn(self._slot)

    @property
    def sent_to(self) -> DLSN | None:
        """The position that the record has if it is in the log; None if it is not sent, or known not to be.

        For an outcome that is UNKNOWN.
        """
        batch = self._batch
        return None if batch.entry_id < 0 else DLSN(batch.segment_seqno, batch.entry_id, self._slot)

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call the callback in the trio loop when ``outcome`` is decided. It must neither block nor raise.

        The record is sent as if a caller waited for it.
        """
        check_thread(self._batch.thread, "the writer of the record")
        self._batch.on_settled(callback)
        self._batch.want()


def settle_future(pending: Pending, future: Future[DLSN]) -> None:
    """Give a future the outcome of a settled record."""
    try:
        dlsn = pending.dlsn
    except Exception as exc:
        settle(future, exc)
    else:
        settle(future, dlsn)
