"""Opening a log for reading or writing, in the namespace that has it.

Inside: the checks before, and which namespace a writer is in while its log may move. Not inside: how a log
moves (``dlog.context.LogLocation``), becoming its writer (``write.opening``), readers (``read.log_reader``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from secrets import token_hex

import attrs
import trio

from dlog.config import WriterConfig
from dlog.context import NamespaceContext
from dlog.encryption import PayloadOpener
from dlog.errors import ConfigError, LogMovedError
from dlog.operations.administration import create_log
from dlog.read.cursors import LogCursors, attach_cursor
from dlog.read.log_reader import LogReader, open_log_reader
from dlog.read.positioning import Start
from dlog.read.segment_watch import SegmentWatch, open_segment_watch
from dlog.retry_policy import is_store_away
from dlog.write.log_writer import LogWriter
from dlog.write.opening import open_log_writer
from dlog.write.reopening import kept_open
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.metadata_store.lock import DistributedLock
from namespace.access_control.entries import Denial
from namespace.dlsn import DLSN
from namespace.owner_address import NEVER
from namespace.policy import Right
from namespace.segments.segment import LogSegment


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
async def watch_segments(context: NamespaceContext, name: str) -> AsyncIterator[SegmentWatch]:
    """See ``Namespace.watch_segments``."""
    context.checked(name)

    async def look(changed: trio.Event) -> Sequence[LogSegment]:
        async def list_now() -> Sequence[LogSegment]:
            return await context.log(name).segments(watch=changed)

        return await context.while_store_is_away(Right.READ, list_now)

    try:
        await context.permitted(name, Right.READ)
    except LogMovedError:
        there = await context.location(name).for_reader()
        if there is context:
            raise
        async with watch_segments(there, name) as watch:
            yield watch
        return
    async with open_segment_watch(name, look) as watch:
        yield watch


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
    config, is_here = await _checked(context, name, config)
    if create:
        await _create(context, name)
    timeout_s = config.lock_timeout_s if lock_timeout_s is None else lock_timeout_s
    async with _open_alone(context, name, config, timeout_s, is_here=is_here) as writer:
        with _listed(context, writer):
            if reopen:
                async with kept_open(writer.reopener(context.store)):
                    yield writer
            else:
                yield writer


@asynccontextmanager
async def open_shared_writer(
    context: NamespaceContext,
    name: str,
    create: bool,
    lock_timeout_s: float | None,
    config: WriterConfig,
    producer: str | None,
) -> AsyncIterator[LogWriter]:
    """See ``Namespace.open_writer`` with ``shared``; the name and the right to write are checked."""
    # Only a program that shares a writer imports this.
    from dlog.forwarding import shared_writer
    from dlog.forwarding.shared_shell import SharedLog

    if context.meet is None:
        raise ConfigError(
            f"log {name!r}: this namespace has no place where programs meet to share a writer; let one"
            " program write it, or give each program a log, or a shard (dlog.shards), of its own"
        )
    producer = token_hex(16) if producer is None else producer
    meeting = context.meet(context.nodes(name))
    config, _ = await _checked(context, name, config)
    await shared_writer.check_program(meeting, producer)
    if create:
        await _create(context, name)

    async def opener() -> PayloadOpener | None:
        if config.encryption is None:
            return None
        log = context.log(name)
        return PayloadOpener(name, config.encryption, origin=await log.origin())

    shared = SharedLog(
        context.log(name),
        config,
        meeting,
        partial(_open_alone, context, name, config, 0.0, is_here=False),
        opener,
        partial(is_store_away, store=context.store),
        producer,
        *_administration(context, name),
        may_own=context.config.owner_address != NEVER,
    )
    timeout_s = config.lock_timeout_s if lock_timeout_s is None else lock_timeout_s
    async with shared_writer.open_shared_writer(shared, timeout_s) as writer:
        with _listed(context, writer):
            yield writer


async def _checked(context: NamespaceContext, name: str, config: WriterConfig) -> tuple[WriterConfig, bool]:
    """The settings of a writer that may be opened, and whether its log is in this namespace."""
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
    return config, is_here


async def _create(context: NamespaceContext, name: str) -> None:
    """Create the log if it is missing. All checks come before: a call that is refused creates nothing."""
    await context.where_it_is(name, lambda there: create_log(there, name, exist_ok=True))


def _open_alone(
    context: NamespaceContext, name: str, config: WriterConfig, timeout_s: float, *, is_here: bool
) -> AbstractAsyncContextManager[LogWriter]:
    """The log's one writer."""
    check_admin, check_truncation = _administration(context, name)
    return open_log_writer(
        context.log(name),
        _WritersPlace(context, name, config, timeout_s, is_here=is_here),
        config,
        context.store,
        wall_ms=context.wall_ms,
        check_admin=check_admin,
        check_truncation=check_truncation,
    )


def _administration(
    context: NamespaceContext, name: str
) -> tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]:
    """What a writer checks before sealing, and before each truncation."""
    return partial(context.may, name, Right.ADMIN), partial(context.may, name, Right.ADMIN, Denial.TRUNCATE)


@contextmanager
def _listed(context: NamespaceContext, writer: LogWriter) -> Iterator[None]:
    """The namespace knows the writer during the block."""
    context.writers.append(writer)
    try:
        yield
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
