"""A write-ahead log without ``async``.

The functions of the state run in the loop's thread. Other threads look at the state with ``read``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

import trio

from dlog.blocking.closing import close_after_block
from dlog.blocking.namespace import Namespace
from dlog.wal import write_ahead_log
from dlog.wal.write_ahead_log import OPERATIONS_BETWEEN_SNAPSHOTS
from ledger.payloads import as_payload
from ledger.runtime.tasks.loop_thread import Held, LoopThread

T = TypeVar("T")
R = TypeVar("R")


class WriteAheadLog(Generic[T]):
    """See ``dlog.wal.WriteAheadLog``. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(
        self, loop: LoopThread, manager: AbstractAsyncContextManager[write_ahead_log.WriteAheadLog[T]]
    ) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._log = self._held.value
        self.name = self._log.name

    def __repr__(self) -> str:
        return f"<blocking {repr(self._log)[1:]}"

    @property
    def index(self) -> int:
        """See ``dlog.wal.WriteAheadLog.index``."""
        return self._log.index

    @property
    def snapshot_index(self) -> int:
        """See ``dlog.wal.WriteAheadLog.snapshot_index``."""
        return self._log.snapshot_index

    def append(self, operation: bytes | bytearray | memoryview, *, index: int | None = None) -> T:
        """See ``dlog.wal.WriteAheadLog.append``."""
        return self._loop.run(self._log.append, as_payload(operation), index=index)

    def snapshot(self) -> bool:
        """See ``dlog.wal.WriteAheadLog.snapshot``."""
        return self._loop.run(self._log.snapshot)

    def read(self, look: Callable[[], R]) -> R:
        """Call a function that looks at the state between two operations; return its result.

        It runs in the loop's thread, so it must be quick, and must not call the log.
        """

        async def call() -> R:
            await trio.lowlevel.checkpoint()
            return look()

        return self._loop.run(call)

    def close(self) -> None:
        """Leave the log. Idempotent."""
        self._held.release()

    def __enter__(self) -> WriteAheadLog[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)


def open_wal(
    namespace: Namespace,
    *,
    apply: Callable[[bytes], T],
    snapshot: Callable[[], bytes] | None = None,
    restore: Callable[[bytes], None] | None = None,
    name: str = "wal",
    operations_between_snapshots: int = OPERATIONS_BETWEEN_SNAPSHOTS,
    lock_timeout_s: float | None = None,
) -> WriteAheadLog[T]:
    """See ``dlog.wal.open_wal_in``. Close the result, or use it in a ``with`` statement."""
    manager = write_ahead_log.open_wal_in(
        namespace._namespace,
        apply=apply,
        snapshot=snapshot,
        restore=restore,
        name=name,
        operations_between_snapshots=operations_between_snapshots,
        lock_timeout_s=lock_timeout_s,
    )
    log = WriteAheadLog(namespace._loop, manager)
    namespace._open.add(log)
    return log
