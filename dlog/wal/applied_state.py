"""The state of a service, and how much of its log that has.

Inside: restoring the newest snapshot, applying operations in their order. Not inside: logging operations
(``write_ahead_log``), following those of another service (``standby``).
Always: an operation is applied once in each life of the state, and after all before it; a snapshot is
restored only if it has more than the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from dlog.format.record import Record
from dlog.namespace_handle import Namespace
from dlog.read.positioning import EARLIEST, Start
from dlog.wal import snapshots
from dlog.wal.errors import ApplyError, OperationsMissingError, ReplayError
from namespace.dlsn import DLSN

REPLAY_RECORDS_MAX = 1_000  # applied between two checkpoints

T = TypeVar("T")


def operations_log(name: str) -> str:
    """The log of a write-ahead log's operations."""
    return f"{name}/operations"


def snapshots_log(name: str) -> str:
    """The log of a write-ahead log's snapshots."""
    return f"{name}/snapshots"


class AppliedState(Generic[T]):
    """See the module. ``apply`` and ``restore`` are the service's."""

    def __init__(
        self, name: str, apply: Callable[[bytes], T], restore: Callable[[bytes], None] | None
    ) -> None:
        self.name, self._apply, self._restore = name, apply, restore
        self.index = 0  # of the last operation in the state
        self.dlsn: DLSN | None = None  # its position
        self.snapshot_index = 0  # of the last operation in the newest snapshot
        self._log_id: str | None = None  # of the log that the operations came from

    @property
    def start(self) -> DLSN | Start:
        """Where to read on; the operation there may be in the state."""
        return EARLIEST if self.dlsn is None else self.dlsn

    async def check_log(self, namespace: Namespace) -> None:
        """Check that the log is the one from before: another one of this name begins with index 1 again.

        Raises:
            ReplayError: It was deleted and created again.
            LogNotFoundError, LogUnavailableError
        """
        log = operations_log(self.name)
        found = await namespace.log_identity(log)
        if self._log_id not in (None, found):
            raise ReplayError(
                f"write-ahead log {self.name!r}: log {log!r} was deleted and created again; the state has"
                f" {self.index} operations of the log before. Open it again with an empty state"
            )
        self._log_id = found

    async def restore_newest(self, namespace: Namespace) -> bool:
        """Set the state to the newest snapshot; False if the state has all that is in it.

        Raises:
            ReplayError: A snapshot is damaged, or ``restore`` is missing.
            The errors of a reader.
        """
        found = await snapshots.read_last(namespace, snapshots_log(self.name))
        if found is None:
            return False
        self.snapshot_index = found.index
        if found.index <= self.index:
            return False
        if self._restore is None:
            raise ReplayError(
                f"write-ahead log {self.name!r} has a snapshot of {len(found.state)} bytes up to operation "
                f"{found.index}, but restore= is missing; open it with snapshot= and restore="
            )
        self._restore(found.state)
        self.index, self.dlsn = found.index, found.dlsn
        return True

    def apply(self, index: int, operation: bytes, dlsn: DLSN) -> T:
        """Apply the next operation. Raises ``ApplyError``: the state may have a half of it."""
        try:
            result = self._apply(operation)
        except Exception as exc:
            raise ApplyError(self.name, index, exc) from exc
        self.index, self.dlsn = index, dlsn
        return result

    def apply_new(self, records: Iterable[Record]) -> None:
        """Apply those of the operations that are not in the state.

        Raises:
            OperationsMissingError: There is a hole before one of them.
            ApplyError
        """
        for record in records:
            if record.txid <= self.index:
                continue
            if record.txid != self.index + 1:
                raise OperationsMissingError(self.name, self.index + 1, record.txid)
            self.apply(record.txid, record.payload, record.dlsn)
