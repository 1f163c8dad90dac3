"""Recording the records of writers and readers in a history.

Inside: the recorder of one writer; recording all writers and readers of worlds.
Not inside: checking (``dlog.testing.history``).
Always: a record is noted when the writer takes it, before any reader can see it; its outcome is noted when it
is decided, whether or not the caller still waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from dlog.errors import RecordOutcome
from dlog.format.record import Record
from dlog.read.log_reader import LogReader
from dlog.read.read_only_log import ReadOnlyLog
from dlog.testing.history import History, LogHistory, ReaderHistory, Submission
from dlog.write.batcher import Batch
from dlog.write.log_writer import LogWriter
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.metadata_store.read_only import ReadOnlyStore
from ledger.pickling import ProcessBound
from namespace.dlsn import DLSN


class WriterRecorder(ProcessBound):
    """Notes every record that a writer takes from now on."""

    def __init__(self, writer: LogWriter, history: LogHistory) -> None:
        self.history = history
        self.submissions: list[Submission] = []
        self._once: set[tuple[int, bytes]] = set()
        self._writer = writer
        self._take, self._take_many = writer._take, writer._take_many
        self._append_once = writer.append_once
        # On this object only: other writers are not recorded.
        patched: Any = writer
        patched._take, patched._take_many = self._note_one, self._note_many
        patched.append_once = self._note_once

    async def _note_once(self, payload: bytes | bytearray | memoryview, *, txid: int, **more: Any) -> DLSN:
        self._once.add((txid, bytes(payload)))
        return await self._append_once(payload, txid=txid, **more)

    def once(self, payload: bytes, txid: int) -> None:
        """Treat later submissions of this record as attempts to store one record."""
        self._once.add((txid, payload))

    def _note_one(self, payload: bytes | bytearray | memoryview, *options: Any, **more: Any) -> Any:
        batch, slot, *_ = taken = self._take(payload, *options, **more)
        self._note(bytes(payload), self._writer.last_txid, batch, slot)
        return taken

    def _note_many(
        self, payloads: Sequence[bytes], txids: Sequence[int] | None, *more: Any, **options: Any
    ) -> Any:
        ranges = self._take_many(payloads, txids, *more, **options)
        if txids is None:
            txids = [self._writer.last_txid] * len(payloads)
        group = object() if options.get("atomic") else None
        index = 0
        for batch, slot, count in ranges:
            for offset in range(count):
                self._note(payloads[index], txids[index], batch, slot + offset, group)
                index += 1
        return ranges

    def _note(self, payload: bytes, txid: int, batch: Batch, slot: int, group: object = None) -> None:
        is_once = (txid, payload) in self._once
        submission = self.history.submitted(payload, txid, is_once=is_once, group=group)
        self.submissions.append(submission)
        batch.on_settled(lambda: self._settled(submission, batch, slot))

    def _settled(self, submission: Submission, batch: Batch, slot: int) -> None:
        dlsn = None
        if batch.outcome is RecordOutcome.DURABLE:
            dlsn = DLSN(batch.segment_seqno, batch.entry_id, slot)
        if not (self.history.is_deleted and dlsn is not None):
            # An acknowledgement of a log that was deleted meanwhile says nothing about the next one.
            self.history.settled(submission, batch.outcome, dlsn)


class RecordedStore(MemoryStore):
    """A session of a world: the writers and readers above it are recorded."""

    def __init__(self, tree: MemoryTree, history: History) -> None:
        super().__init__(tree)
        self.history = history


def _history_of(log: ReadOnlyLog) -> LogHistory | None:
    store = log.nodes.store
    inner = store.inner if isinstance(store, ReadOnlyStore) else store
    return inner.history.log(log.name) if isinstance(inner, RecordedStore) else None


@contextmanager
def recording() -> Iterator[None]:
    """A block in which all writers and readers of worlds are recorded."""
    begin, deliver = LogWriter.__init__, LogReader._deliver
    readers: WeakKeyDictionary[LogReader, ReaderHistory] = WeakKeyDictionary()

    def init(self: LogWriter, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        history = _history_of(self._lookup)
        if history is not None:
            WriterRecorder(self, history)

    def delivered(self: LogReader, records: Sequence[Record]) -> bool:
        history = _history_of(self._log)
        if history is None:
            return deliver(self, records)
        start = None if self._txid_min >= 0 else self.position
        result = deliver(self, records)
        if result and self not in readers:
            readers[self] = history.open_reader(f"{id(self):x}", start)
        if result:
            for record in self._untaken.whole:
                readers[self].returned(record)
        return result

    with patch.object(LogWriter, "__init__", init), patch.object(LogReader, "_deliver", delivered):
        yield
