"""A reader of a sharded log without ``async``.

A turn of records of one shard is fetched at once from the loop's thread, and kept here until it is taken, so
an interrupted call loses no record.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from itertools import islice
from operator import length_hint
from types import TracebackType
from typing import Literal, overload

import trio

from dlog.blocking.closing import close_after_block
from dlog.format.record import Record
from dlog.read.gaps import Gap
from dlog.read.log_reader import BATCH_RECORDS
from dlog.read.record_batch import RecordBatch
from dlog.shards import reader
from dlog.shards.reader import NO_SHARD, Missing, check_returned, position_behind
from ledger.runtime.tasks.forks import call_in_child
from ledger.runtime.tasks.loop_thread import Held, LoopThread
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN


class ShardedReader:
    """See ``dlog.shards.ShardedReader``: an iterator of (shard, record). Made by ``open_sharded_reader``.

    Closed by ``close`` or the end of a ``with`` block. Several threads may share it.
    """

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[reader.ShardedReader]) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._reader = self._held.value
        self.name = self._reader.name
        self._guard = threading.Lock()
        self._shard = NO_SHARD  # of this turn, which is one of the next three
        self._pairs: list[tuple[int, Record]] = []
        self._batch, self._index = RecordBatch(), 0  # columns, and the first record not returned yet
        self._missing: Missing | None = None  # a gap that is not returned yet
        # The pairs not returned yet. Threads and interrupts cannot divide a step of a list's iterator.
        self._ahead = iter(self._pairs)
        self._before: dict[int, DLSN] = {}  # after what was returned before this turn, by shard
        self._after: dict[int, DLSN] = {}  # and after this turn
        self._gaps: dict[int, Gap] = {}  # the last one returned, by shard
        self._fetching: trio.Event | None = None  # set when the fetch in progress ends
        call_in_child(self, ShardedReader._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Free the guard: called in a forked child, whose next fetch raises."""
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return f"<blocking {repr(self._reader)[1:]}"

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self

    def __next__(self) -> tuple[int, Record]:
        while True:
            for pair in self._ahead:
                return pair
            with self._guard:
                if self._index < len(self._batch):
                    self._before = self._returned()
                    self._pairs = [(self._shard, record) for record in self._batch[self._index :]]
                    self._ahead = iter(self._pairs)
                    self._batch, self._index = RecordBatch(), 0
                    continue
            if not self._loop.run(self._fetch, None, False, False):
                raise StopIteration

    def read_batch(self, records_max: int, *, wait_s: float | None = None) -> tuple[int, RecordBatch] | None:
        """See ``dlog.shards.ShardedReader.read_batch``."""
        self._reader._check_max(records_max)
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while (batch := self._take_batch(records_max)) is None:
            fetched = self._loop.run(self._fetch, deadline_s, True, False)
            if not fetched:
                return (NO_SHARD, RecordBatch()) if fetched is None else None
        return batch

    def read_batch_or_gap(
        self, records_max: int, *, wait_s: float | None = None
    ) -> tuple[int, RecordBatch | Gap] | None:
        """See ``dlog.shards.ShardedReader.read_batch_or_gap``."""
        self._reader._check_max(records_max, gaps=True)
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while (taken := self._take_gap() or self._take_batch(records_max)) is None:
            fetched = self._loop.run(self._fetch, deadline_s, True, True)
            if not fetched:
                return (NO_SHARD, RecordBatch()) if fetched is None else None
        return taken

    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[False] = ...
    ) -> Iterator[tuple[int, RecordBatch]]: ...
    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[True]
    ) -> Iterator[tuple[int, RecordBatch | Gap]]: ...
    def batches(
        self, records_max: int = BATCH_RECORDS, *, gaps: bool = False
    ) -> Iterator[tuple[int, RecordBatch | Gap]]:
        """See ``dlog.shards.ShardedReader.batches``."""
        read = self.read_batch_or_gap if gaps else self.read_batch
        while (taken := read(records_max)) is not None:
            yield taken

    @property
    def ends(self) -> dict[int, DLSN]:
        """See ``dlog.shards.ShardedReader.ends``."""
        return self._reader.ends

    @property
    def positions(self) -> dict[int, DLSN]:
        """See ``dlog.shards.ShardedReader.positions``."""
        starts = {shard: start for shard, start in self._reader._starts.items() if start is not None}
        with self._guard:
            return {**starts, **self._returned()}

    def commit(self) -> dict[int, Cursor]:
        """See ``dlog.shards.ShardedReader.commit``."""
        with self._guard:
            returned = self._returned()
        return self._loop.run(self._reader.commit_to, returned)

    def commit_to(self, positions: Mapping[int, DLSN]) -> dict[int, Cursor]:
        """See ``dlog.shards.ShardedReader.commit_to``."""
        check_returned(self.name, positions, self.positions)
        return self._loop.run(self._reader.commit_to, positions)

    def commit_shard(self, shard: int, last: DLSN) -> Cursor:
        """See ``dlog.shards.ShardedReader.commit_shard``."""
        with self._guard:
            position = position_behind(self.name, shard, last, self._returned(), self._gaps)
        return self._loop.run(self._reader.commit_to, {shard: position})[shard]

    def _returned(self) -> dict[int, DLSN]:
        """The positions after what was returned, by shard. The caller holds the guard."""
        if left := length_hint(self._ahead):
            if left == len(self._pairs):
                return dict(self._before)
            return {**self._before, self._shard: self._pairs[-left - 1][1].dlsn.next_slot()}
        if self._index < len(self._batch):
            if not self._index:
                return dict(self._before)
            return {**self._before, self._shard: self._batch.dlsn(self._index - 1).next_slot()}
        return dict(self._after if self._missing is None else self._before)

    def _take_batch(self, records_max: int) -> tuple[int, RecordBatch] | None:
        if pairs := list(islice(self._ahead, records_max)):
            return pairs[0][0], RecordBatch.of([record for _, record in pairs])
        with self._guard:
            batch = self._batch[self._index : self._index + records_max]
            self._index += len(batch)
            return (self._shard, batch) if batch else None

    def _take_gap(self) -> tuple[int, Gap] | None:
        with self._guard:
            if self._missing is None:
                return None
            gap, self._missing = self._missing.gap, None
            self._gaps[self._shard] = gap
            return self._shard, gap

    @property
    def _has_turn(self) -> bool:
        return length_hint(self._ahead) > 0 or self._index < len(self._batch) or self._missing is not None

    async def _fetch(self, deadline_s: float | None, columns: bool, gaps: bool) -> bool | None:
        """In the loop: fetch a turn; False at the end of all shards, None if none came in time.

        There is one fetch at a time, so that records keep their order.
        """

        def left_s() -> float:
            return math.inf if deadline_s is None else max(0.0, deadline_s - time.monotonic())

        with trio.move_on_after(left_s()):
            while self._fetching is not None:
                await self._fetching.wait()
        if (missing := self._missing) is not None and not gaps:
            raise missing.error
        if self._has_turn:
            return True
        if self._fetching is not None:
            return None
        self._fetching = trio.Event()
        try:
            wait_s = None if deadline_s is None else left_s()
            ready = await self._reader._refill(columns=columns, wait_s=wait_s, gaps=gaps)
            if ready:
                self._move(columns)
            return ready
        finally:
            self._fetching.set()
            self._fetching = None

    def _move(self, columns: bool) -> None:
        """In the loop: move a turn from the asynchronous reader to here, in one step."""
        shard, missing = self._reader._shard, self._reader._missing
        if missing is not None:
            self._reader._take_gap()
        records = self._reader._take_records(BATCH_RECORDS)
        with self._guard:
            self._before, self._after = self._after, self._reader._returned()
            self._shard, self._missing = shard, missing
            if columns:
                self._batch, self._index = RecordBatch.of(records), 0
            else:
                self._pairs = [(shard, record) for record in records]
                self._ahead = iter(self._pairs)

    def close(self) -> None:
        """End the reader. Idempotent."""
        self._held.release()

    def __enter__(self) -> ShardedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)
