"""A namespace: opening its logs for writing and reading, its cursors and its policy.

Inside: the object that ``open_namespace`` yields. Not inside: connecting to the store and to bookies
(``connect``), changing logs (``administration``), questions about them (``queries``), writing and reading
(``log_writer``, ``log_reader``).
Always: every error raised here is one of ``dlog.errors``.

Source: DistributedLog, BKDistributedLogNamespace.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio

from dlog.config import WriterConfig
from dlog.errors import EndOfStreamError, LogLockedError, LogPromotedError, translated
from dlog.operations.access_administration import AccessAdministration
from dlog.operations.administration import LogAdministration
from dlog.operations.batches import LogBatches
from dlog.operations.maintenance import LogMaintenance
from dlog.operations.namespace_base import at_target, waits_for_store
from dlog.operations.promoting import LogPromotion
from dlog.operations.queries import LogQueries
from dlog.operations.renaming import LogRenaming
from dlog.promotion.record import SourcePhase
from dlog.read.cursors import LogCursors, attach_cursor
from dlog.read.log_reader import LogReader, open_log_reader
from dlog.read.observed_reader import ObservedLogReader
from dlog.read.positioning import EARLIEST, Start, Where, position_or_txid
from dlog.read.read_only_log import ReadOnlyLog
from dlog.write.log_writer import LogWriter
from dlog.write.opening import open_log_writer, take_lock
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.metadata_store.lock import DistributedLock
from ledger.runtime.audit import audited_async
from namespace.access_control.entries import Denial
from namespace.cursor_nodes import check_cursor_name
from namespace.dlsn import DLSN
from namespace.policy import Policy, Right, encode_policy


class Namespace(
    LogAdministration,
    LogRenaming,
    LogBatches,
    AccessAdministration,
    LogMaintenance,
    LogQueries,
    LogPromotion,
):
    """The logs of one namespace. Made by ``dlog.open_namespace``; its calls may run concurrently.

    Every call raises ``InvalidLogNameError`` for a name that no log can have, ``LogUnavailableError`` while
    the metadata store cannot be reached, ``NamespaceLostError`` once its directory was removed or replaced,
    and ``NamespaceClosedError`` after the ``async with`` block. If it was opened with ``read_only=True``,
    every call that changes something raises ``ReadOnlyError`` before anything happens.
    """

    def open_writer(
        self,
        name: str,
        *,
        create: bool = False,
        lock_timeout_s: float | None = None,
        config: WriterConfig | None = None,
    ) -> AbstractAsyncContextManager[LogWriter]:
        """Become the log's one writer, for the duration of an ``async with``.

        It waits for the lock, then recovers the segments that an earlier writer left in progress. Afterwards
        the earlier writer can write no more, and every record that was durable for it is in the log. Leaving
        the block writes all submitted records and releases the lock.

        Args:
            create: Create the log if it does not exist.
            lock_timeout_s: How long to wait for another writer's lock; 0: not at all; None: as configured.
            config: The settings that it names are stronger than the namespace's writer settings.

        Raises:
            LogNotFoundError, EndOfStreamError (sealed), LogLockedError, LogFencedError, LogMetadataError
        """
        ours = self.config.writer if config is None else config.over(self.config.writer)
        return self._open_writer(self._checked(name, Right.WRITE), create, lock_timeout_s, ours)

    def open_reader(
        self,
        name: str,
        *,
        start: Where = EARLIEST,
        end: Where | None = None,
        follow: bool = True,
        cursor: str | None = None,
        gaps: bool = False,
    ) -> AbstractAsyncContextManager[LogReader]:
        """Read a log, for the duration of an ``async with``. Any number of readers may read at the same time.

        Args:
            start: A DLSN: at that record. A transaction id: at the first record with at least that id. A
                datetime: the same with its epoch milliseconds, which are the default transaction ids. In a
                log with other ids it is only a number. EARLIEST: at the first record left. LATEST: after the
                last record visible now.
            end: The last record to read, inclusive. A DLSN: the record there. A transaction id or datetime:
                the last record before the first one with a greater id. LATEST: the last record visible now,
                although the log continues. Between two such bounds every reader gets the same records, until
                they are truncated. If ``end`` is not written yet, the reader waits for it, or stops earlier
                with ``follow=False``.
            follow: Wait for more records at the end of the log; False to stop there. Records that a writer
                appended within the last few milliseconds may not be visible yet; its ``flush`` makes them
                visible.
            cursor: The name of a cursor. If it was committed before, the reader starts at its position, else
                at ``start``. ``LogReader.commit`` moves it, which needs the right to commit it.
            gaps: Open the log also if data are missing for good, such as truncated records at the start.
                ``LogReader.batches`` and ``read_batch_or_gap`` then return a ``Gap`` for them; the other
                calls raise as ever.

        Raises:
            ValueError: ``end`` is EARLIEST, or a datetime has no time zone.
            LogNotFoundError, InvalidCursorNameError
            LogTruncatedError: The start is a DLSN, and a record at it or after it is truncated; without
                ``gaps``.
            LogReaderStalledError: Finding the start failed for longer than ``ReaderConfig.retry_timeout_s``.
        """
        if end is EARLIEST:
            raise ValueError("end=EARLIEST: give a DLSN, a transaction id, a datetime or LATEST")
        return self._open_reader(
            self._read_only_log(name),
            position_or_txid(start),
            None if end is None else position_or_txid(end),
            follow,
            None if cursor is None else check_cursor_name(cursor),
            gaps,
        )

    @at_target
    async def seal_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """End a log for good: it takes no more records, and its readers end (``LogReader.is_sealed``).

        It writes the end-of-stream marker, after recovering what an earlier writer left. A log that is sealed
        already stays so. If the call is cancelled or fails, the log may be sealed or not; call it again.

        Raises:
            LogNotFoundError
            LogLockedError: The log has a writer. It can seal the log itself (``LogWriter.seal``).
            LogFencedError, LogWriteError, LogMetadataError
        """
        name = await self._permitted(name, Right.ADMIN)  # opening a writer changes the log
        try:
            async with self.open_writer(name, lock_timeout_s=lock_timeout_s) as writer:
                await writer.seal()
        except EndOfStreamError:
            pass

    def cursors(self, name: str) -> LogCursors:
        """The cursors of a log: named positions that readers commit."""
        log = self._read_only_log(name)
        return LogCursors(
            self._store,
            self._path,
            log,
            partial(self._permitted, log.name),
            retry_timeout_s=self.config.reader.retry_timeout_s,
            at_target=partial(self._cursors_at_target, log.name),
        )

    async def _cursors_at_target(self, name: str) -> LogCursors:
        found: LogCursors = (await self._promoted(name)).cursors(name)
        return found

    @property
    def principal(self) -> str:
        """The name under which the policy of the namespace knows this program."""
        return self._permissions.principal

    @waits_for_store
    async def policy(self) -> Policy | None:
        """The policy of the namespace; None if there is none, so that everything is allowed.

        A principal that may not change it gets the rules about itself only (``Policy.is_whole``).

        Raises:
            LogMetadataError: It does not parse.
        """
        self._check_open()
        with translated(None, "reading its policy"):
            return await self._permissions.visible()

    async def set_policy(self, policy: Policy | None) -> None:
        """Replace the policy of the namespace; None deletes it. If cancelled, it may or may not be stored.

        Open writers and readers continue; it counts for later openings.

        Raises:
            AccessDeniedError: The stored policy does not let this program's principal change it.
        """
        self._check_open(Right.ADMIN)
        rules = "none" if policy is None else encode_policy(policy).decode()
        with translated(None, "changing its policy"):
            async with audited_async("change policy", f"{self.uri} {rules}"):
                await self._permissions.replace(policy, retry_timeout_s=self._retry_timeout_s(Right.ADMIN))

    @asynccontextmanager
    async def _open_reader(
        self,
        log: ReadOnlyLog,
        start: DLSN | int | Start,
        end: DLSN | int | Start | None,
        follow: bool,
        cursor: str | None,
        gaps: bool,
    ) -> AsyncIterator[LogReader]:
        try:
            await self._permitted(log.name, Right.READ)
        except LogPromotedError:
            record = await self._promotion(log.name)
            # Before the end of the hand-over everything can be read here; the reader follows then.
            if record is not None and record.phase is SourcePhase.DONE:
                target = await self._promoted(log.name)
                async with target.open_reader(
                    log.name, start=start, end=end, follow=follow, cursor=cursor
                ) as reader:
                    yield reader
                return
        attached = None if cursor is None else await attach_cursor(self.cursors(log.name), cursor)
        if attached is not None and attached.seen is not None:
            start = attached.seen.position
        async with open_log_reader(
            log,
            self.config.reader,
            start=start,
            end=end,
            follow=follow,
            cursor=attached,
            gaps=gaps,
            make=ObservedLogReader if log.recorder.observes else LogReader,
        ) as reader:
            yield reader

    @asynccontextmanager
    async def _open_writer(
        self, name: str, create: bool, lock_timeout_s: float | None, config: WriterConfig
    ) -> AsyncIterator[LogWriter]:
        try:
            await self._permitted(name, Right.WRITE, Denial.ACQUIRE, Denial.WRITE)
            is_here = True
        except LogPromotedError:
            await self._may(name, Right.WRITE, Denial.ACQUIRE, Denial.WRITE)
            is_here = False
        if self.config.shared_with_java:
            config.check_shared()
        if create:
            await self.create_log(name, exist_ok=True)
        timeout_s = config.lock_timeout_s if lock_timeout_s is None else lock_timeout_s
        where: Namespace = self
        is_first = True

        async def acquire() -> DistributedLock:
            nonlocal where, is_here, is_first
            if not is_first:  # opened again
                await self._may(name, Right.WRITE, Denial.ACQUIRE, Denial.WRITE)
            is_first = False
            # The check above has just looked. If the log was promoted since, reading its nodes under the lock
            # shows it, and the next lock is that of the target.
            where = self if is_here else await self._namespace_of(name)
            is_here = False
            return await take_lock(where._store, where._path, name, where._client_id, timeout_s)

        async def follow() -> tuple[SegmentLifecycle, DistributedLock] | None:
            nonlocal where
            found = await where._follow(name, timeout_s, config)
            if found is None:
                return None
            where, lifecycle, lock = found
            return lifecycle, lock

        async with open_log_writer(
            self._read_only_log(name),
            acquire,
            lambda lock: where._lifecycle(name, lock, config),
            config,
            self._store,
            wall_ms=self._wall_ms,
            check_admin=partial(self._may, name, Right.ADMIN),
            check_truncation=partial(self._may, name, Right.ADMIN, Denial.TRUNCATE),
            follow=None if self._open_target is None else follow,
            wait_promoted=lambda: where._wait_promoted(name),
        ) as writer:
            yield writer

    @at_target
    async def _may(self, name: str, right: Right, *operations: Denial) -> None:
        await self._permitted(name, right, *operations)

    async def _namespace_of(self, name: str) -> Namespace:
        """This namespace, or the one that the log was promoted to."""
        record = await self._promotion(name)
        if record is None or not record.is_closed:
            return self
        target: Namespace = await self._promoted(name)
        return target

    def _lifecycle(self, name: str, lock: DistributedLock, config: WriterConfig) -> SegmentLifecycle:
        async def may_retain() -> bool:
            return Denial.TRUNCATE not in (await self._access.entry_of(name)).denied

        return SegmentLifecycle(
            lock.session,  # a writer that has lost its lock changes no segment
            self._client,
            self._path,
            name,
            self.config,
            first_segment_seqno=self._first_segment_seqno,
            wall_ms=self._wall_ms,
            may_retain=may_retain,
            degraded_ensemble=config.degraded_ensemble,
        )

    async def _follow(
        self, name: str, timeout_s: float, config: WriterConfig
    ) -> tuple[Namespace, SegmentLifecycle, DistributedLock] | None:
        """The log where it was promoted to, for a writer that another program has stopped; else None.

        Raises:
            LogPromotedError: Another writer has it there.
            LogUnavailableError: It is not there yet, or cannot be reached.
        """
        target = await self._namespace_of(name)
        record = await self._promotion(name)
        if target is self or record is None:
            return None
        try:
            lock = await take_lock(target._store, target._path, name, target._client_id, timeout_s)
        except LogLockedError as exc:
            raise LogPromotedError(name, record.target, f"{exc.owner} writes it there now") from exc
        try:
            lifecycle = target._lifecycle(name, lock, config)
            await lifecycle.refresh()
            if lifecycle.segments and lifecycle.segments[-1].segment_seqno > record.last_seqno:
                # Records of this writer that are not written yet would come after those of the other one.
                raise LogPromotedError(name, record.target, "another writer has written it there since")
        except BaseException:
            with trio.CancelScope(shield=True):
                await lock.release()
            raise
        return target, lifecycle, lock
