"""Giving back the space of truncated records: marking segments, and deleting the marked ones.

Inside: both steps, by any process, with or without the log's lock; the writer's task that deletes.
Not inside: which segments a position marks, which marked ones may go (``dlog.metadata.truncation``); the
bookies' disks, whose garbage collection follows.
Always: a mark only moves forward, also when several processes truncate at once; only segments marked as
truncated are deleted, oldest first, the ledger before the node that names it; a crash between two steps
leaves a log that readers read as before, and the next call does the rest.

Source: DistributedLog, BKLogWriteHandler.java (docs/stream-format.md 6). Java's writers delete by age and
hold the lock. Here the marks alone decide, so no lock is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from dlog.errors import DLogError, LogFencedError, LogUnavailableError, translated
from dlog.format.dlsn import DLSN
from dlog.metadata.log_metadata import LogMetadata
from dlog.metadata.logs import open_log
from dlog.metadata.segment import LogSegment
from dlog.metadata.segment_nodes import delete_segment, list_segments, set_truncation
from dlog.metadata.truncation import marked_before, purgeable
from ledger.client import LedgerClient
from namespace.store import MetadataStore

MARKED_AT_ONCE = 500  # segments in one transaction; ZooKeeper takes at most 1 MiB
ATTEMPTS_MAX = 20  # to mark; each is lost to another client that changed the log meanwhile

logger = logging.getLogger(__name__)


async def mark_truncated(
    store: MetadataStore,
    namespace_path: str,
    log: str,
    first_kept: DLSN,
    *,
    check: Callable[[LogMetadata], None] = lambda _: None,
) -> tuple[LogSegment, ...]:
    """Mark the records before a position as truncated; return the segments as they are then.

    If the call is cancelled or fails, some segments may be marked, from the oldest on. Repeating it is safe.

    Args:
        check: Called with the log's metadata before each attempt; it may raise.

    Raises:
        LogNotFoundError, LogMetadataError
        LogUnavailableError: The store is out of reach, or other clients changed the log at every attempt.
    """
    with translated(log, "truncating it"):
        for _ in range(ATTEMPTS_MAX):
            metadata = await open_log(store, namespace_path, log)
            check(metadata)
            listed = (await list_segments(store, namespace_path, log)).segments
            changed = marked_before(listed, first_kept)
            try:
                # Oldest first: after a failure in between, the marked segments are the beginning of the log.
                for first in range(0, len(changed), MARKED_AT_ONCE):
                    metadata = await set_truncation(store, metadata, changed[first : first + MARKED_AT_ONCE])
            except LogFencedError:
                continue  # another client truncated, purged or rolled the log since it was read
            by_ledger = {segment.ledger_id: segment for segment in changed}
            return tuple(by_ledger.get(each.ledger_id, each) for each in listed)
    raise LogUnavailableError(
        f"log {log!r}, truncating it: other clients changed its segments {ATTEMPTS_MAX} times meanwhile;"
        " try again"
    )


async def purge_segments(
    store: MetadataStore,
    client: LedgerClient,
    namespace_path: str,
    log: str,
    *,
    dry_run: bool = False,
) -> tuple[LogSegment, ...]:
    """Delete the segments that are marked as truncated, with their ledgers; return them, oldest first.

    The newest completed segment stays, since the next segment's number follows from it. If the call is
    cancelled or fails, some segments may be deleted, from the oldest on. Repeating it is safe.

    Args:
        dry_run: Delete nothing.

    Raises:
        LogNotFoundError, LogMetadataError, LogUnavailableError
    """
    with translated(log, "purging it"):
        listed = await list_segments(store, namespace_path, log)
        found = purgeable(listed.segments)
        for segment in [] if dry_run else found:
            # The ledger first. The next attempt finds a node without its ledger; it cannot find a ledger
            # without a node. Readers skip the node: it is marked.
            await client.delete(segment.ledger_id)
            try:
                await delete_segment(store, namespace_path, log, segment)
            except LogFencedError as exc:
                raise LogUnavailableError(
                    f"log {log!r}, purging it: {exc.evidence}, so the log was deleted and created again;"
                    " try again"
                ) from exc
    return tuple(found)


class Purger:
    """Deletes truncated segments in the writer's process. Run ``run`` in a task, call ``request`` to wake it.

    A failed round is logged. The next request repeats it.
    """

    def __init__(self, log: str, purge: Callable[[], Awaitable[tuple[LogSegment, ...]]]) -> None:
        self._log, self._purge = log, purge
        self._requested = trio.Event()
        self._is_idle = trio.Event()
        self._is_idle.set()

    def request(self) -> None:
        """Begin a round soon."""
        self._is_idle = trio.Event()
        self._requested.set()

    async def wait_idle(self) -> None:
        """Return when no round is requested or under way."""
        await self._is_idle.wait()

    async def run(self) -> None:
        """Purge at each request, until cancelled."""
        while True:
            await self._requested.wait()
            self._requested = trio.Event()
            try:
                deleted = await self._purge()
            except DLogError as exc:
                logger.warning("log %s: truncated segments not deleted yet: %s", self._log, exc)
            else:
                if deleted:
                    logger.info("log %s: %d truncated segments deleted", self._log, len(deleted))
            if not self._requested.is_set():
                self._is_idle.set()
