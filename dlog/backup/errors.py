"""The errors of backups, beside those of ``dlog.errors``."""

from __future__ import annotations

from dlog.errors import DLogError


class BackupError(DLogError):
    """A backup cannot be made or used. Backups that were complete before are as they were."""


class BackupUnreachableError(BackupError):
    """The destination cannot be read or written now: it is away or full, or refuses. Try again."""


class BackupDamagedError(BackupError):
    """An object of a backup is missing, was changed, or is of an unknown version."""

    def __init__(self, name: str, evidence: str) -> None:
        super().__init__(f"backup object {name}: {evidence}")
        self.name, self.evidence = name, evidence


class BackupNotFoundError(BackupError):
    """There is no backup there, or none of that time."""


class BackupInUseError(BackupError):
    """Another process makes a backup at this destination, or prunes it."""


class RestoreTargetError(BackupError):
    """The directory exists and is not empty, or cannot be made. Nothing was changed."""
