"""Backups of a namespace: made while it is written, kept as increments, verified, restored to a moment.

Inside: the bytes at a destination, the rounds that write them, and what reads them. Entry points:
``Namespace.backup``, and ``open_backups`` for what is at a destination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlog.backup.backups import Backups as Backups
    from dlog.backup.backups import open_backups as open_backups
    from dlog.backup.errors import BackupDamagedError as BackupDamagedError
    from dlog.backup.errors import BackupError as BackupError
    from dlog.backup.errors import BackupInUseError as BackupInUseError
    from dlog.backup.errors import BackupNotFoundError as BackupNotFoundError
    from dlog.backup.errors import BackupUnreachableError as BackupUnreachableError
    from dlog.backup.errors import RestoreTargetError as RestoreTargetError
    from dlog.backup.replication import ReplicaStatus as ReplicaStatus
    from dlog.backup.restoring import Restored as Restored
    from dlog.backup.restoring import RestoreProgress as RestoreProgress
    from dlog.backup.rounds import Backup as Backup
    from dlog.backup.rounds import BackupProgress as BackupProgress
    from dlog.backup.store import Pruned as Pruned
    from dlog.backup.verifying import BackupProblem as BackupProblem
    from dlog.backup.verifying import BackupVerification as BackupVerification

if not TYPE_CHECKING:  # else a type checker would take any name

    def __getattr__(name: str) -> object:
        from ledger.runtime.lazy_names import lazy_name

        return lazy_name(__name__, name)

    def __dir__() -> list[str]:
        return list(__getattr__("__all__"))
