"""A reader of a sharded log without ``async``.

A turn of records of one shard is fetched at once from the loop's thread, and kept here until it is taken, so
an interrupted call loses no record. The rest of a turn is one value, as in ``dlog.blocking.reader``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import length_hint
from typing import Any, Literal, NamedTuple, overload

import trio

from dlog.format.record import Record
from dlog.read.gaps import Gap, Missing
from dlog.read.log_reader import BATCH_RECORDS
from dlog.read.record_batch import RecordBatch
from dlog.shards.reader import NO_SHARD, Turn, check_returned, position_behind
from dlog.shards.reader import ShardedReader as TrioReader
from ledger.runtime.tasks.blocking_face import HeldFace
from ledger.runtime.tasks.face import Shown, attribute, described, shown
from ledger.runtime.tasks.forks import call_in_child
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN


class _LeftTurn(NamedTuple):
    """The pairs, columns or gap of one turn that are fetched and not returned yet."""

    shard: int
    before: dict[int, DLSN]  # after what was returned before, by shard
    after: dict[int, DLSN]  # and after this turn
    pairs: list[tuple[int, Record]]
    ahead: Iterator[tuple[int, Record]]  # of ``pairs``; threads and interrupts cannot divide its steps
    batch: RecordBatch
    begin: int = 0  # of the first record of ``batch`` that is left
    missing: Missing | None = None

    @property
    def has_turn(self) -> bool:
        return length_hint(self.ahead) > 0 or self.begin < len(self.batch) or self.missing is not None

    @property
    def returned(self) -> dict[int, DLSN]:
        """The positions after what was returned, by shard."""
        if left := length_hint(self.ahead):
            if left == len(self.pairs):
                return dict(self.before)
            return {**self.before, self.shard: self.pairs[-left - 1][1].dlsn.next_slot()}
        if self.begin < len(self.batch):
            if not self.begin:
                return dict(self.before)
            return {**self.before, self.shard: self.batch.dlsn(self.begin - 1).next_slot()}
        return dict(self.after if self.missing is None else self.before)

    def as_pairs(self) -> _LeftTurn:
        """The same with objects in place of columns."""
        pairs = [(self.shard, record) for record in self.batch[self.begin :]]
        return _LeftTurn(self.shard, self.returned, self.after, pairs, iter(pairs), RecordBatch())

    def without(self, records: int) -> _LeftTurn:
        """The same without the first records of the columns."""
        return self._replace(begin=self.begin + records)

    def without_gap(self) -> _LeftTurn:
        return self._replace(missing=None)


class ShardedReader(HeldFace[TrioReader]):
    """See ``dlog.shards.ShardedReader``: an iterator of (shard, record). Made by ``open_sharded_reader``.

    Closed by ``close`` or the end of a ``with`` block. Several threads may share it.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._guard = threading.RLock()  # of threads that change ``_left``; the loop never takes it
        self._left = _LeftTurn(NO_SHARD, {}, {}, [], iter([]), RecordBatch())

        self._ahead = self._left.ahead
        self._starts = self._inner.positions
        self._gaps: dict[int, Gap] = {}  # the last one returned, by shard
        self._fetching: trio.Event | None = None  # set when the fetch in progress ends
        call_in_child(self, ShardedReader._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Free the guard: called in a forked child, whose next fetch raises."""
        self._guard = threading.RLock()

    name: Shown[str] = attribute("name", "The name of the sharded log.")
    gaps: Shown[bool] = attribute("gaps", "It was opened with ``gaps=True``.")
    ends: Shown[dict[int, DLSN]] = shown(TrioReader.ends)

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self

    def __next__(self) -> tuple[int, Record]:
        while True:
            for pair in self._ahead:
                return pair
            with self._guard:
                left = self._left
                if left.begin < len(left.batch):
                    self._replace(left, left.as_pairs())
                    continue
            if not self._loop.run(self._fetch, None, False, False):
                raise StopIteration

    @described(TrioReader.read_batch)
    def read_batch(self, records_max: int, *, wait_s: float | None = None) -> tuple[int, RecordBatch] | None:
        self._inner.check_max(records_max)
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while (batch := self._take_batch(records_max)) is None:
            fetched = self._loop.run(self._fetch, deadline_s, True, False)
            if not fetched:
                return (NO_SHARD, RecordBatch()) if fetched is None else None
        return batch

    @described(TrioReader.read_batch_or_gap)
    def read_batch_or_gap(
        self, records_max: int, *, wait_s: float | None = None
    ) -> tuple[int, RecordBatch | Gap] | None:
        self._inner.check_max(records_max, gaps=True)
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
    @described(TrioReader.batches)
    def batches(
        self, records_max: int = BATCH_RECORDS, *, gaps: bool = False
    ) -> Iterator[tuple[int, RecordBatch | Gap]]:
        read = self.read_batch_or_gap if gaps else self.read_batch
        while (taken := read(records_max)) is not None:
            yield taken

    @property
    @described(TrioReader.positions)
    def positions(self) -> dict[int, DLSN]:
        return {**self._starts, **self.returned}

    @property
    @described(TrioReader.returned)
    def returned(self) -> dict[int, DLSN]:
        return self._left.returned

    @described(TrioReader.commit)
    def commit(self) -> dict[int, Cursor]:
        return self._loop.run(self._inner.commit_to, self.returned)

    @described(TrioReader.commit_to)
    def commit_to(self, positions: Mapping[int, DLSN]) -> dict[int, Cursor]:
        check_returned(self.name, positions, self.positions)
        return self._loop.run(self._inner.commit_to, positions)

    @described(TrioReader.commit_shard)
    def commit_shard(self, shard: int, last: DLSN) -> Cursor:
        position = position_behind(self.name, shard, last, self.returned, self._gaps)
        return self._loop.run(self._inner.commit_to, {shard: position})[shard]

    def _take_batch(self, records_max: int) -> tuple[int, RecordBatch] | None:
        if pairs := list(islice(self._ahead, records_max)):
            return pairs[0][0], RecordBatch.of([record for _, record in pairs])
        with self._guard:
            while (left := self._left).begin < len(left.batch):
                batch = left.batch[left.begin : left.begin + records_max]
                if self._replace(left, left.without(len(batch))):
                    return left.shard, batch
        return None

    def _take_gap(self) -> tuple[int, Gap] | None:
        with self._guard:
            while (missing := (left := self._left).missing) is not None:
                if self._replace(left, left.without_gap()):
                    self._gaps[left.shard] = missing.gap
                    return left.shard, missing.gap
        return None

    def _replace(self, before: _LeftTurn, after: _LeftTurn) -> bool:
        """Replace what is left, unless a signal handler has done so; the caller has the guard."""
        if self._left is not before:
            return False
        self._left = after  # no signal can come after the look: Python calls handlers at calls and loops
        self._ahead = after.ahead
        return True

    async def _fetch(self, deadline_s: float | None, columns: bool, gaps: bool) -> bool | None:
        """In the loop: fetch a turn; False at the end of all shards, None if none came in time.

        There is one fetch at a time, so that records keep their order.
        """

        def left_s() -> float:
            return math.inf if deadline_s is None else max(0.0, deadline_s - time.monotonic())

        with trio.move_on_after(left_s()):
            while self._fetching is not None:
                await self._fetching.wait()
        if (missing := self._left.missing) is not None and not gaps:
            raise missing.error
        if self._left.has_turn:
            return True
        if self._fetching is not None:
            return None
        self._fetching = trio.Event()
        try:
            wait_s = None if deadline_s is None else left_s()
            ready = await self._inner.refill(columns=columns, wait_s=wait_s, gaps=gaps)
            if ready:
                self._begin(self._inner.take_rest(), columns)
            return ready
        finally:
            self._fetching.set()
            self._fetching = None

    def _begin(self, turn: Turn, columns: bool) -> None:
        """In the loop: begin a turn, which the asynchronous reader gave in one step."""
        before, after, batch = self._left.after, self._inner.returned, RecordBatch()
        pairs: list[tuple[int, Record]] = []
        if columns:
            batch = RecordBatch.of(turn.records)
        else:
            pairs = [(turn.shard, record) for record in turn.records]
        self._left = _LeftTurn(turn.shard, before, after, pairs, iter(pairs), batch, missing=turn.missing)
        self._ahead = self._left.ahead
