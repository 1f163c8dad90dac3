"""The backups at a destination, for asyncio."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager

from dlog.aio.face import Face, HeldOpen, forwarded
from dlog.backup import backups
from ledger.runtime.tasks.face import described, listed


class Backups(Face[backups.Backups]):
    """See ``dlog.backup.Backups``. Made by ``open_backups``."""

    list_all = forwarded(backups.Backups.list_all)
    logs = forwarded(backups.Backups.logs)
    verify = forwarded(backups.Backups.verify)
    restore = forwarded(backups.Backups.restore, logs=listed)
    prune = forwarded(backups.Backups.prune)


@described(backups.open_backups)
def open_backups(destination: str | os.PathLike[str]) -> AbstractAsyncContextManager[Backups]:
    """See ``dlog.backup.open_backups``."""
    return HeldOpen(backups.open_backups(destination), Backups)
