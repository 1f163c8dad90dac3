"""A writer of a sharded log without ``async``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext

from dlog.blocking.writer import LogWriter
from dlog.errors import WriteError
from dlog.shards.layout import ShardedPosition, shard_of
from dlog.shards.writer import ShardedWriter as TrioWriter
from dlog.write.health import WriterState
from dlog.write.log_writer import Headers
from ledger.payloads import as_payload
from ledger.runtime.tasks.blocking_face import HeldFace, Opener, called, forwarded
from ledger.runtime.tasks.face import Shown, attribute, described, listed, shown
from ledger.runtime.tasks.futures import LoopFuture, settle
from ledger.runtime.tasks.loop_thread import LoopThread
from ledger.runtime.tasks.thread_queue import ITEM_BYTES
from namespace.dlsn import DLSN

Buffer = bytes | bytearray | memoryview


def _as_pairs(records: Iterable[tuple[Buffer, Buffer]]) -> list[tuple[bytes, bytes]]:
    return [(as_payload(key), as_payload(payload)) for key, payload in records]


class _Shard(LogWriter):
    _is_part = True
    _item_bytes = 2 * ITEM_BYTES  # there are two futures for a record


class ShardedWriter(HeldFace[TrioWriter]):
    """See ``dlog.shards.ShardedWriter``. Made by ``open_sharded_writer``.

    Closed by ``close`` or the end of a ``with`` block.
    """

    def __init__(
        self,
        loop: LoopThread,
        manager: AbstractAsyncContextManager[TrioWriter],
        opener: Opener,
    ) -> None:
        super().__init__(loop, manager, opener)
        try:
            self._writers = tuple(_Shard(loop, nullcontext(each), opener) for each in self._inner.writers)
        except BaseException:
            self._release()
            raise
        self._stores_keys = self._inner.stores_keys

    name: Shown[str] = attribute("name", "The name of the sharded log.")
    stores_keys: Shown[bool] = shown(TrioWriter.stores_keys)

    state: Shown[WriterState] = shown(TrioWriter.state)
    failure: Shown[WriteError | None] = shown(TrioWriter.failure)
    oldest_pending_s: Shown[float] = shown(TrioWriter.oldest_pending_s)
    health = called(TrioWriter.health)

    append_many = forwarded(TrioWriter.append_many, records=_as_pairs, headers=listed)
    wait_capacity = forwarded(TrioWriter.wait_capacity)
    flush = forwarded(TrioWriter.flush)
    reopen = forwarded(TrioWriter.reopen)

    @property
    @described(TrioWriter.writers)
    def writers(self) -> Sequence[LogWriter]:
        return self._writers

    @described(TrioWriter.append)
    def append(
        self,
        key: Buffer,
        payload: Buffer,
        *,
        txid: int | None = None,
        headers: Headers | None = None,
    ) -> ShardedPosition:
        shard = shard_of(key, len(self._writers))
        stored = key if self._stores_keys else None
        dlsn = self._writers[shard].append(payload, txid=txid, key=stored, headers=headers)
        return ShardedPosition(shard, dlsn)

    def submit(
        self,
        key: Buffer,
        payload: Buffer,
        *,
        txid: int | None = None,
        headers: Headers | None = None,
    ) -> Future[ShardedPosition]:
        """See ``dlog.shards.ShardedWriter.submit``; it waits, and its future ends, as those of
        ``LogWriter.submit``."""
        shard = shard_of(key, len(self._writers))
        future: Future[ShardedPosition] = LoopFuture()

        def pass_on(done: Future[DLSN]) -> None:
            settle(future, done.exception() or ShardedPosition(shard, done.result()))

        stored = key if self._stores_keys else None
        self._writers[shard].submit(payload, txid=txid, key=stored, headers=headers).add_done_callback(
            pass_on
        )
        return future

    @described(TrioWriter.aclose)
    def close(self) -> None:
        for each in self._writers:
            each.close()  # ends nothing yet: see ``LogWriter.close``
        self._release()
