"""Sharded logs for asyncio.

A turn of records is fetched at once. It stays in the object of trio until it is taken, so a cancelled call
loses no record.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, overload

from dlog.aio.bridge import Bridge, Held, passed
from dlog.aio.namespace import Namespace, closing
from dlog.aio.writer import LogWriter, Pending
from dlog.config import WriterConfig
from dlog.errors import RecordOutcome
from dlog.format.record import Record
from dlog.read.gaps import Gap
from dlog.read.log_reader import BATCH_RECORDS
from dlog.read.positioning import EARLIEST, Where
from dlog.read.record_batch import RecordBatch
from dlog.shards import creation, reader, writer
from dlog.shards.layout import ShardedPosition, shard_of
from dlog.shards.reader import NO_SHARD
from namespace.cursor_nodes import Cursor
from namespace.dlsn import DLSN

Buffer = bytes | bytearray | memoryview


class ShardedPending:
    """See ``dlog.shards.ShardedPending``."""

    __slots__ = ("_pending", "shard")

    def __init__(self, shard: int, pending: Pending) -> None:
        self.shard, self._pending = shard, pending

    def __repr__(self) -> str:
        return f"<ShardedPending in shard {self.shard}: {self._pending!r}>"

    def __await__(self) -> Generator[object, object, ShardedPosition]:
        return ShardedPosition(self.shard, (yield from self._pending.__await__()))

    @property
    def outcome(self) -> RecordOutcome:
        """See ``dlog.Pending.outcome``."""
        return self._pending.outcome


class ShardedWriter:
    """See ``dlog.shards.ShardedWriter``. Made by ``open_sharded_writer``."""

    def __init__(self, bridge: Bridge, inner: writer.ShardedWriter) -> None:
        self._bridge, self._inner = bridge, inner
        self.name = inner.name
        self._writers = tuple(LogWriter(bridge, each) for each in inner.writers)

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    @property
    def writers(self) -> Sequence[LogWriter]:
        """See ``dlog.shards.ShardedWriter.writers``."""
        return self._writers

    async def append(self, key: Buffer, payload: Buffer, *, txid: int | None = None) -> ShardedPosition:
        """See ``dlog.shards.ShardedWriter.append``."""
        shard = shard_of(key, len(self._writers))
        return ShardedPosition(shard, await self._writers[shard].append(payload, txid=txid))

    def submit(self, key: Buffer, payload: Buffer, *, txid: int | None = None) -> ShardedPending:
        """See ``dlog.shards.ShardedWriter.submit``."""
        shard = shard_of(key, len(self._writers))
        return ShardedPending(shard, self._writers[shard].submit(payload, txid=txid))

    append_many = passed(writer.ShardedWriter.append_many)
    wait_capacity = passed(writer.ShardedWriter.wait_capacity)
    flush = passed(writer.ShardedWriter.flush)
    reopen = passed(writer.ShardedWriter.reopen)
    aclose = passed(writer.ShardedWriter.aclose)


class ShardedReader:
    """See ``dlog.shards.ShardedReader``. Made by ``open_sharded_reader``."""

    def __init__(self, bridge: Bridge, inner: reader.ShardedReader) -> None:
        self._bridge, self._inner = bridge, inner
        self.name = inner.name

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    def __aiter__(self) -> ShardedReader:
        return self

    async def __anext__(self) -> tuple[int, Record]:
        inner = self._inner
        while inner._index == len(inner._records):
            if not await self._bridge.run(inner._refill, columns=False):
                raise StopAsyncIteration
        inner._index += 1
        return inner._shard, inner._records[inner._index - 1]

    async def read_batch(
        self, records_max: int, *, wait_s: float | None = None
    ) -> tuple[int, RecordBatch] | None:
        """See ``dlog.shards.ShardedReader.read_batch``."""
        self._inner._check_max(records_max)
        deadline_s = _deadline_s(wait_s)
        while (batch := self._inner._take_batch(records_max)) is None:
            ready = await self._refill(deadline_s, gaps=False)
            if not ready:
                return (NO_SHARD, RecordBatch()) if ready is None else None
        return batch

    async def read_batch_or_gap(
        self, records_max: int, *, wait_s: float | None = None
    ) -> tuple[int, RecordBatch | Gap] | None:
        """See ``dlog.shards.ShardedReader.read_batch_or_gap``."""
        self._inner._check_max(records_max, gaps=True)
        deadline_s = _deadline_s(wait_s)
        while (taken := self._inner._take_gap() or self._inner._take_batch(records_max)) is None:
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
    async def batches(
        self, records_max: int = BATCH_RECORDS, *, gaps: bool = False
    ) -> AsyncIterator[tuple[int, RecordBatch | Gap]]:
        """See ``dlog.shards.ShardedReader.batches``."""
        while True:
            taken = await (self.read_batch_or_gap(records_max) if gaps else self.read_batch(records_max))
            if taken is None:
                return
            yield taken

    @property
    def ends(self) -> dict[int, DLSN]:
        """See ``dlog.shards.ShardedReader.ends``."""
        return self._inner.ends

    @property
    def positions(self) -> dict[int, DLSN]:
        """See ``dlog.shards.ShardedReader.positions``."""
        return self._inner.positions

    async def commit(self) -> dict[int, Cursor]:
        """See ``dlog.shards.ShardedReader.commit``."""
        # Found now: other tasks may take records before the call begins in trio.
        return await self._bridge.run(self._inner.commit_to, self._inner._returned())

    commit_to = passed(reader.ShardedReader.commit_to)
    commit_shard = passed(reader.ShardedReader.commit_shard)

    async def _refill(self, deadline_s: float, *, gaps: bool) -> bool | None:
        left_s = deadline_s - asyncio.get_running_loop().time()
        wait_s = None if left_s == math.inf else max(0.0, left_s)
        return await self._bridge.run(self._inner._refill, columns=True, wait_s=wait_s, gaps=gaps)


def _deadline_s(wait_s: float | None) -> float:
    return math.inf if wait_s is None else asyncio.get_running_loop().time() + wait_s


async def create_sharded_log(
    namespace: Namespace, name: str, shards: int = 8, *, exist_ok: bool = False
) -> None:
    """See ``dlog.shards.create_sharded_log``."""
    await namespace._bridge.run(
        creation.create_sharded_log, namespace._inner, name, shards, exist_ok=exist_ok
    )


async def shard_names(namespace: Namespace, name: str) -> list[str]:
    """See ``dlog.shards.shard_names``."""
    return await namespace._bridge.run(creation.shard_names, namespace._inner, name)


async def delete_sharded_log(namespace: Namespace, name: str, *, lock_timeout_s: float = 0) -> None:
    """See ``dlog.shards.delete_sharded_log``."""
    await namespace._bridge.run(
        creation.delete_sharded_log, namespace._inner, name, lock_timeout_s=lock_timeout_s
    )


@asynccontextmanager
async def open_sharded_writer(
    namespace: Namespace,
    name: str,
    *,
    lock_timeout_s: float | None = None,
    config: WriterConfig | None = None,
) -> AsyncIterator[ShardedWriter]:
    """See ``dlog.shards.open_sharded_writer``."""
    manager = writer.open_sharded_writer(namespace._inner, name, lock_timeout_s=lock_timeout_s, config=config)
    held = Held(namespace._bridge, manager)
    opened = ShardedWriter(namespace._bridge, await held.open())
    async with closing(held):
        yield opened


@asynccontextmanager
async def open_sharded_reader(
    namespace: Namespace,
    name: str,
    *,
    start: Where | Mapping[int, Where] = EARLIEST,
    end: Where | Mapping[int, Where] | None = None,
    follow: bool = True,
    cursor: str | None = None,
    shards: Iterable[int] | None = None,
    gaps: bool = False,
) -> AsyncIterator[ShardedReader]:
    """See ``dlog.shards.open_sharded_reader``."""
    manager = reader.open_sharded_reader(
        namespace._inner,
        name,
        start=start,
        end=end,
        follow=follow,
        cursor=cursor,
        shards=shards,
        gaps=gaps,
    )
    held = Held(namespace._bridge, manager)
    opened = ShardedReader(namespace._bridge, await held.open())
    async with closing(held):
        yield opened
