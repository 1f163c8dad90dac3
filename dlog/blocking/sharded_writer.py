"""A writer of a sharded log without ``async``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType

from dlog.blocking.closing import close_after_block
from dlog.blocking.writer import LogWriter
from dlog.shards import writer
from dlog.shards.layout import ShardedPosition, shard_of
from ledger.payloads import as_payload
from ledger.runtime.tasks.loop_thread import Held, LoopThread
from namespace.dlsn import DLSN

Buffer = bytes | bytearray | memoryview


class ShardedWriter:
    """See ``dlog.shards.ShardedWriter``. Made by ``open_sharded_writer``.

    Closed by ``close`` or the end of a ``with`` block.
    """

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[writer.ShardedWriter]) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._writer = self._held.value
        self.name = self._writer.name
        try:
            self._writers = tuple(LogWriter(loop, nullcontext(each)) for each in self._writer.writers)
        except BaseException:
            self._held.release()
            raise

    def __repr__(self) -> str:
        return f"<blocking {repr(self._writer)[1:]}"

    @property
    def writers(self) -> Sequence[LogWriter]:
        """See ``dlog.shards.ShardedWriter.writers``."""
        return self._writers

    def append(self, key: Buffer, payload: Buffer, *, txid: int | None = None) -> ShardedPosition:
        """See ``dlog.shards.ShardedWriter.append``."""
        shard = shard_of(key, len(self._writers))
        return ShardedPosition(shard, self._writers[shard].append(payload, txid=txid))

    def submit(self, key: Buffer, payload: Buffer, *, txid: int | None = None) -> Future[ShardedPosition]:
        """See ``dlog.shards.ShardedWriter.submit``; it waits, and its future ends, as those of
        ``LogWriter.submit``."""
        shard = shard_of(key, len(self._writers))
        future: Future[ShardedPosition] = Future()

        def settle(done: Future[DLSN]) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(ShardedPosition(shard, done.result()))

        self._writers[shard].submit(payload, txid=txid).add_done_callback(settle)
        return future

    def append_many(self, records: Iterable[tuple[Buffer, Buffer]]) -> list[ShardedPosition]:
        """See ``dlog.shards.ShardedWriter.append_many``. The calling thread consumes the iterable."""
        copied = [(as_payload(key), as_payload(payload)) for key, payload in records]
        return self._loop.run(self._writer.append_many, copied)

    def wait_capacity(self, key: Buffer | None = None) -> None:
        """See ``dlog.shards.ShardedWriter.wait_capacity``."""
        self._loop.run(self._writer.wait_capacity, key)

    def flush(self) -> None:
        """See ``dlog.shards.ShardedWriter.flush``."""
        self._loop.run(self._writer.flush)

    def reopen(self) -> None:
        """See ``dlog.shards.ShardedWriter.reopen``."""
        self._loop.run(self._writer.reopen)

    def close(self) -> None:
        """See ``dlog.shards.ShardedWriter.aclose``. Idempotent."""
        try:
            self._held.release()
        finally:
            for each in self._writers:
                each.close()

    def __enter__(self) -> ShardedWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)
