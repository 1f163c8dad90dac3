"""The place of a log of a directory, which a promotion can move to another namespace.

Inside: the seam between promotions and the rest (``dlog.context.LogLocation``): who opens a log, reads or
writes it, asks here where it is. Not inside: the steps of a promotion (``promoter``), the segments of both
sides (``promoted_log``).
Always: a log takes records in at most one place; a hand-over whose process died is finished by whoever needs
the log next.

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from dlog.config import WriterConfig
from dlog.context import LogLocation, NamespaceContext
from dlog.errors import (
    LogLockedError,
    LogMovedError,
    LogUnavailableError,
    NamespaceLostError,
    PromotionError,
    translated,
)
from dlog.promotion.nodes import read_source
from dlog.promotion.promoted_log import PromotedLog
from dlog.promotion.promoter import Promoter
from dlog.promotion.record import SourcePhase, SourceRecord
from dlog.read.read_only_log import ReadOnlyLog
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.metadata_store.lock import DistributedLock

POLL_S = 1.0  # while another process finishes a hand-over; it may die without a sign

OpenContext = Callable[[str], Awaitable[NamespaceContext]]


class PromotableLocation:
    """The place of a log that is in a directory, or was until it was promoted.

    Args:
        context: Of the directory.
        open_context: Opens the namespace of a URI, or returns the open one.
    """

    can_move = True

    def __init__(self, context: NamespaceContext, name: str, open_context: OpenContext) -> None:
        self._context, self.name, self.open_context = context, name, open_context

    async def record(self, *, watch: trio.Event | None = None) -> SourceRecord | None:
        """The record of the log's promotion; None if it is not being promoted and was not.

        Args:
            watch: Set when that changes.
        """
        with translated(self.name, "looking whether it was promoted"):
            return await read_source(self._context.nodes(self.name), watch=watch)

    async def check_here(self) -> None:
        """See ``LogLocation.check_here``."""
        record = await read_source(self._context.nodes(self.name))
        if record is not None and record.is_closed:
            raise LogMovedError(self.name, record.target)

    async def check_stays(self, refused: str) -> None:
        """See ``LogLocation.check_stays``."""
        if (record := await self.record()) is not None:
            raise PromotionError(
                self.name,
                f"{refused}, because it is being promoted to {record.target}; give that up first with `dlog"
                f" promote {self._context.uri} --log {self.name} --undo`, or wait for its end",
            )

    async def moved_to(self) -> str | None:
        """See ``LogLocation.moved_to``."""
        record = await self.record()
        return None if record is None or not record.is_closed else record.target

    async def current(self) -> NamespaceContext:
        """See ``LogLocation.current``."""
        return self._context if await self.moved_to() is None else await self.successor()

    async def successor(self) -> NamespaceContext:
        """See ``LogLocation.successor``. A hand-over whose process died is finished here."""
        context, name = self._context, self.name
        with trio.move_on_after(context.config.writer.retry_timeout_s):
            while True:
                watch = trio.Event()
                record = await self.record(watch=watch)
                if record is None or not record.is_closed:
                    raise LogUnavailableError(f"log {name!r}: its promotion was just undone; try again")
                target = await self.open_context(record.target)
                if record.phase is SourcePhase.DONE:
                    return target
                if not context.read_only:
                    try:
                        await Promoter(context, target, name).run()
                        continue
                    except PromotionError:
                        pass  # another process does it, or has just done or undone it
                with trio.move_on_after(POLL_S):
                    await watch.wait()
        raise LogUnavailableError(
            f"log {name!r}: it is being handed over to another namespace, and that did not end in time; `dlog"
            f" promote {context.uri} --log {name} --resume` says why"
        )

    async def for_reader(self) -> NamespaceContext:
        """See ``LogLocation.for_reader``. Until the end of the hand-over everything can be read here."""
        record = await self.record()
        is_done = record is not None and record.phase is SourcePhase.DONE
        return await self.successor() if is_done else self._context

    async def follow(
        self, timeout_s: float, config: WriterConfig
    ) -> tuple[NamespaceContext, SegmentLifecycle, DistributedLock] | None:
        """See ``LogLocation.follow``."""
        name, target = self.name, await self.current()
        record = await self.record()
        if target is self._context or record is None:
            return None
        try:
            lock = await target.take_lock(name, timeout_s)
        except LogLockedError as exc:
            raise LogMovedError(name, record.target, f"{exc.owner} writes it there now") from exc
        try:
            lifecycle = target.writers_lifecycle(name, lock, config)
            await lifecycle.refresh()
            if lifecycle.segments and lifecycle.segments[-1].segment_seqno > record.last_seqno:
                # Records of this writer that are not written yet would come after those of the other one.
                raise LogMovedError(name, record.target, "another writer has written it there since")
        except BaseException:
            with trio.CancelScope(shield=True):
                await lock.release()
            raise
        return target, lifecycle, lock

    async def wait_moved(self) -> None:
        """See ``LogLocation.wait_moved``."""
        while True:
            watch = trio.Event()
            try:
                record = await self.record(watch=watch)
            except NamespaceLostError:
                await trio.sleep_forever()  # the writer finds out by its lock
            except LogUnavailableError:
                await trio.sleep(POLL_S)
                continue
            if record is not None and record.is_closed:
                return
            await watch.wait()

    def log(self) -> ReadOnlyLog:
        """See ``LogLocation.log``."""
        context, name = self._context, self.name

        async def open_log(uri: str) -> ReadOnlyLog:
            return (await self.open_context(uri)).log(name)

        return PromotedLog(context.nodes(name), context.client, context.config.password, open_log)


def promotable(open_context: OpenContext) -> Callable[[NamespaceContext, str], LogLocation]:
    """The places of logs in a directory, for ``NamespaceContext.locate``."""

    def locate(context: NamespaceContext, name: str) -> LogLocation:
        return PromotableLocation(context, name, open_context)

    return locate
