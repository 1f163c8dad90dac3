"""A write-ahead log without ``async``.

The functions of the state run in the loop's thread. Other threads look at the state with ``read``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio

from dlog.blocking.namespace import Namespace
from dlog.wal import standby, write_ahead_log
from dlog.wal.write_ahead_log import OPERATIONS_BETWEEN_SNAPSHOTS
from dlog.write.health import WriterState
from ledger.payloads import as_payload
from ledger.runtime.tasks.blocking_face import HeldFace, called, forwarded, opened
from ledger.runtime.tasks.face import Shown, attribute, described, shown

T = TypeVar("T")
R = TypeVar("R")


def _read(self: HeldFace[Any], look: Callable[[], R]) -> R:
    """Call a function that looks at the state between two operations; return its result.

    It runs in the loop's thread, so it must be quick, and must not call the log.
    """

    async def call() -> R:
        await trio.lowlevel.checkpoint()
        return look()

    return self._loop.run(call)


class WriteAheadLog(HeldFace[write_ahead_log.WriteAheadLog[T]], Generic[T]):
    """See ``dlog.wal.WriteAheadLog``. Closed by ``close`` or the end of a ``with`` block."""

    name: Shown[str] = attribute("name", "The name of the write-ahead log.")
    index: Shown[int] = shown(write_ahead_log.WriteAheadLog.index)
    snapshot_index: Shown[int] = shown(write_ahead_log.WriteAheadLog.snapshot_index)
    state: Shown[WriterState] = shown(write_ahead_log.WriteAheadLog.state)
    failure: Shown[BaseException | None] = shown(write_ahead_log.WriteAheadLog.failure)
    oldest_pending_s: Shown[float] = shown(write_ahead_log.WriteAheadLog.oldest_pending_s)
    health = called(write_ahead_log.WriteAheadLog.health)

    snapshot = forwarded(write_ahead_log.WriteAheadLog.snapshot)

    @described(write_ahead_log.WriteAheadLog.append)
    def append(self, operation: bytes | bytearray | memoryview, *, index: int | None = None) -> T:
        return self._loop.run(self._inner.append, as_payload(operation), index=index)

    read = _read


class WalStandby(HeldFace[standby.WalStandby[T]], Generic[T]):
    """See ``dlog.wal.WalStandby``. Closed by ``close`` or the end of a ``with`` block."""

    name: Shown[str] = attribute("name", "The name of the write-ahead log.")
    index: Shown[int] = shown(standby.WalStandby.index)
    failure: Shown[Exception | None] = shown(standby.WalStandby.failure)

    lag = forwarded(standby.WalStandby.lag)
    wait_index = forwarded(standby.WalStandby.wait_index)
    take_over = opened(standby.WalStandby.take_over, WriteAheadLog)
    read = _read


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
) -> WriteAheadLog[T]:
    """See ``dlog.wal.open_wal``. Close the result, or use it in a ``with`` statement."""
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
) -> WalStandby[T]:
    """See ``dlog.wal.follow_wal``. Close the result, or use it in a ``with`` statement."""
    return _follow(
        namespace,
        apply=apply,
        snapshot=snapshot,
        restore=restore,
        name=name,
        operations_between_snapshots=operations_between_snapshots,
        reopen=reopen,
    )
