"""Rounds without an end: a destination that is at most an interval behind a namespace.

Inside: when a round is made, what happens if one fails, how many manifests are left. Not inside: one round
(``rounds``).
Always: a failed round changes no manifest, and the next one sends what it did not; a process that is killed
is followed by another one, which begins with the newest manifest.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import attrs
import trio

from dlog.backup.errors import BackupDamagedError, BackupInUseError, BackupUnreachableError
from dlog.backup.format import ManifestName
from dlog.backup.pruning import Keep, kept_by, thinned
from dlog.backup.rounds import BackupRounds
from dlog.backup.source import BackupSource
from dlog.backup.store import BackupStore
from dlog.context import NamespaceContext
from dlog.errors import (
    EmbeddedStoreError,
    LogUnavailableError,
    NamespaceNotBoundError,
    translated,
)
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

QUIET_MS = 60_000  # a manifest is written after this time, also if nothing changed: it says that all is well
PRUNE_S = 600.0
PAUSE_MAX_S = 30.0  # between two attempts while the source or the destination is away

logger = get_logger(__name__)

OpenSource = Callable[[], AbstractAsyncContextManager[NamespaceContext]]


@attrs.frozen(kw_only=True)
class ReplicaStatus:
    """The state of a replication after a round."""

    cut_ms: int | None  # of the newest manifest; None before the first one
    behind_s: float  # since then
    rounds: int
    bytes_sent: int
    failure: str | None  # why the last round failed; None: it did not


@attrs.frozen
class ReplicationPlan:
    """The settings of a replication."""

    interval_s: float
    keep: Keep | None
    retry_timeout_s: float  # how long the source or the destination may be away; inf: for ever
    logs: tuple[str, ...] | None = None  # None: all, and the blobs


class Replication:
    """Keeps one destination up to date."""

    def __init__(
        self,
        store: BackupStore,
        open_source: OpenSource,
        plan: ReplicationPlan,
        *,
        wall_ms: Callable[[], int],
        on_round: Callable[[ReplicaStatus], None],
    ) -> None:
        self._store, self._open_source, self._wall_ms = store, open_source, wall_ms
        self._plan = plan
        self._on_round = on_round
        self._rounds = BackupRounds(store, wall_ms)
        self._count = 0
        self._began_ms = wall_ms()
        self._prune_at_s = -math.inf

    async def run(self) -> None:
        """Run until cancelled. A cancelled round leaves the manifests before it.

        Raises:
            BackupError: The destination belongs to another namespace, is in use, or was away for too long.
            DLogError: The source cannot be used, or was away for too long.
        """
        failing_since_s: float | None = None
        pause_s = self._plan.interval_s
        while True:
            try:
                async with self._opened() as source:
                    while True:
                        began_s = trio.current_time()
                        await self._round(source.source)
                        failing_since_s, pause_s = None, self._plan.interval_s
                        self._report(None)
                        await trio.sleep_until(began_s + self._plan.interval_s)
                        if source.is_snapshot:
                            break  # a process may have begun to write
            except (
                BackupInUseError,
                BackupUnreachableError,
                LogUnavailableError,
                EmbeddedStoreError,
                NamespaceNotBoundError,
            ) as exc:
                now_s = trio.current_time()
                failing_since_s = now_s if failing_since_s is None else failing_since_s
                if now_s - failing_since_s >= self._plan.retry_timeout_s:
                    raise
                logger.warning(
                    "replicating to %s failed, trying again in %.1f s: %s",
                    self._store.where,
                    pause_s,
                    exc,
                    extra=event("backup.round_failed", destination=self._store.where, error=exc),
                )
                self._report(exc)
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[_Opened]:
        """The source, open, and the destination, held for writing."""
        async with AsyncExitStack() as stack:
            context = await stack.enter_async_context(self._open_source())
            source = BackupSource(context, self._plan.logs)
            with translated(None, "backing it up"):
                instance_id = await source.instance_id()
            await stack.enter_async_context(self._store.writing(instance_id, source.path))
            await self._rounds.find_last()
            yield _Opened(source, context.is_snapshot)

    async def _round(self, source: BackupSource) -> None:
        last = self._rounds.last
        is_due = last is None or self._wall_ms() - last.cut_ms >= QUIET_MS
        with translated(None, "backing it up"):
            await self._rounds.run(source, whole=False, always=is_due)
        self._count += 1
        if trio.current_time() >= self._prune_at_s:
            self._prune_at_s = trio.current_time() + PRUNE_S
            names = await self._store.names()
            try:
                await self._store.prune(self._kept(names))
            except BackupDamagedError as exc:  # what it needs is not known, so no chunk is deleted
                logger.warning(
                    "%s: no chunk is deleted: %s", self._store.where, exc, extra=event("backup.not_pruned")
                )

    def _kept(self, names: list[ManifestName]) -> list[ManifestName]:
        now_ms = self._wall_ms()
        kept = thinned(names, now_ms)
        return kept if self._plan.keep is None else kept_by(kept, self._plan.keep, now_ms)

    def _report(self, failure: Exception | None) -> None:
        last = self._rounds.last
        cut_ms = None if last is None else last.cut_ms
        self._on_round(
            ReplicaStatus(
                cut_ms=cut_ms,
                behind_s=max(0, self._wall_ms() - (self._began_ms if cut_ms is None else cut_ms)) / 1000,
                rounds=self._count,
                bytes_sent=self._rounds.bytes_sent,
                failure=None if failure is None else str(failure),
            )
        )


@attrs.frozen
class _Opened:
    source: BackupSource
    is_snapshot: bool
