"""The backups at a destination, without ``async``."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager

from dlog.backup import backups
from dlog.errors import NamespaceClosedError
from ledger.runtime.tasks.blocking_face import LoopFace, forwarded, opener
from ledger.runtime.tasks.face import listed


class Backups(LoopFace[backups.Backups]):
    """See ``dlog.backup.Backups``. Made by ``open_backups``; closed by ``close`` or a ``with`` block."""

    def __init__(
        self, destination: str | os.PathLike[str], manager: AbstractAsyncContextManager[backups.Backups]
    ) -> None:
        super().__init__(
            f"dlog {os.fspath(destination)}",
            manager,
            NamespaceClosedError,
            "the backups were closed; open them again",
        )

    list_all = forwarded(backups.Backups.list_all)
    logs = forwarded(backups.Backups.logs)
    verify = forwarded(backups.Backups.verify)
    restore = forwarded(backups.Backups.restore, logs=listed)
    prune = forwarded(backups.Backups.prune)


open_backups = opener(backups.open_backups, Backups)
