"""A reader for asyncio: an asynchronous iterator of records."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Literal, overload

from dlog.aio.bridge import Bridge
from dlog.errors import DLogError
from dlog.format.record import Record
from dlog.read import log_reader
from dlog.read.gaps import Gap
from dlog.read.read_ahead import ReadAhead
from dlog.read.record_batch import RecordBatch
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN

RECORDS_AT_ONCE = 1024  # an iterating reader fetches this many at once


class LogReader:
    """See ``dlog.LogReader``. Made by ``Namespace.open_reader``. One task reads at a time; others wait."""

    def __init__(self, bridge: Bridge, inner: log_reader.LogReader) -> None:
        self._bridge, self._inner = bridge, inner
        self._records: Sequence[Record] = ()  # fetched; a RecordBatch if decoded to columns
        self._index = 0  # of the first one that is not returned yet
        self._turn = asyncio.Lock()
        self._gap: Gap | None = None  # found and not returned yet

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    @property
    def position(self) -> DLSN | None:
        """See ``dlog.LogReader.position``."""
        return self._records[self._index].dlsn if self._has_records else self._inner.position

    @property
    def cursor(self) -> Cursor | None:
        """See ``dlog.LogReader.cursor``."""
        return self._inner.cursor

    @property
    def idle_s(self) -> float:
        """See ``dlog.LogReader.idle_s``."""
        return self._inner.idle_s

    @property
    def is_sealed(self) -> bool:
        """See ``dlog.LogReader.is_sealed``."""
        return self._inner.is_sealed and not self._has_records

    def __aiter__(self) -> LogReader:
        return self

    async def __anext__(self) -> Record:
        while not self._has_records:
            if not await self._fetch(RECORDS_AT_ONCE, None, columns=False):
                raise StopAsyncIteration
        self._index += 1
        return self._records[self._index - 1]

    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[False] = ...
    ) -> AsyncIterator[RecordBatch]: ...
    @overload
    def batches(self, records_max: int = ..., *, gaps: Literal[True]) -> AsyncIterator[RecordBatch | Gap]: ...
    async def batches(
        self, records_max: int = log_reader.BATCH_RECORDS, *, gaps: bool = False
    ) -> AsyncIterator[RecordBatch | Gap]:
        """See ``dlog.LogReader.batches``."""
        read = self.read_batch_or_gap if gaps else self.read_batch
        while (batch := await read(records_max)) is not None:
            yield batch

    async def read_batch_or_gap(
        self, records_max: int, *, wait_s: float | None = None
    ) -> RecordBatch | Gap | None:
        """See ``dlog.LogReader.read_batch_or_gap``."""
        self._inner._checked_finder()
        while True:
            gap, self._gap = self._gap, None
            if gap is not None:
                return gap
            ahead = self._inner._ahead
            try:
                return await self.read_batch(records_max, wait_s=wait_s)
            except DLogError as exc:
                error = exc
            await self._bridge.run(self._find_gap_in_trio, ahead, error)

    async def _find_gap_in_trio(self, ahead: ReadAhead, error: DLogError) -> None:
        # Stored here, so that a cancelled call loses no gap.
        self._gap = await self._inner._gap_after(ahead, error) or self._gap

    async def read_batch(self, records_max: int, *, wait_s: float | None = None) -> RecordBatch | None:
        """See ``dlog.LogReader.read_batch``."""
        if records_max < 1:
            raise ValueError(f"records_max={records_max}: at least 1")
        if not self._has_records and await self._fetch(records_max, wait_s, columns=True) is None:
            return None
        records = self._records[self._index : self._index + records_max]
        self._index += len(records)
        return RecordBatch.of(records)

    async def commit(self, last: DLSN | None = None) -> Cursor | None:
        """See ``dlog.LogReader.commit``."""
        if last is not None and ((here := self.position) is None or last >= here):
            raise ValueError(f"{last} was not returned yet, so it cannot be committed")
        return await self.commit_to(self.position if last is None else self._inner._behind(last))

    async def commit_to(self, position: DLSN | None) -> Cursor | None:
        """See ``dlog.LogReader.commit_to``."""
        # The position of the inner reader is that after the records fetched ahead.
        if position is not None and ((here := self.position) is None or position > here):
            raise ValueError(f"the reader has not come to {position} yet")
        return await self._bridge.run(self._inner.commit_to, position)

    async def aclose(self) -> None:
        """See ``dlog.LogReader.aclose``."""
        await self._bridge.run(self._inner.aclose)

    @property
    def _has_records(self) -> bool:
        return self._index < len(self._records)

    async def _fetch(self, records_max: int, wait_s: float | None, *, columns: bool) -> bool | None:
        """Fetch records; False if none came in time, None at the end."""
        deadline_s = math.inf if wait_s is None else asyncio.get_running_loop().time() + wait_s
        try:
            async with asyncio.timeout(wait_s):
                await self._turn.acquire()
        except TimeoutError:
            return False
        try:
            if self._has_records:
                return True  # another task fetched them meanwhile
            left_s = deadline_s - asyncio.get_running_loop().time()
            return await self._bridge.run(
                self._fetch_in_trio, records_max, None if wait_s is None else max(0.0, left_s), columns
            )
        finally:
            self._turn.release()

    async def _fetch_in_trio(self, records_max: int, wait_s: float | None, columns: bool) -> bool | None:
        records = await self._inner._read_records(records_max, wait_s=wait_s, columns=columns)
        # Stored here, so that a cancelled call loses no record.
        self._records, self._index = records or (), 0
        return None if records is None else bool(records)
