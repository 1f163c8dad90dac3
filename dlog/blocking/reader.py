"""A reader without ``async``: an iterator of records."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, suppress
from itertools import islice
from operator import length_hint
from types import TracebackType
from typing import Literal, overload

import trio

from dlog.blocking.closing import close_after_block
from dlog.errors import DLogError, NamespaceClosedError
from dlog.format.record import Record
from dlog.read.gaps import Gap
from dlog.read.log_reader import BATCH_RECORDS
from dlog.read.log_reader import LogReader as AsyncLogReader
from dlog.read.read_ahead import ReadAhead
from dlog.read.record_batch import RecordBatch
from ledger.runtime.tasks.forks import call_in_child
from ledger.runtime.tasks.loop_thread import Held, LoopThread
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN

RECORDS_AT_ONCE = 1024  # an iterating reader fetches this many from the loop's thread


class LogReader:
    """See ``dlog.LogReader``: an iterator of records. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[AsyncLogReader]) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._reader = self._held.value
        self._guard = threading.Lock()
        self._records: list[Record] = []  # fetched
        # The records not returned yet. Threads and interrupts cannot divide a step of a list's iterator.
        self._ahead = iter(self._records)
        self._batch = RecordBatch()  # fetched as columns and not returned yet; then there are no records
        self._gap: Gap | None = None  # found and not returned yet
        self._position = self._reader.position  # after all fetched records
        self._fetching: trio.Event | None = None  # set when the fetch in progress ends
        call_in_child(self, LogReader._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Free the guard: called in a forked child, whose next fetch raises."""
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return f"<blocking {repr(self._reader)[1:]}"

    @property
    def position(self) -> DLSN | None:
        """See ``dlog.LogReader.position``."""
        if self._fetching is not None:
            # A fetch moves records from the reader to this object. Between two steps of the loop it has moved
            # all of them or none.
            with suppress(NamespaceClosedError):
                return self._loop.run(self._position_in_loop)
        with self._guard:
            return self._first_left() or self._position

    def _first_left(self) -> DLSN | None:
        """The position of the first record that is fetched and not returned yet."""
        if left := length_hint(self._ahead):
            return self._records[-left].dlsn
        return self._batch.first_dlsn if self._batch else None

    @property
    def cursor(self) -> Cursor | None:
        """See ``dlog.LogReader.cursor``."""
        return self._reader.cursor

    def commit(self, last: DLSN | None = None) -> Cursor | None:
        """See ``dlog.LogReader.commit``."""
        if last is not None and ((here := self.position) is None or last >= here):
            raise ValueError(f"{last} was not returned yet, so it cannot be committed")
        return self.commit_to(self.position if last is None else self._reader._behind(last))

    def commit_to(self, position: DLSN | None) -> Cursor | None:
        """See ``dlog.LogReader.commit_to``."""
        # The asynchronous reader's position is that of the records fetched ahead.
        if position is not None and ((here := self.position) is None or position > here):
            raise ValueError(f"the reader has not come to {position} yet")
        return self._loop.run(self._reader.commit_to, position)

    @property
    def idle_s(self) -> float:
        """See ``dlog.LogReader.idle_s``."""
        return self._reader.idle_s

    @property
    def is_sealed(self) -> bool:
        """See ``dlog.LogReader.is_sealed``."""
        return self._reader.is_sealed and not self._has_records

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        while True:
            for record in self._ahead:
                return record
            with self._guard:
                if self._batch:
                    self._records = list(self._batch)
                    self._ahead, self._batch = iter(self._records), RecordBatch()
                    continue
            if not self._loop.run(self._fetch, RECORDS_AT_ONCE, None, False):
                raise StopIteration

    @overload
    def batches(self, records_max: int = ..., *, gaps: Literal[False] = ...) -> Iterator[RecordBatch]: ...
    @overload
    def batches(self, records_max: int = ..., *, gaps: Literal[True]) -> Iterator[RecordBatch | Gap]: ...
    def batches(self, records_max: int = BATCH_RECORDS, *, gaps: bool = False) -> Iterator[RecordBatch | Gap]:
        """See ``dlog.LogReader.batches``."""
        read = self.read_batch_or_gap if gaps else self.read_batch
        while (batch := read(records_max)) is not None:
            yield batch

    def read_batch_or_gap(self, records_max: int, *, wait_s: float | None = None) -> RecordBatch | Gap | None:
        """See ``dlog.LogReader.read_batch_or_gap``."""
        self._reader._checked_finder()
        while True:
            with self._guard:
                gap, self._gap = self._gap, None
            if gap is not None:
                return gap
            ahead = self._reader._ahead
            try:
                return self.read_batch(records_max, wait_s=wait_s)
            except DLogError as exc:
                self._loop.run(self._find_gap, ahead, exc)

    async def _find_gap(self, ahead: ReadAhead, error: DLogError) -> None:
        """In the loop: store the gap after which the reader continues now."""
        gap = await self._reader._gap_after(ahead, error)
        with self._guard:
            self._gap = gap or self._gap
            self._position = self._reader.position

    def read_batch(self, records_max: int, *, wait_s: float | None = None) -> RecordBatch | None:
        """See ``dlog.LogReader.read_batch``."""
        if records_max < 1:
            raise ValueError(f"records_max={records_max}: at least 1")
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if records := list(islice(self._ahead, records_max)):
                return RecordBatch.of(records)
            with self._guard:
                if batch := self._batch:
                    self._batch = batch[records_max:]
                    return batch[:records_max]
            fetched = self._loop.run(self._fetch, records_max, deadline_s, True)
            if not fetched:
                return RecordBatch() if fetched is False else None

    @property
    def _has_records(self) -> bool:
        return length_hint(self._ahead) > 0 or len(self._batch) > 0

    async def _fetch(self, records_max: int, deadline_s: float | None, columns: bool) -> bool | None:
        """In the loop: fetch records; False if none came in time, None at the end.

        The records are stored in this object. So a later call returns them if the calling thread is
        interrupted. There is one fetch at a time, so that records keep their order.
        """

        def left_s() -> float:
            return math.inf if deadline_s is None else max(0.0, deadline_s - time.monotonic())

        with trio.move_on_after(left_s()):
            while self._fetching is not None:
                await self._fetching.wait()
        if self._has_records:
            return True  # decided by one look: another thread may take the record before a second one
        if self._fetching is not None:
            return False
        self._fetching = trio.Event()
        try:
            wait_s = None if deadline_s is None else left_s()
            records = await self._reader._read_records(records_max, wait_s=wait_s, columns=columns)
            with self._guard:
                if columns:
                    self._batch = RecordBatch.of(records or [])
                else:
                    self._records = list(records or ())
                    self._ahead = iter(self._records)
                self._position = self._reader.position
            return None if records is None else bool(records)
        finally:
            self._position = self._reader.position
            self._fetching.set()
            self._fetching = None

    async def _position_in_loop(self) -> DLSN | None:
        await trio.lowlevel.checkpoint()
        return self._first_left() or self._reader.position

    def close(self) -> None:
        """End the reader. Idempotent."""
        self._held.release()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)
