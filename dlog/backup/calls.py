"""Making backups of a namespace, once or without an end.

Inside: the calls of ``Namespace.backup``; rights, the audit log. Not inside: the work (``rounds``,
``replication``), what is done with backups (``backups``).

Source: our own; docs/backup.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from dlog.context import NamespaceContext
from dlog.errors import translated
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async

if TYPE_CHECKING:  # a program that makes no backups imports none of these
    from dlog.backup.pruning import Keep
    from dlog.backup.replication import ReplicaStatus
    from dlog.backup.rounds import Backup, BackupProgress

INTERVAL_S = 0.8  # with the time of a round a second


def _nothing(_: object) -> None:
    """No report."""


@attrs.frozen
class BackupCalls(ProcessBound):
    """``Namespace.backup``: copies of the whole namespace, made while it is written."""

    context: NamespaceContext = attrs.field(repr=False)

    async def make(
        self,
        destination: str | os.PathLike[str],
        *,
        logs: Collection[str] | None = None,
        keep: Keep | None = None,
        on_progress: Callable[[BackupProgress], None] = _nothing,
    ) -> Backup:
        """Make a backup of all logs, or of some, as they are now. Only what the destination lacks is sent.

        Writers are not stopped or slowed. Each log is in the backup up to a record that was visible during
        the call; every record that was visible before the call is. If the call is cancelled or fails, the
        backups before it are whole, and the next one continues from there.

        Args:
            destination: The path of a directory of this user. It is made if its parent exists, and holds
                backups of one namespace.
            logs: Only these, without the blobs of the namespace; later backups at the destination have them,
                too. None: all logs and blobs.
            keep: Delete older backups afterwards; see ``Backups.prune``.
            on_progress: Called after each chunk.

        Raises:
            ValueError: ``keep`` is not positive, or ``logs`` is empty.
            LogNotFoundError: One of ``logs`` does not exist.
            AccessDeniedError: It needs the right "admin" on the logs "*".
            BackupInUseError: Another process writes there.
            BackupUnreachableError: The destination cannot be written.
            BackupError: It has backups of another namespace, or of logs that are not in ``logs``; or this
                namespace is federated.
            LogUnavailableError, LogMetadataError: The namespace cannot be read.
        """
        from dlog.backup.pruning import check_keep, kept_by
        from dlog.backup.rounds import Backup, BackupRounds
        from dlog.backup.source import BackupSource
        from dlog.backup.store import open_store

        if keep is not None:
            check_keep(keep)
        selection = None if logs is None else selected(logs)
        store = open_store(destination)
        async with (
            administered(self.context) as context,
            audited_async("back up", f"{context.uri} to {store.where}"),
        ):
            source = BackupSource(context, selection)
            with translated(None, "backing it up"):
                async with store.writing(await source.instance_id(), source.path):
                    rounds = BackupRounds(store, context.wall_ms, on_progress)
                    await rounds.find_last()
                    manifest = await rounds.run(source)
                    if keep is not None:
                        names = await store.names()
                        await store.prune(kept_by(names, keep, context.wall_ms()))
        return Backup.of(manifest)

    async def replicate(
        self,
        destination: str | os.PathLike[str],
        *,
        logs: Collection[str] | None = None,
        interval_s: float = INTERVAL_S,
        keep: Keep | None = None,
        retry_timeout_s: float = math.inf,
        on_round: Callable[[ReplicaStatus], None] = _nothing,
    ) -> None:
        """Keep a destination up to date until the call is cancelled.

        A round is made each interval; if it takes longer, the next one follows at once. While the source or
        the destination is away, it is tried again. Of older backups fewer are kept: each of the last hour,
        one of each minute of the last day, one of each hour before.

        Args:
            destination, logs, keep: As of ``make``.
            interval_s: From the begin of a round to that of the next one.
            retry_timeout_s: How long the source or the destination may be away.
            on_round: Called after each round, also after one that failed.

        Raises: the errors of ``make``.
        """
        from dlog.backup.errors import BackupError
        from dlog.backup.pruning import check_keep
        from dlog.backup.replication import Replication, ReplicationPlan
        from dlog.backup.store import open_store

        if keep is not None:
            check_keep(keep)
        selection = None if logs is None else selected(logs)
        if not interval_s > 0:
            raise ValueError(f"interval_s {interval_s!r}: give a positive number of seconds")
        if self.context.is_snapshot:
            raise BackupError(
                f"namespace {self.context.uri}: no process has it open for writing, so this view of it never"
                " changes. `dlog replicate` looks again each time; or open it after the writer"
            )
        replication = Replication(
            open_store(destination),
            lambda: administered(self.context),
            ReplicationPlan(interval_s, keep, retry_timeout_s, selection),
            wall_ms=self.context.wall_ms,
            on_round=on_round,
        )
        await replication.run()


def selected(logs: Collection[str]) -> tuple[str, ...]:
    """The logs of a backup that has only some.

    Raises:
        ValueError: There is none, or one text was given.
    """
    if isinstance(logs, str) or not logs:
        raise ValueError(f"logs {logs!r}: give names of logs, or None for all logs and blobs")
    return tuple(sorted(set(logs)))


@asynccontextmanager
async def administered(context: NamespaceContext) -> AsyncIterator[NamespaceContext]:
    """The namespace, if this program may back it up."""
    context.check_open()
    if context.is_backup:
        from dlog.backup.errors import BackupError

        raise BackupError(f"namespace {context.uri}: it is a backup itself; copy its directory or its prefix")
    with translated(None, "reading the policy"):
        await context.permissions.check_administrator()
    yield context
