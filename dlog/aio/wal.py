"""A write-ahead log for asyncio. The functions of the state run in the loop's thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from dlog.aio.bridge import Bridge, Held
from dlog.aio.namespace import Namespace, closing
from dlog.wal import write_ahead_log
from dlog.wal.write_ahead_log import OPERATIONS_BETWEEN_SNAPSHOTS
from ledger.payloads import as_payload

T = TypeVar("T")


class WriteAheadLog(Generic[T]):
    """See ``dlog.wal.WriteAheadLog``. Made by ``open_wal``."""

    def __init__(self, bridge: Bridge, inner: write_ahead_log.WriteAheadLog[T]) -> None:
        self._bridge, self._inner = bridge, inner
        self.name = inner.name

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    @property
    def index(self) -> int:
        """See ``dlog.wal.WriteAheadLog.index``."""
        return self._inner.index

    @property
    def snapshot_index(self) -> int:
        """See ``dlog.wal.WriteAheadLog.snapshot_index``."""
        return self._inner.snapshot_index

    async def append(self, operation: bytes | bytearray | memoryview, *, index: int | None = None) -> T:
        """See ``dlog.wal.WriteAheadLog.append``."""
        return await self._bridge.run(self._inner.append, as_payload(operation), index=index)

    async def snapshot(self) -> bool:
        """See ``dlog.wal.WriteAheadLog.snapshot``."""
        return await self._bridge.run(self._inner.snapshot)


@asynccontextmanager
async def open_wal(
    namespace: Namespace,
    *,
    apply: Callable[[bytes], T],
    snapshot: Callable[[], bytes] | None = None,
    restore: Callable[[bytes], None] | None = None,
    name: str = "wal",
    operations_between_snapshots: int = OPERATIONS_BETWEEN_SNAPSHOTS,
    lock_timeout_s: float | None = None,
) -> AsyncIterator[WriteAheadLog[T]]:
    """See ``dlog.wal.open_wal_in``."""
    manager = write_ahead_log.open_wal_in(
        namespace._inner,
        apply=apply,
        snapshot=snapshot,
        restore=restore,
        name=name,
        operations_between_snapshots=operations_between_snapshots,
        lock_timeout_s=lock_timeout_s,
    )
    held = Held(namespace._bridge, manager)
    log = WriteAheadLog(namespace._bridge, await held.open())
    async with closing(held):
        yield log
