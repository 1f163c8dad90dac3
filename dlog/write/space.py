"""Giving back the space of records: marking segments by position or retention, deleting the marked ones.

Inside: the steps, by any process, with or without the log's lock; the writer's task that does them.
Not inside: which segments a position marks, which marked ones may go (``namespace.segments.truncation``), the
rule of retention (``namespace.segments.retention``); the bookies' disks, whose garbage collection follows.
Always: a mark only moves forward, also when several processes truncate at once; only segments marked as
truncated are deleted, oldest first, the ledger before the node that names it; a crash between two steps
leaves a log that readers read as before, and the next call does the rest.

Source: DistributedLog, BKLogWriteHandler.java (docs/stream-format.md 6). Java's writers delete by age and
hold the lock. Here the marks alone decide, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from dlog.errors import DLogError, LogFencedError, LogUnavailableError, translated
from dlog.ownership import NamedByLog, delete_ledger
from ledger.client import LedgerClient
from ledger.errors import NoSuchLedgerError
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.task_errors import for_each
from ledger.runtime.tasks.timers import Timer, Timers
from namespace.cursor_nodes import list_cursors
from namespace.dlsn import DLSN
from namespace.log_metadata import LogMetadata
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.node_reads import READS_AT_ONCE
from namespace.retention_node import read_retention
from namespace.segment_nodes import delete_segment, list_segments, set_truncation
from namespace.segments.retention import first_retained
from namespace.segments.segment import LogSegment
from namespace.segments.truncation import marked_before, purgeable

MARKED_AT_ONCE = 500  # segments in one transaction; ZooKeeper takes at most 1 MiB
ROUND_S = 60.0  # between two rounds of a writer; records grow old while it is idle
ATTEMPTS_MAX = 20  # to mark; each is lost to another client that changed the log meanwhile

logger = get_logger(__name__)


async def mark_truncated(
    log: LogNodes,
    first_kept: DLSN | Callable[[tuple[LogSegment, ...]], Awaitable[DLSN | None]],
    *,
    check: Callable[[LogMetadata], None] = lambda _: None,
) -> tuple[LogSegment, ...]:
    """Mark the records before a position as truncated; return the segments as they are then.

    If the call is cancelled or fails, some segments may be marked, from the oldest on. Repeating it is safe.

    Args:
        first_kept: The position, or a function that finds it from the log's segments before each attempt; it
            returns None for no position. An attempt fails, and is repeated, if a cursor was created or moved
            back since the function was called.
        check: Called with the log's metadata before each attempt; it may raise.

    Raises:
        LogNotFoundError, LogMetadataError
        LogUnavailableError: The store is out of reach, or other clients changed the log at every attempt.
    """
    with translated(log.name, "truncating it"):
        for _ in range(ATTEMPTS_MAX):
            metadata = await open_log(log)
            check(metadata)
            listed = (await list_segments(log)).segments
            first = first_kept if isinstance(first_kept, DLSN) else await first_kept(listed)
            changed = [] if first is None else marked_before(listed, first)
            try:
                # Oldest first: after a failure in between, the marked segments are the beginning of the log.
                for index in range(0, len(changed), MARKED_AT_ONCE):
                    metadata = await set_truncation(metadata, changed[index : index + MARKED_AT_ONCE])
            except LogFencedError:
                continue  # another client truncated, purged or rolled the log since it was read
            by_ledger = {segment.ledger_id: segment for segment in changed}
            return tuple(by_ledger.get(each.ledger_id, each) for each in listed)
    raise LogUnavailableError(
        f"log {log.name!r}, truncating it: other clients changed its segments {ATTEMPTS_MAX} times meanwhile;"
        " try again"
    )


async def retain(
    log: LogNodes,
    client: LedgerClient,
    *,
    now_ms: int,
    sizes: dict[int, int] | None = None,
) -> tuple[LogSegment, ...]:
    """Mark the records that the log's retention gives up; return the segments as they are then.

    A log without a rule is left alone. If the call is cancelled or fails, some segments may be marked, from
    the oldest on. Repeating it is safe.

    Args:
        sizes: The bytes of completed segments that the caller knows, by ledger id; gets those found here.

    Raises:
        LogNotFoundError, LogMetadataError, LogUnavailableError
    """
    sizes = {} if sizes is None else sizes

    async def find(segments: tuple[LogSegment, ...]) -> DLSN | None:
        rule = await read_retention(log)
        if rule is None:
            return None
        if rule.size_bytes is not None:
            await _measure(client, segments, sizes)
        cursors = await list_cursors(log) if rule.keep_unread else []
        return first_retained(
            rule, segments, now_ms=now_ms, sizes=sizes, cursors=[each.position for each in cursors]
        )

    with translated(log.name, "applying its retention"):
        # First, because nearly all logs have no rule.
        if await read_retention(log) is None:
            return ()
    return await mark_truncated(log, find)


async def _measure(client: LedgerClient, segments: Sequence[LogSegment], sizes: dict[int, int]) -> None:
    """Find the bytes of completed segments that are not known yet; forget deleted segments."""
    completed = {each.ledger_id for each in segments if not each.in_progress}
    for gone in sizes.keys() - completed:
        del sizes[gone]

    async def measure(ledger_id: int) -> None:
        try:
            sizes[ledger_id] = (await client.metadata(ledger_id)).length_bytes
        except NoSuchLedgerError:
            sizes[ledger_id] = 0  # purged; its node goes next

    unknown = sorted(completed - sizes.keys())
    for start in range(0, len(unknown), READS_AT_ONCE):
        await for_each(measure, unknown[start : start + READS_AT_ONCE])


async def purge_segments(
    log: LogNodes,
    client: LedgerClient,
    *,
    dry_run: bool = False,
    found_before: dict[int, LogSegment] | None = None,
) -> tuple[LogSegment, ...]:
    """Delete the segments that are marked as truncated, with their ledgers; return them, oldest first.

    The newest completed segment stays, since the next segment's number follows from it. If the call is
    cancelled or fails, some segments may be deleted, from the oldest on. Repeating it is safe.

    Args:
        dry_run: Delete nothing.
        found_before: The segments that earlier attempts of the caller found, by ledger id; gets those found
            now. They are part of the result, since an earlier attempt deleted them before it failed.

    Raises:
        LogNotFoundError, LogMetadataError, LogUnavailableError
    """
    with translated(log.name, "purging it"):
        listed = await list_segments(log)
        found = purgeable(listed.segments)
        all_found = {} if found_before is None else found_before
        all_found.update({segment.ledger_id: segment for segment in found})
        for segment in [] if dry_run else found:
            # The ledger first. The next attempt finds a node without its ledger; it cannot find a ledger
            # without a node. Readers skip the node: it is marked.
            claim = NamedByLog.as_segment(log, segment.name)
            await delete_ledger(client, segment.ledger_id, claim)
            try:
                await delete_segment(log, segment)
            except LogFencedError as exc:
                raise LogUnavailableError(
                    f"log {log.name!r}, purging it: {exc.evidence}, so the log was deleted and created again;"
                    " try again"
                ) from exc
    return tuple(all_found.values())


class Purger:
    """Gives up space in the writer's process: ``begin`` it, and call ``request`` for a round at once.

    A failed round is logged. The next round repeats it. Between rounds it has no task.
    """

    def __init__(
        self,
        log: str,
        purge: Callable[[], Awaitable[tuple[LogSegment, ...]]],
        is_due: Callable[[], Awaitable[bool]],
        timers: Timers,
    ) -> None:
        """Args:
        purge: One round.
        is_due: Whether an unasked round has anything to do.
        """
        self._log, self._purge, self._is_due, self._timers = log, purge, is_due, timers
        self._start: Callable[[Callable[[], Awaitable[None]]], object] | None = None
        self._is_requested = self._has_task = False
        self._is_idle = trio.Event()  # not set before the first round: it begins with one
        self._next: Timer | None = None

    def begin(self, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Do a round now and every ``ROUND_S`` seconds if it is due, and at each request, until ``end``.

        ``start``: Starts a task.
        """
        self._start = start
        self._go()

    def end(self) -> None:
        """Begin no round any more."""
        self._start = None
        if self._next is not None:
            self._next.cancel()

    def request(self) -> None:
        """Begin a round soon."""
        self._is_idle, self._is_requested = trio.Event(), True
        self._go()

    async def wait_idle(self) -> None:
        """Return when no round is requested or under way."""
        await self._is_idle.wait()

    def _go(self) -> None:
        if self._start is not None and not self._has_task:
            self._has_task = True
            self._start(self._rounds)

    async def _rounds(self) -> None:
        if self._next is not None:
            self._next.cancel()
        await self._round()
        while self._is_requested:
            await self._round()
        self._has_task = False
        self._is_idle.set()
        self._next = self._timers.after(ROUND_S, self._go)

    async def _round(self) -> None:
        is_asked, self._is_requested = self._is_requested, False
        try:
            deleted = await self._purge() if is_asked or await self._is_due() else ()
        except DLogError as exc:
            logger.warning(
                "log %s: truncated segments not deleted yet: %s",
                self._log,
                exc,
                extra=event("log.purge_failed", log=self._log, error=exc),
            )
        except Exception as exc:
            report_contained("purge of a log", exc)
        else:
            if deleted:
                logger.info(
                    "log %s: %d truncated segments deleted",
                    self._log,
                    len(deleted),
                    extra=event(
                        "log.purged", log=self._log, segments=[each.segment_seqno for each in deleted]
                    ),
                )
