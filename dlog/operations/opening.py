"""Opening a log for reading or writing, in the namespace that has it.

Inside: the checks before, and which namespace a writer is in while its log may move. Not inside: how a log
moves (``dlog.context.LogLocation``), becoming its writer (``write.opening``), readers (``read.log_reader``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import attrs

from dlog.config import WriterConfig
from dlog.context import NamespaceContext
from dlog.errors import LogMovedError
from dlog.operations.administration import create_log
from dlog.read.cursors import LogCursors, attach_cursor
from dlog.read.log_reader import LogReader, open_log_reader
from dlog.read.positioning import Start
from dlog.write.log_writer import LogWriter
from dlog.write.opening import open_log_writer
from dlog.write.reopening import kept_open
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.metadata_store.lock import DistributedLock
from namespace.access_control.entries import Denial
from namespace.dlsn import DLSN
from namespace.policy import Right


def cursors_of(context: NamespaceContext, name: str) -> LogCursors:
    """See ``Namespace.cursors``."""
    log = context.log(name)
    location = context.location(log.name)

    async def elsewhere() -> LogCursors:
        return cursors_of(await location.successor(), log.name)

    return LogCursors(
        log,
        partial(context.permitted, log.name),
        retry_timeout_s=context.config.reader.retry_timeout_s,
        elsewhere=elsewhere,
    )


def open_reader(
    context: NamespaceContext,
    name: str,
    start: DLSN | int | Start,
    *,
    end: DLSN | int | Start | None,
    follow: bool,
    cursor: str | None,
    gaps: bool,
) -> AbstractAsyncContextManager[LogReader]:
    """See ``Namespace.open_reader``."""
    log = context.log(name)

    @asynccontextmanager
    async def opened() -> AsyncIterator[LogReader]:
        try:
            await context.permitted(log.name, Right.READ)
        except LogMovedError:
            there = await context.location(log.name).for_reader()
            if there is not context:
                async with open_reader(
                    there, log.name, start, end=end, follow=follow, cursor=cursor, gaps=gaps
                ) as reader:
                    yield reader
                return
        attached = None if cursor is None else await attach_cursor(cursors_of(context, log.name), cursor)
        begin = start if attached is None or attached.seen is None else attached.seen.position
        async with open_log_reader(
            log,
            context.config.reader,
            start=begin,
            end=end,
            follow=follow,
            cursor=attached,
            gaps=gaps,
        ) as reader:
            yield reader

    return opened()


@asynccontextmanager
async def open_writer(
    context: NamespaceContext,
    name: str,
    create: bool,
    lock_timeout_s: float | None,
    config: WriterConfig,
    reopen: bool,
) -> AsyncIterator[LogWriter]:
    """See ``Namespace.open_writer``; the name and the right to write are checked."""
    operations = Right.WRITE, Denial.ACQUIRE, Denial.WRITE
    try:
        await context.permitted(name, *operations)
        is_here = True
    except LogMovedError:
        await context.may(name, *operations)
        is_here = False
    if context.config.shared_with_java:
        config.check_shared()
    if config.keys_and_headers is None:
        config = attrs.evolve(config, keys_and_headers=not context.config.shared_with_java)
    if create:
        await context.where_it_is(name, lambda there: create_log(there, name, exist_ok=True))
    timeout_s = config.lock_timeout_s if lock_timeout_s is None else lock_timeout_s
    async with open_log_writer(
        context.log(name),
        _WritersPlace(context, name, config, timeout_s, is_here=is_here),
        config,
        context.store,
        wall_ms=context.wall_ms,
        check_admin=partial(context.may, name, Right.ADMIN),
        check_truncation=partial(context.may, name, Right.ADMIN, Denial.TRUNCATE),
    ) as writer:
        context.writers.append(writer)
        try:
            if reopen:
                async with kept_open(writer.reopener(context.store)):
                    yield writer
            else:
                yield writer
        finally:
            context.writers.remove(writer)


class _WritersPlace:
    """Where a log is while its writer is open; see ``write.opening.WritersPlace``."""

    def __init__(
        self, context: NamespaceContext, name: str, config: WriterConfig, timeout_s: float, *, is_here: bool
    ) -> None:
        """``is_here``: the caller has just seen that the log takes records in this namespace."""
        self._context, self._name, self._config, self._timeout_s = context, name, config, timeout_s
        self._is_here, self._is_first, self._where = is_here, True, context
        self.can_move = context.location(name).can_move

    async def take(self) -> tuple[SegmentLifecycle, DistributedLock]:
        """See ``write.opening.WritersPlace``."""
        context, name = self._context, self._name
        if not self._is_first:  # opened again
            await context.may(name, Right.WRITE, Denial.ACQUIRE, Denial.WRITE)
        self._is_first = False
        # The check above has just looked. If the log was moved since, reading its nodes under the lock shows
        # it, and the next lock is that of the other namespace.
        self._where = context if self._is_here else await context.location(name).current()
        self._is_here = False
        lock = await self._where.take_lock(name, self._timeout_s)
        return self._where.writers_lifecycle(name, lock, self._config), lock

    async def follow(self) -> tuple[SegmentLifecycle, DistributedLock] | None:
        """See ``write.opening.WritersPlace``."""
        found = await self._where.location(self._name).follow(self._timeout_s, self._config)
        if found is None:
            return None
        self._where, lifecycle, lock = found
        return lifecycle, lock

    async def wait_moved(self) -> None:
        """See ``write.opening.WritersPlace``."""
        await self._where.location(self._name).wait_moved()
