"""Becoming the one writer of a log: its lock, the recovery, the tasks of the writer.

Inside: the order of these steps, on the way in and out. Not inside: the segments (``segment_lifecycle``,
``writer_shell``), taking records (``log_writer``).
Always: a writer takes its first record after the segments of earlier writers are recovered; a record that it
took is written before the lock is released, or its caller gets an error.

Source: DistributedLog, BKLogWriteHandler.java (docs/stream-format.md 4.1, 4.9).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import attrs
import trio

from dlog.config import WriterConfig
from dlog.errors import DLogError, LogFencedError, LogLockedError, LogMovedError, translated
from dlog.format.hash_chain import ChainValue
from dlog.read.chain_end import chain_at_end
from dlog.read.read_only_log import ReadOnlyLog
from dlog.retry_policy import RetryPolicy
from dlog.statistics_names import LOCK, RECOVER
from dlog.write.batcher import Batch
from dlog.write.log_writer import LogWriter
from dlog.write.segment_lifecycle import SegmentLifecycle
from dlog.write.writer_shell import WriterShell
from ledger.metadata_store import errors as store_errors
from ledger.metadata_store.lock import DistributedLock, in_order, member_owner
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.tasks.service_tasks import ServiceTasks, open_service_tasks
from namespace.log_nodes import LogNodes
from namespace.origin import log_not_found

PURGE_S = 5.0  # a writer that closes waits this long for a purge under way


class WritersPlace(Protocol):
    """Where a log is while its writer is open: in one namespace, until it moves to another one."""

    can_move: bool

    async def take(self) -> tuple[SegmentLifecycle, DistributedLock]:
        """Take the log's lock where it takes records now; the segments are changed in the lock's session."""

    async def follow(self) -> tuple[SegmentLifecycle, DistributedLock] | None:
        """The same where the log was moved to, for a writer that was stopped; None if it was not moved."""

    async def wait_moved(self) -> None:
        """Return when the log takes records somewhere else."""


async def lock_owner(log: LogNodes) -> str | None:
    """The client that holds the log's lock, or is the next to hold it; None if there is none.

    Raises:
        ledger.metadata_store.errors.MetadataError: The store failed.
    """
    path = log.lock_path
    try:
        members = in_order((await log.store.children(path)).names)
        if not members:
            return None
        if (owner := member_owner(members[0])) is not None:
            return owner[0]
        return (await log.store.get(f"{path}/{members[0]}")).value.decode("utf-8", "replace")
    except store_errors.NoNodeError:
        return None


@asynccontextmanager
async def locked(
    log: LogNodes, client_id: str, timeout_s: float, session_timeout_s: float | None = None
) -> AsyncIterator[DistributedLock]:
    """Hold the log's lock for the duration of the block.

    Raises:
        LogLockedError: Another writer held it until the timeout.
        LogNotFoundError, LogUnavailableError, NamespaceLostError
    """
    lock = await take_lock(log, client_id, timeout_s, session_timeout_s)
    try:
        yield lock
    finally:
        # ``release`` has a timeout of its own. A lock that is lost already is no error.
        with trio.CancelScope(shield=True):
            await lock.release()


async def take_lock(
    log: LogNodes, client_id: str, timeout_s: float, session_timeout_s: float | None = None
) -> DistributedLock:
    """Acquire the log's lock. Raises like ``locked``; if it raises or is cancelled, no lock is held.

    ``session_timeout_s``: after which the lock of a killed owner goes, for the error; None: at once.
    """
    try:
        lock = DistributedLock(log.store, log.lock_path, client_id)
        await lock.acquire(timeout_s)
    except store_errors.LockTakenError as exc:
        raise LogLockedError(
            log.name, exc.owner, exc.waited_s, is_own=exc.is_own, session_timeout_s=session_timeout_s
        ) from None
    except store_errors.NoNodeError:
        with translated(log.name, "acquiring its lock"):
            raise await log_not_found(log) from None
    except store_errors.MetadataError:
        with translated(log.name, "acquiring its lock"):
            raise
    return lock


class _Takeovers:
    """Takes a log over for one open writer: when it is opened, and each time it is reopened."""

    def __init__(
        self,
        log: ReadOnlyLog,
        place: WritersPlace,
        config: WriterConfig,
        store: MetadataStore,
        tasks: ServiceTasks,
    ) -> None:
        self._log, self._place, self._store, self._tasks = log, place, store, tasks
        self._retries = RetryPolicy(timeout_s=config.retry_timeout_s, pause_s=config.retry_pause_s)
        self.config = config  # says from the first recovery on whether the log has a hash chain
        self.origin = ""  # read when the writer is opened
        self.newest: WriterShell | None = None
        self._has_written = False

    async def begin(self, failed_before: Sequence[Batch]) -> WriterShell:
        """Take the log's lock, recover its segments and start the tasks of a writer; return its shell.

        If it raises or is cancelled, no lock is held.
        """
        return await self._retries.while_store_is_away(
            lambda: self._take_over(failed_before),
            self._store,
            subject=f"log {self._log.name}: opening it for writing",
        )

    async def _take_over(self, failed_before: Sequence[Batch]) -> WriterShell:
        log, place, before = self._log, self._place, self.newest
        self._has_written |= before is not None and before.machine.has_begun
        lifecycle, lock, chain = await self._locked()
        shell = WriterShell(
            log.name,
            lifecycle,
            lock,
            self.config,
            last_txid=lifecycle.last_txid,
            timers=lifecycle.timers,
            chain=chain,
            failed_before=failed_before,
            follow=place.follow if place.can_move else None,
            bookies_timeout_s=None if self._has_written else lifecycle.connect_timeout_s,
        )
        self._tasks.start_soon(shell.run)
        self._tasks.start_soon(partial(shell.serve, purge=self.config.purge, wait_moved=place.wait_moved))
        self.close_source()
        self.newest = shell
        log.recorder.open_source(shell, shell.counters, shell.gauges)
        return shell

    async def _locked(self) -> tuple[SegmentLifecycle, DistributedLock, ChainValue | None]:
        while True:
            with self._log.operation(LOCK, "lock"):
                lifecycle, lock = await self._place.take()
            try:
                return lifecycle, lock, await self._recovered(lifecycle)
            except BaseException as exc:
                with trio.CancelScope(shield=True):
                    await lock.release()
                if not self._place.can_move or not isinstance(exc, LogMovedError):
                    raise
                # Moved while this call waited for the lock: the next lock is that of the other place.

    async def _recovered(self, lifecycle: SegmentLifecycle) -> ChainValue | None:
        """Recover the segments of earlier writers; return the value of the hash chain at their end."""
        log = self._log
        await lifecycle.refresh()
        with lifecycle.operation(RECOVER, "recover"):
            await lifecycle.recover_all()
        # After the recovery, so that the value counts all records that the next writer follows.
        has_chain = await lifecycle.keep_chain(self.config.hash_chain)
        if self.config.hash_chain is not has_chain:  # else all writers share one
            self.config = attrs.evolve(self.config, hash_chain=has_chain)
        chain = await chain_at_end(log) if has_chain else None
        found = log.name if self.config.encryption is None else await log.origin()
        if self.origin not in ("", found):
            raise LogFencedError(log.name, "it was renamed, and this is another log of its name")
        self.origin = found
        return chain

    def close_source(self) -> None:
        """Let the counts of the newest writer be final."""
        if self.newest is not None:
            self._log.recorder.close_source(self.newest)


@asynccontextmanager
async def closed_at_end(close: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Close a writer after the block. If that raised, or was cancelled, records already taken are still
    written; the block's error is raised, not one of closing."""
    try:
        yield
    except BaseException:
        with trio.CancelScope(shield=True):
            try:
                await close()
            except DLogError:
                pass
        raise
    await close()


@asynccontextmanager
async def open_log_writer(
    log: ReadOnlyLog,
    place: WritersPlace,
    config: WriterConfig,
    store: MetadataStore,
    *,
    wall_ms: Callable[[], int],
    check_admin: Callable[[], Awaitable[object]],
    check_truncation: Callable[[], Awaitable[object]],
) -> AsyncIterator[LogWriter]:
    """The writer of a log; see ``Namespace.open_writer``.

    Args:
        place: Where the log is; asked when the writer is opened, each time it is reopened, and by its tasks.
        check_admin: Awaited before sealing; it may raise.
        check_truncation: Awaited before each truncation; it may raise.
    """
    async with open_service_tasks() as tasks:
        takeovers = _Takeovers(log, place, config, store, tasks)
        shell = await takeovers.begin(())
        try:
            writer = LogWriter(
                log.name,
                shell,
                takeovers.config,
                begin=takeovers.begin,
                lookup=log,
                origin=takeovers.origin,
                wall_ms=wall_ms,
                check_admin=check_admin,
                check_truncation=check_truncation,
            )
            async with closed_at_end(writer.aclose):
                yield writer
            if takeovers.config.purge:
                assert takeovers.newest is not None  # ``begin`` returned
                with trio.move_on_after(PURGE_S):
                    await takeovers.newest.purger.wait_idle()
        finally:
            takeovers.close_source()
