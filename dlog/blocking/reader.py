"""A reader without ``async``: an iterator of records.

Always: what is fetched and not returned yet is one value, which is replaced in one step. So the loop takes no
lock, and a signal handler may read while it interrupts a read of the same reader.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import trio

from dlog.errors import NamespaceClosedError
from dlog.format.record import Record
from dlog.read.gaps import Gap, Missing, check_gaps
from dlog.read.log_reader import BATCH_RECORDS, read_turn
from dlog.read.log_reader import LogReader as TrioReader
from dlog.read.record_batch import RecordBatch, Untaken
from ledger.runtime.tasks.blocking_face import HeldFace
from ledger.runtime.tasks.face import Shown, attribute, described, shown
from ledger.runtime.tasks.forks import call_in_child
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN

RECORDS_AT_ONCE = 8192


_NONE: Iterator[Record] = iter(())
_FAILED: Iterator[Record] = iter([])  # instead of an iterator that had no memory for its next record


class _Left(NamedTuple):
    """Records that are fetched and not returned yet."""

    untaken: Untaken  # never ``take`` from it: it is replaced
    position: DLSN | None  # after all that is fetched


class LogReader(HeldFace[TrioReader]):
    """See ``dlog.LogReader``: an iterator of records. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._guard = threading.RLock()  # of threads that replace ``_left``; the loop never takes it
        self._left = _Left(Untaken(), self._inner.position)  # the loop replaces it only when it is empty
        self._ahead = _NONE  # ``_left.untaken.records``
        self._gap: list[Gap] = []  # fetched and not returned yet, at most one
        self._fetching: trio.Event | None = None  # set when the fetch in progress ends
        call_in_child(self, LogReader._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Free the guard: called in a forked child, whose next fetch raises."""
        self._guard = threading.RLock()

    log: Shown[str] = attribute("log", "The log's name.")
    gaps: Shown[bool] = attribute("gaps", "It was opened with ``gaps=True``.")
    cursor: Shown[Cursor | None] = shown(TrioReader.cursor)
    idle_s: Shown[float] = shown(TrioReader.idle_s)

    @property
    @described(TrioReader.position)
    def position(self) -> DLSN | None:
        if self._fetching is not None:
            # A fetch moves records from the reader to this object. Between two steps of the loop it has moved
            # all of them or none.
            with suppress(NamespaceClosedError):
                return self._loop.run(self._position_in_loop)
        left = self._left
        return left.untaken.first or left.position

    @described(TrioReader.commit)
    def commit(self, last: DLSN | None = None) -> Cursor | None:
        if last is not None and ((here := self.position) is None or last >= here):
            raise ValueError(f"{last} was not returned yet, so it cannot be committed")
        return self.commit_to(self.position if last is None else self._inner.resume_after(last))

    @described(TrioReader.commit_to)
    def commit_to(self, position: DLSN | None) -> Cursor | None:
        # The asynchronous reader's position is that of the records fetched ahead.
        if position is not None and ((here := self.position) is None or position > here):
            raise ValueError(f"the reader has not come to {position} yet")
        return self._loop.run(self._inner.commit_to, position)

    @property
    def is_sealed(self) -> bool:
        """True once all records of a sealed log were returned: no more will come."""
        return self._inner.is_sealed and not self._left.untaken

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        while True:
            try:
                for record in self._ahead:
                    return record
            except MemoryError:
                # Before any call: another thread or a signal handler may take records there.
                self._ahead = _FAILED
                with self._guard:
                    self._settle()
                raise
            with self._guard:
                if (before := self._settle()).untaken:
                    untaken = Untaken(before.untaken.whole)
                    untaken.begin()
                    self._replace(before, _Left(untaken, before.position))
                    continue
            read = partial(read_turn, self._inner, columns=False, gaps=False)
            if not self._loop.run(self._fetch, read, RECORDS_AT_ONCE, None):
                raise StopIteration

    @overload
    def batches(self, records_max: int = ..., *, gaps: Literal[False] = ...) -> Iterator[RecordBatch]: ...
    @overload
    def batches(self, records_max: int = ..., *, gaps: Literal[True]) -> Iterator[RecordBatch | Gap]: ...
    @described(TrioReader.batches)
    def batches(self, records_max: int = BATCH_RECORDS, *, gaps: bool = False) -> Iterator[RecordBatch | Gap]:
        read = self.read_batch_or_gap if gaps else self.read_batch
        while (batch := read(records_max)) is not None:
            yield batch

    @described(TrioReader.read_batch_or_gap)
    def read_batch_or_gap(self, records_max: int, *, wait_s: float | None = None) -> RecordBatch | Gap | None:
        check_gaps(f"log {self.log!r}", self.gaps)
        _check_max(records_max)
        deadline_s = _deadline_s(wait_s)
        while (taken := self._take_gap() or self._take(records_max)) is None:
            fetched = self._loop.run(
                self._fetch, self._inner.read_batch_or_gap, records_max, deadline_s, gaps=True
            )
            if not fetched:
                return RecordBatch() if fetched is False else None
        return taken if isinstance(taken, Gap) else RecordBatch.of(taken)

    @described(TrioReader.read_batch)
    def read_batch(self, records_max: int, *, wait_s: float | None = None) -> RecordBatch | None:
        _check_max(records_max)
        deadline_s = _deadline_s(wait_s)
        while (records := self._take(records_max)) is None:
            fetched = self._loop.run(self._fetch, self._inner.read_batch, records_max, deadline_s)
            if not fetched:
                return RecordBatch() if fetched is False else None
        return RecordBatch.of(records)

    @described(TrioReader.read_records)
    def read_records(self, records_max: int, *, wait_s: float | None = None) -> list[Record] | None:
        _check_max(records_max)
        deadline_s = _deadline_s(wait_s)
        while (records := self._take(records_max)) is None:
            fetched = self._loop.run(self._fetch, self._inner.read_records, records_max, deadline_s)
            if not fetched:
                return [] if fetched is False else None
        return list(records)

    @described(TrioReader.resume_after)
    def resume_after(self, last: DLSN) -> DLSN:
        return self._inner.resume_after(last)

    def _take(self, records_max: int) -> Sequence[Record] | None:
        with self._guard:
            while (before := self._settle()).untaken:
                whole = before.untaken.whole
                taken, rest = whole[:records_max], whole[records_max:]
                if self._replace(before, _Left(Untaken(rest), before.position)):
                    return taken
        return None

    def _settle(self) -> _Left:
        """Have no thread and no signal handler take records without the guard; the caller has it."""
        while True:
            before, failed = self._left, self._ahead is _FAILED
            if not (failed or before.untaken.is_begun):
                return before
            if not failed:
                self._ahead = _NONE  # now what is left can be counted
            after = _Left(Untaken(before.untaken.rest(again=failed)), before.position)
            self._replace(before, after)

    def _replace(self, before: _Left, after: _Left) -> bool:
        """Replace what is left, unless a signal handler has done so; the caller has the guard."""
        if self._left is not before:
            return False
        self._left = after  # no signal can come after the look: Python calls handlers at calls and loops
        self._ahead = after.untaken.records
        return True

    def _take_gap(self) -> Gap | None:
        try:
            return self._gap.pop()
        except IndexError:
            return None

    async def _fetch(
        self,
        read: Callable[..., Awaitable[Sequence[Record] | Gap | Missing | None]],
        records_max: int,
        deadline_s: float | None,
        *,
        gaps: bool = False,
    ) -> bool | None:
        """In the loop: fetch records, or a gap; False if none came in time, None at the end.

        They are stored in this object. So a later call returns them if the calling thread is interrupted.
        There is one fetch at a time, so that records keep their order.
        """

        def left_s() -> float:
            return math.inf if deadline_s is None else max(0.0, deadline_s - time.monotonic())

        with trio.move_on_after(left_s()):
            while self._fetching is not None:
                await self._fetching.wait()
        if self._left.untaken or self._ahead is _FAILED or (gaps and self._gap):
            return True  # decided by one look: another thread may take the record before a second one
        if self._fetching is not None:
            return False
        self._fetching = trio.Event()
        try:
            found = await read(records_max, wait_s=None if deadline_s is None else left_s())
            if isinstance(found, Gap):
                self._gap.append(found)
                return True
            assert not isinstance(found, Missing)  # this reader asks for a gap as such
            if found is not None:
                self._left = _Left(Untaken(found), self._inner.position)
            return None if found is None else len(found) > 0
        finally:
            if not self._left.untaken:
                self._left = _Left(Untaken(), self._inner.position)
            self._fetching.set()
            self._fetching = None

    async def _position_in_loop(self) -> DLSN | None:
        await trio.lowlevel.checkpoint()
        return self._left.untaken.first or self._inner.position


def _check_max(records_max: int) -> None:
    if records_max < 1:
        raise ValueError(f"records_max={records_max}: at least 1")


def _deadline_s(wait_s: float | None) -> float | None:
    return None if wait_s is None else time.monotonic() + wait_s
