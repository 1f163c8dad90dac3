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

import attrs
import trio

from dlog.config import WriterConfig
from dlog.errors import DLogError, LogFencedError, LogLockedError, LogPromotedError, as_dlog_error, translated
from dlog.read.chain_end import chain_at_end
from dlog.read.read_only_log import ReadOnlyLog
from dlog.retry_policy import RetryPolicy
from dlog.statistics_names import LOCK, RECOVER
from dlog.write.batcher import Batch
from dlog.write.log_writer import LogWriter
from dlog.write.segment_lifecycle import SegmentLifecycle
from dlog.write.writer_shell import FollowLog, WriterShell
from ledger.metadata_store import errors as store_errors
from ledger.metadata_store.lock import DistributedLock, in_order, member_owner
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.tasks.service_tasks import open_service_tasks
from namespace import paths
from namespace.origin import log_not_found

PURGE_S = 5.0  # a writer that closes waits this long for a purge under way


async def lock_owner(store: MetadataStore, namespace_path: str, log: str) -> str | None:
    """The client that holds the log's lock, or is the next to hold it; None if there is none.

    Raises:
        ledger.metadata_store.errors.NamespaceError: The store failed.
    """
    path = paths.lock_path(namespace_path, log)
    try:
        members = in_order((await store.children(path)).names)
        if not members:
            return None
        if (owner := member_owner(members[0])) is not None:
            return owner[0]
        return (await store.get(f"{path}/{members[0]}")).value.decode("utf-8", "replace")
    except store_errors.NoNodeError:
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
    lock = await take_lock(store, namespace_path, log, client_id, timeout_s)
    try:
        yield lock
    finally:
        # ``release`` has a timeout of its own. A lock that is lost already is no error.
        with trio.CancelScope(shield=True):
            await lock.release()


async def take_lock(
    store: MetadataStore, namespace_path: str, log: str, client_id: str, timeout_s: float
) -> DistributedLock:
    """Acquire the log's lock. Raises like ``locked``; if it raises or is cancelled, no lock is held."""
    try:
        lock = DistributedLock(store, paths.lock_path(namespace_path, log), client_id)
        await lock.acquire(timeout_s)
    except store_errors.LockTakenError as exc:
        raise LogLockedError(log, exc.owner, exc.waited_s) from exc
    except store_errors.NoNodeError as exc:
        with translated(log, "acquiring its lock"):
            raise await log_not_found(store, namespace_path, log) from exc
    except store_errors.NamespaceError as exc:
        raise as_dlog_error(exc, log, "acquiring its lock") from exc
    return lock


@asynccontextmanager
async def open_log_writer(
    log: ReadOnlyLog,
    acquire: Callable[[], Awaitable[DistributedLock]],
    lifecycle_of: Callable[[DistributedLock], SegmentLifecycle],
    config: WriterConfig,
    store: MetadataStore,
    *,
    wall_ms: Callable[[], int],
    check_admin: Callable[[], Awaitable[object]],
    check_truncation: Callable[[], Awaitable[object]],
    follow: FollowLog | None = None,
    wait_promoted: Callable[[], Awaitable[None]] = trio.sleep_forever,
) -> AsyncIterator[LogWriter]:
    """The writer of a log; see ``Namespace.open_writer``.

    Args:
        acquire: Takes the log's lock, when the writer is opened and each time it is reopened.
        lifecycle_of: The segments, changed in the session of the lock.
        check_admin: Awaited before sealing; it may raise.
        check_truncation: Awaited before each truncation; it may raise.
        follow: Finds the log where it was promoted to; None for a log that cannot be promoted.
        wait_promoted: Returns when it is handed over to another namespace.
    """
    retries = RetryPolicy(timeout_s=config.retry_timeout_s, pause_s=config.retry_pause_s)
    async with open_service_tasks() as tasks:
        newest: WriterShell | None = None
        has_written = False
        origin = ""  # read when the writer is opened

        async def take_over(failed_before: Sequence[Batch]) -> WriterShell:
            nonlocal newest, has_written, origin, config
            has_written = has_written or (newest is not None and newest.machine.has_begun)
            while True:
                with log.operation(LOCK, "lock"):
                    lock = await acquire()
                try:
                    lifecycle = lifecycle_of(lock)
                    await lifecycle.refresh()
                    with lifecycle.operation(RECOVER, "recover"):
                        await lifecycle.recover_all()
                    # After the recovery, so that the value counts all records that the next writer follows.
                    config = attrs.evolve(config, hash_chain=await lifecycle.keep_chain(config.hash_chain))
                    chain = await chain_at_end(log) if config.hash_chain else None
                    found = log.name if config.encryption is None else await log.origin()
                    if origin not in ("", found):
                        raise LogFencedError(log.name, "it was renamed, and this is another log of its name")
                    origin = found
                    break
                except BaseException as exc:
                    with trio.CancelScope(shield=True):
                        await lock.release()
                    if follow is None or not isinstance(exc, LogPromotedError):
                        raise
                    # Promoted while this call waited for the lock: the next lock is that of the target.
            shell = WriterShell(
                log.name,
                lifecycle,
                lock,
                config,
                last_txid=lifecycle.last_txid,
                chain=chain,
                failed_before=failed_before,
                follow=follow,
                bookies_timeout_s=None if has_written else lifecycle.connect_timeout_s,
            )
            tasks.start_soon(shell.run)
            tasks.start_soon(partial(shell.serve, purge=config.purge, wait_promoted=wait_promoted))
            if newest is not None:
                log.recorder.close_source(newest)
            newest = shell
            log.recorder.open_source(shell, shell.counters, shell.gauges)
            return shell

        async def begin(failed_before: Sequence[Batch]) -> WriterShell:
            return await retries.while_store_is_away(
                lambda: take_over(failed_before), store, subject=f"log {log.name}: opening it for writing"
            )

        writer = LogWriter(
            log.name,
            await begin(()),
            config,
            begin=begin,
            lookup=log,
            origin=origin,
            wall_ms=wall_ms,
            check_admin=check_admin,
            check_truncation=check_truncation,
        )
        assert newest is not None  # the list was checked above
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
                    await newest.purger.wait_idle()
        finally:
            log.recorder.close_source(newest)
