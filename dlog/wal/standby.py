"""A second process that has the state of a service, and continues it when the service is gone.

Inside: following the operations, how many are missing, taking over. Not inside: the order of operations and
snapshots (``applied_state``), what an owner does (``write_ahead_log``).
Always: only what readers see is applied, so that no operation is taken back; it writes nothing before it has
the lock of the log; nothing is applied by two tasks at once.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import get_ident
from typing import Generic, TypeVar

import trio

from dlog.errors import LogNotFoundError, LogReaderStalledError, LogTruncatedError
from dlog.namespace_handle import Namespace, check_namespace
from dlog.wal.applied_state import REPLAY_RECORDS_MAX, AppliedState, operations_log, snapshots_log
from dlog.wal.errors import OperationsMissingError, WalStoppedError
from dlog.wal.write_ahead_log import (
    OPERATIONS_BETWEEN_SNAPSHOTS,
    WalService,
    WriteAheadLog,
    open_owned,
    service_of,
)
from ledger.pickling import ProcessBound
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.service_tasks import open_service_tasks
from ledger.runtime.tasks.trio_only import check_thread
from namespace.policy import Right

LOGGER = get_logger(__name__)
PAUSE_S = 0.5  # before it looks again for a log that nobody has made, or that cannot be read

T = TypeVar("T")


class WalStandby(ProcessBound, Generic[T]):
    """The state of a write-ahead log that another service owns. Made by ``follow_wal``.

    After a failure, and after ``take_over``, it follows no more: calls raise ``WalStoppedError``.
    """

    def __init__(self, service: WalService[T], namespace: Namespace) -> None:
        self.name = service.name
        self._service, self._namespace = service, namespace
        self._state = AppliedState(service.name, service.apply, service.restore)
        self._scope = trio.CancelScope()
        self._changed = trio.Event()
        self._has_ended = trio.Event()
        self._thread = get_ident()  # of the run that follows
        self._failure: Exception | None = None

    def __repr__(self) -> str:
        state = "following" if not self._has_ended.is_set() else "stopped"
        return f"<WalStandby {self.name!r}: {state}, {self.index} operations>"

    @property
    def index(self) -> int:
        """The index of the last operation in the state; 0 if there is none."""
        return self._state.index

    @property
    def failure(self) -> Exception | None:
        """Why it has stopped; None if it has not.

        An ``ApplyError``, a ``ReplayError``, an error of a reader, or what ``restore`` raised.
        """
        return self._failure

    async def lag(self) -> int:
        """How many operations that a reader sees now the state lacks. It reads the end of the log.

        Raises:
            WalStoppedError: It has stopped, or has taken over.
            LogUnavailableError, LogMetadataError: The end of the log cannot be read now.
        """
        self._check_following()
        log = operations_log(self.name)
        try:
            newest = (await self._namespace.describe_log(log)).last_txid
        except LogNotFoundError:
            return 0
        return max((newest or 0) - self.index, 0)

    async def wait_index(self, index: int) -> None:
        """Return when the state has the operation with this index.

        Raises:
            WalStoppedError: It stopped before, or has taken over.
        """
        while self.index < index:
            self._check_following()
            await self._changed.wait()
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def take_over(self, *, lock_timeout_s: float = math.inf) -> AsyncIterator[WriteAheadLog[T]]:
        """Own the state for the duration of an ``async with``, as soon as no other service does.

        It follows until it has the lock, so that the operations in between are few. When the block begins,
        the state has every operation that was acknowledged to any service before, each applied once. If the
        call is cancelled while it waits for the lock, it follows on. Once it has the lock it never follows
        again, also if the call fails then.

        Args:
            lock_timeout_s: How long to wait for the service that owns it.

        Raises:
            WalStoppedError: It has stopped, or has taken over once.
            LogLockedError: Another service has it. This one follows on.
            The errors of ``open_wal``.
        """
        self._check_following()
        service = self._service
        writer = self._namespace.open_writer(
            operations_log(self.name), create=True, lock_timeout_s=lock_timeout_s, reopen=service.reopens
        )
        async with writer as opened:
            self._scope.cancel()
            await self._has_ended.wait()
            if self._failure is not None:
                raise WalStoppedError(self.name, self._failure)
            await self._state.check_log(self._namespace)
            async with open_owned(self._namespace, opened, service, self._state) as log:
                yield log

    # For this module only.

    async def run(self) -> None:
        """Follow until it is cancelled or fails; for a task."""
        try:
            with self._scope:
                while True:
                    await self._follow()
        except Exception as exc:  # also one of the service's own restore()
            self._failure = exc
            LOGGER.warning(
                "write-ahead log %r: following has stopped: %s",
                self.name,
                exc,
                extra=event("wal.standby_stopped", wal=self.name, error=exc),
            )
        finally:
            self._has_ended.set()
            self._changed.set()

    async def _follow(self) -> None:
        """Apply what comes, until the log must be opened again."""
        state, log = self._state, operations_log(self.name)
        await state.restore_newest(self._namespace)
        self._wake()
        try:
            await state.check_log(self._namespace)
            async with self._namespace.open_reader(log, start=state.start) as reader:
                while batch := await reader.read_batch(REPLAY_RECORDS_MAX):
                    state.apply_new(batch)
                    self._wake()
            await trio.sleep_forever()  # the log is sealed
        except LogNotFoundError:
            if state.index:
                raise  # it was deleted
        except LogReaderStalledError:
            pass  # bookies or the metadata store are away; the reader has said so
        except (LogTruncatedError, OperationsMissingError):
            # The owner completed a snapshot and truncated what is in it.
            if not await state.restore_newest(self._namespace):
                raise
            return
        await trio.sleep(PAUSE_S)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _check_following(self) -> None:
        check_thread(self._thread, f"state {self.name!r}")
        if self._has_ended.is_set() or self._scope.cancel_called:
            reason = self._failure or RuntimeError("it was closed, or has taken over")
            raise WalStoppedError(self.name, reason)


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
    """Have the state of another service for the duration of an ``async with``, ready to continue it.

    The state must be empty before. Operations are applied a moment after they are acknowledged, in the order
    of the log, while the service that owns the state continues; any number of processes may follow. It writes
    nothing and takes no lock before ``WalStandby.take_over``. The log need not exist yet.

    Args:
        apply: As of ``open_wal``, like the others.
        snapshot: Used after taking over.
        restore: Also called while it follows, when the service has truncated what the state lacks.
        name: Of the write-ahead log.
        operations_between_snapshots: Used after taking over.
        reopen: Used after taking over.

    Raises:
        ValueError: One of ``snapshot`` and ``restore`` is missing.
    """
    check_namespace(namespace)
    service = service_of(name, apply, snapshot, restore, operations_between_snapshots, reopen)
    return _open_in(namespace, service)


@asynccontextmanager
async def _open_in(namespace: Namespace, service: WalService[T]) -> AsyncIterator[WalStandby[T]]:
    for log in (operations_log(service.name), snapshots_log(service.name)):
        await namespace.context.may(log, Right.READ)
    standby = WalStandby(service, namespace)
    async with open_service_tasks() as tasks:
        tasks.start_soon(standby.run)
        try:
            yield standby
        finally:
            tasks.cancel()
