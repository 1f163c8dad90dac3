"""The backups at a destination: listing, verifying, restoring and pruning them.

Inside: the calls of ``open_backups``. Not inside: the work (``restoring``, ``verifying``, ``store``), making
backups (``calls``).

Source: our own; docs/backup.md.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dlog.backup.content import logs_in
from dlog.backup.errors import BackupNotFoundError
from dlog.backup.format import BackupManifest, ManifestName
from dlog.backup.pruning import Keep, check_keep, kept_by
from dlog.backup.restoring import Restored, RestoreProgress, restore_manifest
from dlog.backup.rounds import Backup
from dlog.backup.store import BackupStore, Pruned, open_store
from dlog.backup.verifying import BackupVerification, BackupVerifier
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from ledger.runtime.clock import wall_ms
from namespace.dlsn import DLSN

_URI = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*:/")  # a Path has one slash less


def _nothing(_: object) -> None:
    """No report."""


def _no_bytes(_done: int, _total: int) -> None:
    """No report."""


class Backups(ProcessBound):
    """The backups at a destination. Made by ``open_backups``."""

    def __init__(self, store: BackupStore) -> None:
        """``store``: for DLog's own packages."""
        self._store = store

    def __repr__(self) -> str:
        return f"<Backups {self._store.where}>"

    async def list_all(self) -> list[Backup]:
        """The backups, the oldest first.

        Raises:
            BackupNotFoundError: There are none.
            BackupDamagedError: A manifest cannot be read; ``verify`` continues.
        """
        return [Backup.of(await self._store.read(name)) for name in await _names(self._store)]

    async def logs(self, at: datetime.datetime | None = None) -> list[str]:
        """The logs in the newest backup, or in the newest one at a time, sorted. Raises like ``list_all``."""
        return logs_in(await manifest_at(self._store, at))

    async def verify(self, *, on_progress: Callable[[int, int], None] = _no_bytes) -> BackupVerification:
        """Read all backups, and check that each can be restored and each log can be read through.

        Args:
            on_progress: Called with the bytes read so far, and all.

        Raises:
            BackupNotFoundError: There are none.
            BackupUnreachableError: The destination cannot be read.
        """
        await _names(self._store)
        return await BackupVerifier(self._store, on_progress).run()

    async def restore(
        self,
        directory: str | os.PathLike[str],
        *,
        logs: Iterable[str] | None = None,
        at: datetime.datetime | DLSN | None = None,
        on_progress: Callable[[RestoreProgress], None] = _nothing,
    ) -> Restored:
        """Make a new directory with the logs of a backup, as ``file:`` namespaces have them.

        Ledgers, positions, transaction ids, cursors, properties and the policy are those of the backup.
        Segments that were being written are complete. If the call is cancelled or killed, the directory is
        not there; ``DIRECTORY.restoring`` is, and the next call removes it.

        Args:
            directory: It does not exist, or is empty.
            logs: Names of logs; None for all.
            at: The newest backup at this time or before it. A DLSN: the newest backup, and the one log of
                ``logs`` up to this position; records of the same entry are kept, and later cursors are moved
                to it. None: the newest backup.
            on_progress: Called after each chunk.

        Raises:
            ValueError: ``directory`` is a URI; ``at`` is a DLSN, and ``logs`` does not name one log, or it
                has no time zone.
            RestoreTargetError: The directory is not empty, or cannot be made. Nothing was changed.
            BackupNotFoundError: There is no such backup, log or position.
            BackupDamagedError: A part of the backup is damaged; nothing is restored.
            BackupUnreachableError, BackupInUseError, DiskFullError
        """
        if _URI.match(os.fspath(directory)):
            raise ValueError(
                f"directory {directory}: it is a URI; a backup is restored into a new directory, by its path"
            )
        wanted = None if logs is None else _listed(logs)
        position = at if isinstance(at, DLSN) else None
        if position is not None and (wanted is None or len(set(wanted)) != 1):
            raise ValueError(f"at={at!r}: name the one log that ends at this position")
        target = Path(os.fspath(directory))
        async with audited_async("restore backup", f"{self._store.where} to {target}"):
            manifest = await manifest_at(self._store, None if isinstance(at, DLSN) else at)
            return await restore_manifest(
                self._store, manifest, target, logs=wanted, position=position, on_progress=on_progress
            )

    async def prune(self, keep: Keep) -> Pruned:
        """Delete old backups, and chunks that no other one needs.

        If cancelled or killed, call it again: what is left is whole.

        Args:
            keep: A number: the newest ones are kept. A timedelta: each moment of that time can still be
                restored.

        Raises:
            ValueError: It is not positive.
            BackupInUseError: Another process writes there.
            BackupDamagedError: A manifest that is kept cannot be read. No chunk was deleted.
        """
        check_keep(keep)
        async with audited_async("prune backups", f"{self._store.where}"), self._store.pruning():
            return await self._store.prune(kept_by(await _names(self._store), keep, wall_ms()))


async def _names(store: BackupStore) -> list[ManifestName]:
    names = await store.names()
    if not names:
        raise BackupNotFoundError(f"{store.where}: no backup was completed there")
    return names


async def manifest_at(store: BackupStore, at: datetime.datetime | None) -> BackupManifest:
    """The newest backup, or the newest one at a time or before it.

    Raises:
        ValueError: ``at`` has no time zone.
        BackupNotFoundError, BackupDamagedError, BackupUnreachableError
    """
    names = await _names(store)
    if at is None:
        return await store.read(names[-1])
    if at.tzinfo is None:
        raise ValueError(f"at={at!r} has no time zone")
    at_ms = math.floor(at.timestamp() * 1000)
    found = [name for name in names if name.cut_ms <= at_ms]
    if not found:
        first = datetime.datetime.fromtimestamp(names[0].cut_ms / 1000, at.tzinfo)
        raise BackupNotFoundError(f"{store.where}: the first backup is of {first.isoformat(' ')}")
    return await store.read(found[-1])


@asynccontextmanager
async def open_backups(destination: str | os.PathLike[str]) -> AsyncIterator[Backups]:
    """The backups at a destination, for the duration of an ``async with``. Nothing is made there.

    Raises:
        BackupError: ``destination`` is no destination.
    """
    await trio.lowlevel.checkpoint()
    yield Backups(open_store(destination))


def _listed(names: Iterable[str]) -> list[str]:
    """The names as a list. ValueError for one text, whose letters would be taken for names."""
    if isinstance(names, str):
        raise ValueError(f"logs={names!r}: give a list of names")
    return [*names]
