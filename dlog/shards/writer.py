"""Writing a sharded log: one writer for each shard, and the key of a record that chooses among them.

Inside: routing, waiting for several shards. Not inside: writing a shard (``LogWriter``).
Always: records of one key are written in the order of submission; one object holds the locks of all shards,
or of none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from dlog.config import WriterConfig
from dlog.errors import DLogError, RecordOutcome, WriteError
from dlog.namespace_handle import Namespace
from dlog.shards.creation import shard_names
from dlog.shards.layout import ShardedPosition, shard_of
from dlog.write.health import WORST_LAST, WriterHealth, WriterState
from dlog.write.log_writer import Headers, LogWriter, prepare_many
from dlog.write.opening import closed_at_end
from dlog.write.pending import Pending, settled_positions
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from namespace.log_name import check_log_name

Buffer = bytes | bytearray | memoryview


class ShardedPending(ProcessBound):
    """A submitted record and its outcome: as ``Pending``, with a ``ShardedPosition``."""

    __slots__ = ("_pending", "shard")

    def __init__(self, shard: int, pending: Pending) -> None:
        self.shard, self._pending = shard, pending

    def __repr__(self) -> str:
        return f"<ShardedPending in shard {self.shard}: {self._pending!r}>"

    def __await__(self) -> Generator[object, object, ShardedPosition]:
        return ShardedPosition(self.shard, (yield from self._pending.__await__()))

    @property
    def outcome(self) -> RecordOutcome:
        """The outcome of the record as known now."""
        return self._pending.outcome


class ShardedWriter(ProcessBound):
    """Appends records to a sharded log. Made by ``open_sharded_writer``; its calls may run concurrently.

    A shard that fails does not stop the others: ``append`` raises for the keys of that shard, until
    ``reopen``.
    """

    def __init__(self, name: str, writers: Sequence[LogWriter], *, store_keys: bool = True) -> None:
        self.name = name
        self._writers, self._count = tuple(writers), len(writers)
        self._stores_keys = store_keys and all(each.keys_and_headers for each in writers)

    def __repr__(self) -> str:
        return f"<ShardedWriter of {self.name!r}: {self._count} shards>"

    @property
    def writers(self) -> Sequence[LogWriter]:
        """The writer of each shard, for ``truncate`` and the like. Closing is up to this object."""
        return self._writers

    @property
    def stores_keys(self) -> bool:
        """The key that chooses the shard is also stored, as ``Record.key``; see ``open_sharded_writer``."""
        return self._stores_keys

    @property
    def state(self) -> WriterState:
        """The worst of the shards' states: FAILED if the writer of one shard has failed."""
        return max((writer.state for writer in self._writers), key=WORST_LAST.index)

    @property
    def failure(self) -> WriteError | None:
        """Why the writer of a shard stopped last, of the first shard that is not writing; else None."""
        return next((writer.failure for writer in self._writers if writer.failure is not None), None)

    @property
    def oldest_pending_s(self) -> float:
        """The age of the oldest record of any shard that is neither durable nor failed; 0.0 without one."""
        return max(writer.oldest_pending_s for writer in self._writers)

    def health(self) -> tuple[WriterHealth, ...]:
        """How the writer of each shard is, in their order. No request is sent."""
        return tuple(writer.health() for writer in self._writers)

    async def append(
        self,
        key: Buffer,
        payload: Buffer,
        *,
        txid: int | None = None,
        headers: Headers | None = None,
    ) -> ShardedPosition:
        """Write one record to the shard of its key; see ``LogWriter.append``, also for errors.

        It returns when the record, and every record before it in its shard, are durable.

        Args:
            key: Stored as ``Record.key`` if ``stores_keys``; it then obeys the limits of a key there.
            txid: At least the id of the record before in the same shard.
            headers: As in ``LogWriter.append``.
        """
        shard = shard_of(key, self._count)
        stored = key if self._stores_keys else None
        dlsn = await self._writers[shard].append(payload, txid=txid, key=stored, headers=headers)
        return ShardedPosition(shard, dlsn)

    def submit(
        self,
        key: Buffer,
        payload: Buffer,
        *,
        txid: int | None = None,
        headers: Headers | None = None,
    ) -> ShardedPending:
        """Take one record without waiting; see ``LogWriter.submit``. Await the result for the position."""
        shard = shard_of(key, self._count)
        stored = key if self._stores_keys else None
        pending = self._writers[shard].submit(payload, txid=txid, key=stored, headers=headers)
        return ShardedPending(shard, pending)

    async def append_many(
        self,
        records: Iterable[tuple[Buffer, Buffer]],
        *,
        headers: Iterable[Headers | None] | None = None,
    ) -> list[ShardedPosition]:
        """Write pairs of key and payload; return their positions, in this order, when all are durable.

        In each shard they are written in this order, and no other record comes between them. All are checked
        before the first is written. If the call is cancelled or fails, any number of them may be written: in
        each shard from its first one on.

        Args:
            headers: One mapping for each pair; None for a record without. See ``LogWriter.append``.

        Raises:
            RecordTooLongError, ConfigError, ValueError: As ``LogWriter.append``; none was written.
            LogFencedError, LogWriteError, WriterClosedError: A shard has failed: the first of them, after
                every other shard is durable or failed, too.
        """
        given = [(as_payload(key), as_payload(payload)) for key, payload in records]
        order = [shard_of(key, self._count) for key, _ in given]
        header_list = None if headers is None else list(headers)
        if header_list is not None and len(header_list) != len(given):
            raise ValueError(f"{len(given)} records: give one mapping of headers for each")
        indexes: dict[int, list[int]] = {}
        for index, shard in enumerate(order):
            indexes.setdefault(shard, []).append(index)
        for shard in indexes:
            await self._writers[shard].wait_capacity()
        # No other task runs from here until all records are taken.
        takes = {
            shard: prepare_many(
                self._writers[shard],
                [given[index][1] for index in each],
                [given[index][0] for index in each] if self._stores_keys else None,
                None if header_list is None else [header_list[index] for index in each],
            )
            for shard, each in indexes.items()
        }
        positions: dict[int, list[ShardedPosition]] = {}
        errors: list[DLogError] = []
        taken = {}
        for shard, take in takes.items():
            try:
                taken[shard] = take()
            except DLogError as exc:
                errors.append(exc)
        for shard, ranges in taken.items():
            try:
                dlsns = await settled_positions(ranges)
            except DLogError as exc:
                errors.append(exc)
            else:
                positions[shard] = [ShardedPosition(shard, dlsn) for dlsn in dlsns]
        if errors:
            raise errors[0]
        next_of = {shard: iter(each) for shard, each in positions.items()}
        return [next(next_of[shard]) for shard in order]

    async def wait_capacity(self, key: Buffer | None = None) -> None:
        """Return when the shard of a key takes more records; None: when every shard does.

        Each shard has ``bytes_in_flight_max`` of its own; see ``LogWriter.wait_capacity``.
        """
        if key is not None:
            await self._writers[shard_of(key, self._count)].wait_capacity()
            return
        for writer in self._writers:
            await writer.wait_capacity()

    async def flush(self) -> None:
        """Return when every record submitted before is durable and visible, in all shards.

        If cancelled, the records are written all the same.

        Raises:
            LogFencedError, LogWriteError: The first error of a shard, after all other shards are flushed.
        """
        await _all(writer.flush for writer in self._writers)

    async def reopen(self) -> None:
        """Reopen the shards whose writer has stopped; see ``LogWriter.reopen``."""
        for writer in self._writers:
            await writer.reopen()

    async def aclose(self) -> None:
        """Write all submitted records and release the locks of all shards. Idempotent.

        Raises:
            LogFencedError, LogWriteError: Some submitted record is not durable. All shards are closed.
        """
        await _all(writer.aclose for writer in self._writers)


@asynccontextmanager
async def open_sharded_writer(
    namespace: Namespace,
    name: str,
    *,
    lock_timeout_s: float | None = None,
    config: WriterConfig | None = None,
    reopen: bool = False,
    store_keys: bool = True,
) -> AsyncIterator[ShardedWriter]:
    """Become the one writer of all shards, for the duration of an ``async with``.

    The shards are opened one after the other, always in the same order, so that two openings cannot wait for
    each other. If one fails, those before it are closed.

    Args:
        lock_timeout_s: For each shard; see ``Namespace.open_writer``.
        config: For each shard: each has its own memory and its own segments.
        reopen: If the writer of a shard stops for a passing reason, open it again by itself; see
            ``Namespace.open_writer``. The other shards continue.
        store_keys: Store each key in its record, where the writer takes keys
            (``WriterConfig.keys_and_headers``); elsewhere the key only chooses the shard. False: nowhere.

    Raises:
        NotShardedError: There is no sharded log with this name.
        ShardsMissingError: Its creation was interrupted, or shards of it were deleted.
        LogLockedError: Another writer has a shard.
        The errors of ``Namespace.open_writer``.
    """
    names = await shard_names(namespace, name)
    async with AsyncExitStack() as stack:
        writers = [
            await stack.enter_async_context(
                namespace.open_writer(each, lock_timeout_s=lock_timeout_s, config=config, reopen=reopen)
            )
            for each in names
        ]
        writer = ShardedWriter(check_log_name(name), writers, store_keys=store_keys)
        # All at once: if bookies are away, each takes WriterConfig.close_timeout_s.
        async with closed_at_end(writer.aclose):
            yield writer


async def _all(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Make the calls at once; raise the first error after all have ended."""
    errors: list[DLogError] = []

    async def make(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except DLogError as exc:
            errors.append(exc)

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(make, call)
    if errors:
        raise errors[0]
