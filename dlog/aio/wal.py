"""A write-ahead log for asyncio. The functions of the state run in the loop's thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from dlog.aio.face import Face, called, forwarded, opened
from dlog.aio.namespace import Namespace
from dlog.wal import standby, write_ahead_log
from dlog.wal.write_ahead_log import OPERATIONS_BETWEEN_SNAPSHOTS
from dlog.write.health import WriterState
from ledger.payloads import as_payload
from ledger.runtime.tasks.face import Shown, attribute, described, shown

T = TypeVar("T")


class WriteAheadLog(Face[write_ahead_log.WriteAheadLog[T]], Generic[T]):
    """See ``dlog.wal.WriteAheadLog``. Made by ``open_wal``."""

    name: Shown[str] = attribute("name", "The name of the write-ahead log.")
    index: Shown[int] = shown(write_ahead_log.WriteAheadLog.index)
    snapshot_index: Shown[int] = shown(write_ahead_log.WriteAheadLog.snapshot_index)
    state: Shown[WriterState] = shown(write_ahead_log.WriteAheadLog.state)
    failure: Shown[BaseException | None] = shown(write_ahead_log.WriteAheadLog.failure)
    oldest_pending_s: Shown[float] = shown(write_ahead_log.WriteAheadLog.oldest_pending_s)
    health = called(write_ahead_log.WriteAheadLog.health)

    snapshot = forwarded(write_ahead_log.WriteAheadLog.snapshot)

    @described(write_ahead_log.WriteAheadLog.append)
    async def append(self, operation: bytes | bytearray | memoryview, *, index: int | None = None) -> T:
        return await self._bridge.run(self._inner.append, as_payload(operation), index=index)


class WalStandby(Face[standby.WalStandby[T]], Generic[T]):
    """See ``dlog.wal.WalStandby``. Made by ``follow_wal``."""

    name: Shown[str] = attribute("name", "The name of the write-ahead log.")
    index: Shown[int] = shown(standby.WalStandby.index)
    failure: Shown[Exception | None] = shown(standby.WalStandby.failure)

    lag = forwarded(standby.WalStandby.lag)
    wait_index = forwarded(standby.WalStandby.wait_index)
    take_over = opened(standby.WalStandby.take_over, WriteAheadLog)


_open = opened(write_ahead_log.open_wal, WriteAheadLog)


@described(write_ahead_log.open_wal)
def open_wal(
    namespace: Namespace,
    *,
    apply: Callable[[bytes], T],
    snapshot: Callable[[], bytes] | None = None,
    restore: Callable[[bytes], None] | None = None,
    name: str = "wal",
    operations_between_snapshots: int = OPERATIONS_BETWEEN_SNAPSHOTS,
    lock_timeout_s: float | None = None,
    reopen: bool = False,
) -> AbstractAsyncContextManager[WriteAheadLog[T]]:
    """See ``dlog.wal.open_wal``."""
    return _open(
        namespace,
        apply=apply,
        snapshot=snapshot,
        restore=restore,
        name=name,
        operations_between_snapshots=operations_between_snapshots,
        lock_timeout_s=lock_timeout_s,
        reopen=reopen,
    )


_follow = opened(standby.follow_wal, WalStandby)


@described(standby.follow_wal)
def follow_wal(
    namespace: Namespace,
    *,
    apply: Callable[[bytes], T],
    snapshot: Callable[[], bytes] | None = None,
    restore: Callable[[bytes], None] | None = None,
    name: str = "wal",
    operations_between_snapshots: int = OPERATIONS_BETWEEN_SNAPSHOTS,
    reopen: bool = False,
) -> AbstractAsyncContextManager[WalStandby[T]]:
    """See ``dlog.wal.follow_wal``."""
    return _follow(
        namespace,
        apply=apply,
        snapshot=snapshot,
        restore=restore,
        name=name,
        operations_between_snapshots=operations_between_snapshots,
        reopen=reopen,
    )
