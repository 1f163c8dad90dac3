"""A submitted record, and what became of it.

Inside: waiting for a batch to settle. Not inside: deciding it (``segment_writer``, ``log_writer``).
Always: the answer never changes once given; giving up waiting changes nothing about the record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import trio

from dlog.batcher import Batch
from dlog.errors import RecordOutcome
from namespace.dlsn import DLSN


async def wait_settled(batch: Batch) -> None:
    """Return once it is decided what became of the batch. Cancelling changes nothing about it."""
    if not batch.is_settled:
        event = trio.Event()
        batch.on_settled(event.set)
        await event.wait()


class Pending:
    """A record on its way: ``await`` it for its DLSN, as often as wanted, also after a cancelled wait.

    Awaiting raises what ``LogWriter.append`` raises. An await of a record whose fate is known returns at
    once, without a checkpoint.
    """

    __slots__ = ("_batch", "_slot")

    def __init__(self, batch: Batch, slot: int) -> None:
        self._batch, self._slot = batch, slot

    def __repr__(self) -> str:
        where = f" at {self._dlsn()!r}" if self.outcome is RecordOutcome.DURABLE else ""
        return f"<Pending record: {self.outcome.value}{where}>"

    def __await__(self) -> Generator[object, object, DLSN]:
        if not self._batch.is_settled:
            yield from wait_settled(self._batch).__await__()
        return self.dlsn

    @property
    def outcome(self) -> RecordOutcome:
        """What is known about the record now."""
        return self._batch.outcome

    @property
    def dlsn(self) -> DLSN:
        """The record's position.

        Raises:
            WriteError: It could not be written; the error says why and whether it may be in the log.
            RuntimeError: It is not known yet (``outcome`` is PENDING): await it.
        """
        if self._batch.error is not None:
            self._batch.raise_error()
        if self._batch.outcome is RecordOutcome.PENDING:
            raise RuntimeError("the record is still on its way; await it")
        return self._dlsn()

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call back, in the trio loop, once ``outcome`` is decided; it must neither block nor raise."""
        self._batch.on_settled(callback)

    def _dlsn(self) -> DLSN:
        return DLSN(self._batch.segment_seqno, self._batch.entry_id, self._slot)
