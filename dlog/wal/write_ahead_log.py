"""Operations on a state: logged first, then applied, and replayed at the next start.

Inside: the order of operations, when they are applied, when a snapshot is taken and lets the log forget.
Not inside: a snapshot's bytes (``snapshot_format``) and log (``snapshots``), the state.
Always: an operation is applied after it is durable, in the order of the log, once in each life of the state;
the operations that a snapshot covers are truncated only after it is durable.

The transaction id of an operation is its index: 1, 2, 3, without a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from typing import Generic, TypeVar

import attrs
import trio

from dlog.errors import (
    DLogError,
    LogTruncatedError,
    RecordOutcome,
    RecordTooLongError,
    WriteError,
    WriterOverloadedError,
)
from dlog.namespace_handle import Namespace, check_namespace
from dlog.wal import snapshots
from dlog.wal.applied_state import REPLAY_RECORDS_MAX, AppliedState, operations_log, snapshots_log
from dlog.wal.errors import (
    ApplyError,
    ForeignOperationError,
    OperationConflictError,
    OperationsMissingError,
    ReplayError,
    WalStoppedError,
)
from dlog.wal.snapshot_format import StateSnapshot
from dlog.write.health import WriterHealth, WriterState
from dlog.write.log_writer import LogWriter
from dlog.write.pending import Pending
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failing_calls import fails_at_checkpoint
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.service_tasks import open_service_tasks
from namespace.access_control.entries import Denial
from namespace.dlsn import DLSN
from namespace.policy import Right

LOGGER = get_logger(__name__)
RESTORE_ATTEMPTS_MAX = 5
OPERATIONS_BETWEEN_SNAPSHOTS = 100_000

T = TypeVar("T")


class _Operation(Generic[T]):
    """An operation on its way: logged, then applied."""

    __slots__ = ("index", "is_applied", "payload", "pending", "result")

    result: T

    def __init__(self, index: int, payload: bytes, pending: Pending) -> None:
        self.index, self.payload, self.pending = index, payload, pending
        self.is_applied = False


@attrs.frozen
class WalService(Generic[T]):
    """The name, the functions and the options of a service."""

    name: str
    apply: Callable[[bytes], T]
    dump: Callable[[], bytes] | None
    restore: Callable[[bytes], None] | None
    interval: int
    reopens: bool


class WriteAheadLog(ProcessBound, Generic[T]):
    """The operations of one service on its state. Made by ``open_wal``; its calls may run concurrently.

    After a failure it has stopped: every call raises ``WalStoppedError``. Opening it again settles what
    became of the operations in flight. With ``reopen=True`` its writer is opened again by itself first.
    """

    def __init__(
        self,
        service: WalService[T],
        namespace: Namespace,
        writer: LogWriter,
        state: AppliedState[T],
    ) -> None:
        self.name, self._state = service.name, state
        self._namespace, self._writer = namespace, writer
        self._reopens, self._in_step_with = service.reopens, writer.opened_count
        self._step_turn = trio.Lock()
        self._dump, self._interval = service.dump, service.interval
        self._submitted = state.index
        self._queue: deque[_Operation[T]] = deque()  # logged or being logged, not applied yet
        self._stopped: BaseException | None = None
        self._snapshot_turn = trio.Lock()
        self._is_snapshot_due = trio.Event()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else f"{self._submitted - self._state.index} operations in flight"
        return f"<WriteAheadLog {self.name!r}: operation {self._state.index} applied, {state}>"

    @property
    def index(self) -> int:
        """The index of the operation applied last; 0 if there is none. It is the state's version."""
        return self._state.index

    @property
    def snapshot_index(self) -> int:
        """The index of the last operation in the newest snapshot; 0 if there is none."""
        return self._state.snapshot_index

    @property
    def state(self) -> WriterState:
        """The state of the writer of its operations; FAILED if the write-ahead log has stopped."""
        return self._writer.state if self._stopped is None else WriterState.FAILED

    @property
    def failure(self) -> BaseException | None:
        """Why it has stopped: a ``WriteError``, ``ApplyError`` or ``ReplayError``; None if it has not."""
        return self._stopped or self._writer.failure

    @property
    def oldest_pending_s(self) -> float:
        """The age of the oldest operation that is neither durable nor failed; 0.0 without one."""
        return self._writer.oldest_pending_s

    def health(self) -> WriterHealth:
        """How the write-ahead log is. No request is sent."""
        reason = None if self.failure is None else str(self.failure)
        return attrs.evolve(self._writer.health(), state=self.state, reason=reason)

    @fails_at_checkpoint
    async def append(self, operation: bytes | bytearray | memoryview, *, index: int | None = None) -> T:
        """Log an operation durably, apply it, and return what ``apply`` returned.

        If the call is cancelled, the operation may be logged; then it is applied, too.

        Args:
            index: The operation's place: 1 for the first one. A caller that repeats an append after a crash
                gives the same index again, so that the operation is logged once. None: the next place.

        Raises:
            OperationConflictError: The next index is another one. Nothing was written.
            RecordTooLongError: Nothing was written.
            WriteError: The log has stopped; ``outcome`` says whether the operation is in the log. The next
                start applies it if it is. With ``reopen=True`` and the outcome NOT_WRITTEN the log
                continues, and never has the operation.
            ApplyError: ``apply`` raised.
            WalStoppedError: An earlier failure stopped the log.
        """
        operation = as_payload(operation)  # the caller may reuse its buffer during the wait
        self._check_running()
        while True:
            if self._is_out_of_step:
                await self._come_into_step()
            elif self._writer.bytes_in_flight >= self._writer.bytes_in_flight_max:
                await self._writer.wait_capacity()
            else:
                break
            self._check_running()
        # No other task runs from here until the operation has its place in the queue.
        if index is not None and index != self._submitted + 1:
            raise OperationConflictError(self.name, index, self._submitted + 1)
        try:
            pending = self._writer.submit(operation, txid=self._submitted + 1)
        except (RecordTooLongError, WriterOverloadedError):
            raise  # this operation was not taken; the log continues
        except WriteError as exc:
            self._stop(exc)
            raise
        self._submitted += 1
        logged: _Operation[T] = _Operation(self._submitted, operation, pending)
        self._queue.append(logged)
        try:
            await pending
        except trio.Cancelled:
            pending.on_settled(self._apply_durable)  # no task waits for it any more
            raise
        except WriteError as exc:
            await self._failed(logged, exc)
        self._apply_durable()
        if not logged.is_applied:
            self._check_running()
        return logged.result

    async def snapshot(self) -> bool:
        """Store the state as it is now, then truncate the operations in it; False if nothing is new.

        If cancelled, the snapshot may be complete. The operations stay until it is.

        Raises:
            ValueError: The log was opened without ``snapshot`` and ``restore``.
            AccessDeniedError: The policy gives no right to truncate the logs. Nothing was written.
            WalStoppedError, LogUnavailableError, WriteError
        """
        if self._dump is None:
            raise ValueError(f"write-ahead log {self.name!r} was opened without snapshot= and restore=")
        async with self._snapshot_turn:
            self._check_running()
            if self._state.index == self._state.snapshot_index or self._state.dlsn is None:
                return False
            for log in (operations_log(self.name), snapshots_log(self.name)):
                await self._namespace.context.may(log, Right.ADMIN, Denial.TRUNCATE)
            self._check_running()
            # Between two operations: apply() never runs during dump(), as neither awaits.
            taken = StateSnapshot(self._state.index, self._state.dlsn, bytes(self._dump()))
            if not await snapshots.write(self._namespace, snapshots_log(self.name), taken):
                error = ReplayError(
                    f"write-ahead log {self.name!r}: another service has taken it over: there is a snapshot "
                    f"later than operation {taken.index}"
                )
                self._stop(error)
                raise WalStoppedError(self.name, error)
            self._state.snapshot_index = taken.index
            # The last operation in the snapshot stays: it is where the next replay starts.
            await self._writer.truncate(taken.dlsn)
            return True

    # For this module only.

    async def replay(self) -> None:
        """Apply the logged operations that the state lacks."""
        async with self._namespace.open_reader(
            operations_log(self.name), start=self._state.start, follow=False
        ) as reader:
            while batch := await reader.read_batch(REPLAY_RECORDS_MAX):
                self._state.apply_new(batch)
        self._submitted = self._state.index
        if self._writer.last_txid > self._submitted:
            raise OperationsMissingError(self.name, self._submitted + 1, self._writer.last_txid + 1)
        self._note_applied()

    @property
    def _is_out_of_step(self) -> bool:
        writer = self._writer
        return self._reopens and (writer.failure is not None or writer.opened_count != self._in_step_with)

    async def _failed(self, operation: _Operation[T], error: WriteError) -> None:
        """Return if the operation is in the log and applied; else raise its error."""
        if not self._reopens:
            self._stop(error)
            raise error
        try:
            await self._come_into_step()
        except DLogError:
            raise error from self._stopped
        if not operation.is_applied:
            raise error.about(RecordOutcome.NOT_WRITTEN)

    async def _come_into_step(self) -> None:
        """Return when the writer is open again, and the state has what became of the operations in flight.

        The log may have some of them: each at the place to which it was sent, and no other one. What is at
        another place comes from another service, which may have changed its state since: that stops the log.
        """
        async with self._step_turn:
            while self._is_out_of_step and self._stopped is None:
                try:
                    await self._writer.wait_capacity()  # until it is open again
                    if self._writer.failure is None:
                        count = self._writer.opened_count
                        await self._replay_in_flight()
                        self._in_step_with = count  # the writer may be another one again
                except DLogError as exc:
                    self._stop(exc)
                    raise
            self._check_running()

    async def _replay_in_flight(self) -> None:
        self._apply_durable()
        last_txid = self._writer.last_txid
        async with self._namespace.open_reader(
            operations_log(self.name), start=self._state.start, follow=False
        ) as reader:
            while self._state.index < last_txid and (batch := await reader.read_batch(REPLAY_RECORDS_MAX)):
                for record in batch:
                    if record.txid <= self._state.index:
                        continue
                    head = self._queue[0] if self._queue else None
                    if head is None or (head.index, head.pending.sent_to) != (record.txid, record.dlsn):
                        raise ForeignOperationError(self.name, record.txid, record.dlsn)
                    self._queue.popleft()
                    head.result = self._apply_one(head.index, head.payload, record.dlsn)
                    head.is_applied = True
        if last_txid > self._state.index:
            raise OperationsMissingError(self.name, self._state.index + 1, last_txid + 1)
        self._queue.clear()  # the log has none of the others, and never will
        self._submitted = self._state.index

    async def take_snapshots(self) -> None:
        """Take a snapshot whenever one is due; for a task."""
        while True:
            await self._is_snapshot_due.wait()
            self._is_snapshot_due = trio.Event()
            if self._state.index - self._state.snapshot_index < self._interval:
                continue  # it was set while the last snapshot was written
            try:
                await self.snapshot()
            except DLogError as exc:
                # Nothing is lost: the operations stay. It is tried again after the next operation.
                LOGGER.warning(
                    "write-ahead log %r: no snapshot was taken: %s",
                    self.name,
                    exc,
                    extra=event("wal.snapshot_failed", wal=self.name, error=exc),
                )
            except Exception as exc:  # of the service's own function, perhaps; the operations stay
                report_contained("snapshot of a write-ahead log", exc)

    def _apply_durable(self) -> None:
        """Apply the operations at the head of the queue that are durable. It does not raise."""
        queue = self._queue
        while queue and self._stopped is None and queue[0].pending.outcome is RecordOutcome.DURABLE:
            head = queue.popleft()
            try:
                head.result = self._apply_one(head.index, head.payload, head.pending.dlsn)
            except ApplyError as exc:
                self._stop(exc)
                return
            head.is_applied = True
        if self._reopens:
            return  # ``_come_into_step`` finds out what became of the others
        if queue and queue[0].pending.outcome in (RecordOutcome.NOT_WRITTEN, RecordOutcome.UNKNOWN):
            try:
                _ = queue[0].pending.dlsn
            except WriteError as exc:
                self._stop(exc)

    def _apply_one(self, index: int, payload: bytes, dlsn: DLSN) -> T:
        result = self._state.apply(index, payload, dlsn)
        self._note_applied()
        return result

    def _note_applied(self) -> None:
        if self._dump is not None and self._state.index - self._state.snapshot_index >= self._interval:
            self._is_snapshot_due.set()

    def _stop(self, error: BaseException) -> None:
        if self._stopped is None:
            self._stopped = error

    def _check_running(self) -> None:
        if isinstance(self._stopped, ApplyError):
            raise copy(self._stopped) from self._stopped.__cause__  # each caller has its own traceback
        if self._stopped is not None:
            raise WalStoppedError(self.name, self._stopped)


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
    """Own a state for the duration of an ``async with``: restore and replay it, then log each change.

    The state must be empty before. One service at a time owns a write-ahead log: opening waits for the lock,
    and fences the service before. When the block begins, the state has every operation that was acknowledged
    to any earlier service, each applied once.

    Args:
        apply: Changes the state by one operation. It must do the same each time, and must neither await nor
            raise: what it raises stops the log. Its result is that of ``append``.
        snapshot: Dumps the state. Without it, each start replays all operations.
        restore: Sets the state to a dump, whatever the state was before.
        name: The operations are in the log ``NAME/operations``, the snapshots in ``NAME/snapshots``.
        operations_between_snapshots: A snapshot is taken in the background after this many operations.
        lock_timeout_s: How long to wait for another service; None: as configured.
        reopen: Open the writer again by itself, as ``open_writer(..., reopen=True)`` does. Appends in flight
            wait for that: each returns if the log has its operation, which is then applied, and raises with
            the outcome NOT_WRITTEN if not. If another service has written in between, the log stops.

    Raises:
        ValueError: One of ``snapshot`` and ``restore`` is missing.
        LogLockedError: Another service has the log.
        ReplayError: Operations are missing, or the logs hold something else.
        ApplyError: ``apply`` raised for a stored operation.
        The errors of ``Namespace.open_writer`` and ``Namespace.open_reader``.
    """
    check_namespace(namespace)
    service = service_of(name, apply, snapshot, restore, operations_between_snapshots, reopen)
    writer = namespace.open_writer(
        operations_log(name), create=True, lock_timeout_s=lock_timeout_s, reopen=reopen
    )
    return _open_in(namespace, writer, service)


def service_of(
    name: str,
    apply: Callable[[bytes], T],
    snapshot: Callable[[], bytes] | None,
    restore: Callable[[bytes], None] | None,
    interval: int,
    reopens: bool,
) -> WalService[T]:
    """The functions and options of a service, checked.

    Raises:
        ValueError: One of ``snapshot`` and ``restore`` is missing, or ``interval`` is less than 1 operation.
    """
    if (snapshot is None) != (restore is None):
        raise ValueError("snapshot= and restore= belong together: give both or none")
    if interval < 1:
        raise ValueError(f"operations_between_snapshots={interval}: at least 1")
    return WalService(name, apply, snapshot, restore, interval, reopens)


@asynccontextmanager
async def _open_in(
    namespace: Namespace, opening: AbstractAsyncContextManager[LogWriter], service: WalService[T]
) -> AsyncIterator[WriteAheadLog[T]]:
    # The writer first: it fences the service before, and completes what that service had in flight.
    async with opening as writer:
        state = AppliedState(service.name, service.apply, service.restore)
        async with open_owned(namespace, writer, service, state) as wal:
            yield wal


@asynccontextmanager
async def open_owned(
    namespace: Namespace, writer: LogWriter, service: WalService[T], state: AppliedState[T]
) -> AsyncIterator[WriteAheadLog[T]]:
    """Continue a state, which has a beginning of the log, for the service whose ``writer`` has the lock."""
    wal = WriteAheadLog(service, namespace, writer, state)
    failure: LogTruncatedError | OperationsMissingError | None = None
    for _ in range(RESTORE_ATTEMPTS_MAX):
        is_newer = await state.restore_newest(namespace)
        if failure is not None and not is_newer:
            raise failure
        try:
            await wal.replay()
        except (LogTruncatedError, OperationsMissingError) as exc:
            # The service before may have completed a snapshot, and truncated, after it was fenced.
            failure = exc
        else:
            break
    else:
        assert failure is not None  # each attempt that did not break has set it
        raise failure
    async with open_service_tasks() as tasks:
        tasks.start_soon(wal.take_snapshots)
        try:
            yield wal
        finally:
            tasks.cancel()
