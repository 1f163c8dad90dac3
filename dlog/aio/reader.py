"""A reader for asyncio: an asynchronous iterator of records."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Literal, overload

from dlog.aio.bridge import Bridge
from dlog.aio.face import Face, called, closing
from dlog.format.record import Record
from dlog.read.gaps import Gap, Missing, check_gaps
from dlog.read.log_reader import BATCH_RECORDS, read_turn
from dlog.read.log_reader import LogReader as TrioReader
from dlog.read.record_batch import RecordBatch, Untaken
from ledger.runtime.tasks.face import Shown, attribute, described, shown
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN

RECORDS_AT_ONCE = 1024  # an iterating reader fetches this many at once


class LogReader(Face[TrioReader]):
    """See ``dlog.LogReader``. Made by ``Namespace.open_reader``. One task reads at a time; others wait."""

    def __init__(self, bridge: Bridge, inner: TrioReader) -> None:
        super().__init__(bridge, inner)
        self._untaken = Untaken()  # fetched
        self._next: Iterator[Record] = iter(())  # ``_untaken.records``
        self._turn = asyncio.Lock()
        self._gap: Gap | None = None  # fetched and not returned yet

    log: Shown[str] = attribute("log", "The log's name.")
    gaps: Shown[bool] = attribute("gaps", "It was opened with ``gaps=True``.")
    cursor: Shown[Cursor | None] = shown(TrioReader.cursor)
    idle_s: Shown[float] = shown(TrioReader.idle_s)

    aclose = closing(TrioReader.aclose)
    resume_after = called(TrioReader.resume_after)

    @property
    @described(TrioReader.position)
    def position(self) -> DLSN | None:
        return self._untaken.first or self._inner.position

    @property
    def is_sealed(self) -> bool:
        """True once all records of a sealed log were returned: no more will come."""
        return self._inner.is_sealed and not self._untaken

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> Record:
        while True:
            try:
                for record in self._next:
                    return record
            except MemoryError:
                self._hold(self._untaken.rest(again=True))
                raise
            if not self._untaken:
                read = partial(read_turn, self._inner, columns=False, gaps=False)
                if not await self._fetch(read, RECORDS_AT_ONCE, None):
                    raise StopAsyncIteration
            self._next = self._untaken.begin()

    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[False] = ...
    ) -> AsyncIterator[RecordBatch]: ...
    @overload
    def batches(self, records_max: int = ..., *, gaps: Literal[True]) -> AsyncIterator[RecordBatch | Gap]: ...
    @described(TrioReader.batches)
    async def batches(
        self, records_max: int = BATCH_RECORDS, *, gaps: bool = False
    ) -> AsyncIterator[RecordBatch | Gap]:
        read = self.read_batch_or_gap if gaps else self.read_batch
        while (batch := await read(records_max)) is not None:
            yield batch

    @described(TrioReader.read_batch_or_gap)
    async def read_batch_or_gap(
        self, records_max: int, *, wait_s: float | None = None
    ) -> RecordBatch | Gap | None:
        self._bridge.check_caller()
        check_gaps(f"log {self.log!r}", self.gaps)
        _check_max(records_max)
        if self._gap is None and not self._untaken:
            fetched = await self._fetch(self._inner.read_batch_or_gap, records_max, wait_s, gaps=True)
            if fetched is None:
                return None
        gap, self._gap = self._gap, None
        return gap or RecordBatch.of(self._take(records_max))

    @described(TrioReader.read_batch)
    async def read_batch(self, records_max: int, *, wait_s: float | None = None) -> RecordBatch | None:
        self._bridge.check_caller()
        _check_max(records_max)
        if not self._untaken and await self._fetch(self._inner.read_batch, records_max, wait_s) is None:
            return None
        return RecordBatch.of(self._take(records_max))

    @described(TrioReader.read_records)
    async def read_records(self, records_max: int, *, wait_s: float | None = None) -> list[Record] | None:
        self._bridge.check_caller()
        _check_max(records_max)
        if not self._untaken and await self._fetch(self._inner.read_records, records_max, wait_s) is None:
            return None
        return list(self._take(records_max))

    @described(TrioReader.commit)
    async def commit(self, last: DLSN | None = None) -> Cursor | None:
        if last is not None and ((here := self.position) is None or last >= here):
            raise ValueError(f"{last} was not returned yet, so it cannot be committed")
        return await self.commit_to(self.position if last is None else self._inner.resume_after(last))

    @described(TrioReader.commit_to)
    async def commit_to(self, position: DLSN | None) -> Cursor | None:
        # The position of the inner reader is that after the records fetched ahead.
        if position is not None and ((here := self.position) is None or position > here):
            raise ValueError(f"the reader has not come to {position} yet")
        return await self._bridge.run(self._inner.commit_to, position)

    def _take(self, records_max: int) -> Sequence[Record]:
        records = self._untaken.take(records_max)
        self._next = self._untaken.records
        return records

    def _hold(self, records: Sequence[Record]) -> None:
        self._untaken, self._next = Untaken(records), iter(())

    async def _fetch(
        self,
        read: Callable[..., Awaitable[Sequence[Record] | Gap | Missing | None]],
        records_max: int,
        wait_s: float | None,
        *,
        gaps: bool = False,
    ) -> bool | None:
        """Fetch records, or a gap; False if none came in time, None at the end."""
        self._bridge.check_caller()
        deadline_s = math.inf if wait_s is None else asyncio.get_running_loop().time() + wait_s
        try:
            async with asyncio.timeout(wait_s):
                await self._turn.acquire()
        except TimeoutError:
            return False
        try:
            if self._untaken or (gaps and self._gap is not None):
                return True  # another task has fetched them
            left_s = deadline_s - asyncio.get_running_loop().time()
            return await self._bridge.run(
                self._fetch_in_trio, read, records_max, None if wait_s is None else max(0.0, left_s)
            )
        finally:
            self._turn.release()

    async def _fetch_in_trio(
        self,
        read: Callable[..., Awaitable[Sequence[Record] | Gap | Missing | None]],
        records_max: int,
        wait_s: float | None,
    ) -> bool | None:
        found = await read(records_max, wait_s=wait_s)
        # Stored here, so that a cancelled call loses no record.
        if isinstance(found, Gap):
            self._gap = found
            return True
        assert not isinstance(found, Missing)  # this reader asks for a gap as such
        self._hold(found or ())
        return None if found is None else len(found) > 0


def _check_max(records_max: int) -> None:
    if records_max < 1:
        raise ValueError(f"records_max={records_max}: at least 1")
