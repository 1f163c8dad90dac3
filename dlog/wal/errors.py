"""The errors of the write-ahead log, beside those of ``dlog.errors``."""

from __future__ import annotations

from dlog.errors import DLogError, LogMetadataError
from namespace.dlsn import DLSN


class ApplyError(DLogError):
    """The service's ``apply`` raised; its error is the ``__cause__``. The operation is in the log.

    The write-ahead log has stopped, because the state may be half changed. The next start replays the
    operation, so ``apply`` must accept it: correct ``apply``. Check an operation before it is appended.
    """

    def __init__(self, name: str, index: int, error: Exception) -> None:
        super().__init__(
            f"write-ahead log {name!r}: apply() raised {error!r} for operation {index}, which is in the log; "
            "correct apply(), then open the write-ahead log again"
        )
        self.name, self.index = name, index


class OperationConflictError(DLogError):
    """``append(index=...)`` named another place than the next one. Nothing was written.

    If ``next_index`` is greater than ``index``, the log has an operation with that index already.
    """

    def __init__(self, name: str, index: int, next_index: int) -> None:
        super().__init__(
            f"write-ahead log {name!r}: operation {index} was expected to be the next, but the next is "
            f"{next_index}; nothing was written"
        )
        self.name, self.index, self.next_index = name, index, next_index


class WalStoppedError(DLogError):
    """An earlier failure has stopped the write-ahead log: ``WriteAheadLog.failure``. Open it again.

    An operation that was appended, and gets this error, may be in the log: opening applies it then.
    """

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(f"write-ahead log {name!r} has stopped: {error}; open it again to replay the log")
        self.name = name


class ReplayError(LogMetadataError):
    """The stored operations and snapshots do not give one state, so that the log was not opened.

    Nothing was changed. Operations were removed by other means than a snapshot, or another program wrote the
    log: ``dlog log show`` and ``dlog read`` print what is there.
    """


class OperationsMissingError(ReplayError):
    """Operations that no snapshot has are not in the log."""

    def __init__(self, name: str, first: int, next_index: int) -> None:
        super().__init__(
            f"write-ahead log {name!r}: operations {first} to {next_index - 1} are missing, and no snapshot "
            f"has them; the log was truncated by other means (see dlog log show {name}/operations)"
        )
        self.name, self.first, self.next_index = name, first, next_index


class ForeignOperationError(ReplayError):
    """Another service wrote operations while the writer of this one was reopened; see ``reopen=True``.

    The state may be that of an operation before, on which calls were decided. Opening the write-ahead log
    again replays all operations.
    """

    def __init__(self, name: str, index: int, dlsn: DLSN) -> None:
        super().__init__(
            f"write-ahead log {name!r}: operation {index} at {dlsn} is not of this service: another one had"
            " the log while the writer was reopened"
        )
        self.name, self.index, self.dlsn = name, index, dlsn
