"""Becoming the one writer of a log: its lock, the recovery, the tasks of the writer.

Inside: the order of these steps, on the way in and out. Not inside: the segments (``segment_lifecycle``,
``segment_roller``), taking records (``log_writer``).
Always: a writer takes its first record after the segments of earlier writers are recovered; a record that it
took is written before the lock is released, or its caller gets an error.

Source: DistributedLog, BKLogWriteHandler.java (docs/stream-format.md 4.1, 4.9).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from dlog.config import WriterConfig
from dlog.errors import DLogError, LogLockedError, LogNotFoundError, as_dlog_error
from dlog.metadata import paths
from dlog.read.chain_end import chain_at_end
from dlog.read.read_only_log import ReadOnlyLog
from dlog.write.log_writer import LogWriter
from dlog.write.segment_lifecycle import SegmentLifecycle
from dlog.write.segment_roller import SegmentRoller
from ledger.tasks.service_tasks import open_service_tasks
from namespace import errors as namespace_errors
from namespace.lock import DistributedLock, in_order, member_owner
from namespace.store import MetadataStore

PURGE_S = 5.0  # a writer that closes waits so long for a purge under way


async def lock_owner(store: MetadataStore, namespace_path: str, log: str) -> str | None:
    """The client that holds the log's lock, or is the next to hold it; None if there is none.

    Raises:
        namespace.errors.NamespaceError: The store failed.
    """
    path = paths.lock_path(namespace_path, log)
    try:
        members = in_order((await store.children(path)).names)
        if not members:
            return None
        if (owner := member_owner(members[0])) is not None:
            return owner[0]
        return (await store.get(f"{path}/{members[0]}")).value.decode("utf-8", "replace")
    except namespace_errors.NoNodeError:
        return None


@asynccontextmanager
async def locked(
    store: MetadataStore, namespace_path: str, log: str, client_id: str, timeout_s: float
) -> AsyncIterator[DistributedLock]:
    """Hold the log's lock for the duration of the block.

    Raises:
        LogLockedError: Another writer held it until the timeout.
        LogNotFoundError, LogUnavailableError, NamespaceLostError
    """
    lock = DistributedLock(store, paths.lock_path(namespace_path, log), client_id)
    try:
        await lock.acquire(timeout_s)
    except namespace_errors.LockTakenError as exc:
        raise LogLockedError(log, exc.owner, exc.waited_s) from exc
    except namespace_errors.NoNodeError as exc:
        raise LogNotFoundError(log) from exc
    except namespace_errors.NamespaceError as exc:
        raise as_dlog_error(exc, log, "acquiring its lock") from exc
    try:
        yield lock
    finally:
        # ``release`` has a timeout of its own. A lock that is lost already is no error.
        with trio.CancelScope(shield=True):
            await lock.release()


@asynccontextmanager
async def open_log_writer(
    log: ReadOnlyLog,
    lifecycle: SegmentLifecycle,
    lock: DistributedLock,
    config: WriterConfig,
    *,
    wall_ms: Callable[[], int],
    check_truncation: Callable[[], Awaitable[object]],
) -> AsyncIterator[LogWriter]:
    """The writer of a log whose lock is held; see ``Namespace.open_writer``.

    Args:
        check_truncation: Awaited before each truncation; it may raise.
    """
    async with open_service_tasks() as tasks:
        await lifecycle.refresh()
        await lifecycle.recover_all()
        last_txid = lifecycle.last_txid
        # After the recovery, so that the value counts all records that the next writer follows.
        chain = await chain_at_end(log) if config.hash_chain else None
        roller = SegmentRoller(log.name, lifecycle, lock, config, last_txid=last_txid, chain=chain)
        writer = LogWriter(
            log.name,
            roller,
            config,
            last_txid=last_txid,
            lookup=log,
            wall_ms=wall_ms,
            check_truncation=check_truncation,
        )
        tasks.start_soon(roller.run)
        tasks.start_soon(roller.sender.keep_visible)
        tasks.start_soon(roller.watch_lock)
        if config.purge:
            tasks.start_soon(roller.purger.run)
        try:
            yield writer
        except BaseException:
            # Records already taken are still written. The block's error is raised, not one of closing.
            with trio.CancelScope(shield=True):
                try:
                    await writer.aclose()
                except DLogError:
                    pass
            raise
        else:
            await writer.aclose()
            if config.purge:
                with trio.move_on_after(PURGE_S):
                    await roller.purger.wait_idle()
