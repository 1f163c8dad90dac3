"""Sharded logs for asyncio.

A turn of records is fetched at once. It stays in the object of trio until it is taken, so a cancelled call
loses no record.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Literal, overload

from dlog.aio.bridge import Bridge
from dlog.aio.face import Face, called, closing, forwarded, opened
from dlog.aio.writer import LogWriter, Pending
from dlog.errors import RecordOutcome, WriteError
from dlog.format.record import Record
from dlog.read.gaps import Gap
from dlog.read.log_reader import BATCH_RECORDS
from dlog.read.record_batch import RecordBatch
from dlog.shards import creation, reader, writer
from dlog.shards.layout import ShardedPosition, shard_of
from dlog.shards.reader import NO_SHARD
from dlog.shards.reader import ShardedReader as TrioReader
from dlog.shards.writer import ShardedWriter as TrioWriter
from dlog.write.health import WriterState
from dlog.write.log_writer import Headers
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from ledger.runtime.tasks.face import Shown, attribute, described, shown
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN

Buffer = bytes | bytearray | memoryview


class ShardedPending(ProcessBound):
    """See ``dlog.shards.ShardedPending``."""

    __slots__ = ("_pending", "shard")

    def __init__(self, shard: int, pending: Pending) -> None:
        self.shard, self._pending = shard, pending

    def __repr__(self) -> str:
        return f"<ShardedPending in shard {self.shard}: {self._pending!r}>"

    def __await__(self) -> Generator[object, object, ShardedPosition]:
        return ShardedPosition(self.shard, (yield from self._pending.__await__()))

    @property
    @described(writer.ShardedPending.outcome)
    def outcome(self) -> RecordOutcome:
        return self._pending.outcome


class ShardedWriter(Face[TrioWriter]):
    """See ``dlog.shards.ShardedWriter``. Made by ``open_sharded_writer``."""

    def __init__(self, bridge: Bridge, inner: TrioWriter) -> None:
        super().__init__(bridge, inner)
        self._writers = tuple(LogWriter(bridge, each) for each in inner.writers)
        self._stores_keys = inner.stores_keys

    name: Shown[str] = attribute("name", "The name of the sharded log.")
    stores_keys: Shown[bool] = shown(TrioWriter.stores_keys)
    state: Shown[WriterState] = shown(TrioWriter.state)
    failure: Shown[WriteError | None] = shown(TrioWriter.failure)
    oldest_pending_s: Shown[float] = shown(TrioWriter.oldest_pending_s)
    health = called(TrioWriter.health)

    append_many = forwarded(TrioWriter.append_many)
    wait_capacity = forwarded(TrioWriter.wait_capacity)
    flush = forwarded(TrioWriter.flush)
    reopen = forwarded(TrioWriter.reopen)
    aclose = closing(TrioWriter.aclose)

    @property
    @described(TrioWriter.writers)
    def writers(self) -> Sequence[LogWriter]:
        return self._writers

    @described(TrioWriter.append)
    async def append(
        self,
        key: Buffer,
        payload: Buffer,
        *,
        txid: int | None = None,
        headers: Headers | None = None,
    ) -> ShardedPosition:
        shard = shard_of(key, len(self._writers))
        stored = as_payload(key) if self._stores_keys else None
        dlsn = await self._writers[shard].append(payload, txid=txid, key=stored, headers=headers)
        return ShardedPosition(shard, dlsn)

    @described(TrioWriter.submit)
    def submit(
        self,
        key: Buffer,
        payload: Buffer,
        *,
        txid: int | None = None,
        headers: Headers | None = None,
    ) -> ShardedPending:
        shard = shard_of(key, len(self._writers))
        stored = key if self._stores_keys else None
        pending = self._writers[shard].submit(payload, txid=txid, key=stored, headers=headers)
        return ShardedPending(shard, pending)


class ShardedReader(Face[TrioReader]):
    """See ``dlog.shards.ShardedReader``. Made by ``open_sharded_reader``."""

    def __init__(self, bridge: Bridge, inner: TrioReader) -> None:
        super().__init__(bridge, inner)
        self._take_record = inner.take_record

    name: Shown[str] = attribute("name", "The name of the sharded log.")
    gaps: Shown[bool] = attribute("gaps", "It was opened with ``gaps=True``.")
    ends: Shown[dict[int, DLSN]] = shown(TrioReader.ends)
    positions: Shown[dict[int, DLSN]] = shown(TrioReader.positions)
    returned: Shown[dict[int, DLSN]] = shown(TrioReader.returned)

    commit_to = forwarded(TrioReader.commit_to)
    commit_shard = forwarded(TrioReader.commit_shard)

    def __aiter__(self) -> ShardedReader:
        return self

    async def __anext__(self) -> tuple[int, Record]:
        while (taken := self._take_record()) is None:
            if not await self._bridge.run(self._inner.refill, columns=False):
                raise StopAsyncIteration
        return taken

    @described(TrioReader.read_batch)
    async def read_batch(
        self, records_max: int, *, wait_s: float | None = None
    ) -> tuple[int, RecordBatch] | None:
        self._inner.check_max(records_max)
        deadline_s = self._deadline_s(wait_s)
        while (batch := self._inner.take_batch(records_max)) is None:
            ready = await self._refill(deadline_s, gaps=False)
            if not ready:
                return (NO_SHARD, RecordBatch()) if ready is None else None
        return batch

    @described(TrioReader.read_batch_or_gap)
    async def read_batch_or_gap(
        self, records_max: int, *, wait_s: float | None = None
    ) -> tuple[int, RecordBatch | Gap] | None:
        self._inner.check_max(records_max, gaps=True)
        deadline_s = self._deadline_s(wait_s)
        while (taken := self._inner.take_gap() or self._inner.take_batch(records_max)) is None:
            ready = await self._refill(deadline_s, gaps=True)
            if not ready:
                return (NO_SHARD, RecordBatch()) if ready is None else None
        return taken

    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[False] = ...
    ) -> AsyncIterator[tuple[int, RecordBatch]]: ...
    @overload
    def batches(
        self, records_max: int = ..., *, gaps: Literal[True]
    ) -> AsyncIterator[tuple[int, RecordBatch | Gap]]: ...
    @described(TrioReader.batches)
    async def batches(
        self, records_max: int = BATCH_RECORDS, *, gaps: bool = False
    ) -> AsyncIterator[tuple[int, RecordBatch | Gap]]:
        while True:
            taken = await (self.read_batch_or_gap(records_max) if gaps else self.read_batch(records_max))
            if taken is None:
                return
            yield taken

    @described(TrioReader.commit)
    async def commit(self) -> dict[int, Cursor]:
        # Found now: other tasks may take records before the call begins in trio.
        return await self._bridge.run(self._inner.commit_to, self._inner.returned)

    def _deadline_s(self, wait_s: float | None) -> float:
        self._bridge.check_caller()
        return math.inf if wait_s is None else asyncio.get_running_loop().time() + wait_s

    async def _refill(self, deadline_s: float, *, gaps: bool) -> bool | None:
        left_s = deadline_s - asyncio.get_running_loop().time()
        wait_s = None if left_s == math.inf else max(0.0, left_s)
        return await self._bridge.run(self._inner.refill, columns=True, wait_s=wait_s, gaps=gaps)


create_sharded_log = forwarded(creation.create_sharded_log)
shard_names = forwarded(creation.shard_names)
delete_sharded_log = forwarded(creation.delete_sharded_log)
open_sharded_writer = opened(writer.open_sharded_writer, ShardedWriter)
open_sharded_reader = opened(reader.open_sharded_reader, ShardedReader)
