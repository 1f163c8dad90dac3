"""A namespace: its logs, and opening them for writing and reading.

Inside: the object that ``open_namespace`` yields. Not inside: connecting to the store and to bookies
(``connect``), writing and reading (``log_writer``, ``log_reader``).
Always: every error raised here is one of ``dlog.errors``.

Source: DistributedLog, BKDistributedLogNamespace.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from dlog.config import NamespaceConfig, WriterConfig
from dlog.description import LogDescription, SegmentDescription
from dlog.errors import (
    LogFencedError,
    LogInUseError,
    NamespaceClosedError,
    ReadOnlyError,
    translated,
)
from dlog.format.dlsn import DLSN
from dlog.format.record import TXID_MAX
from dlog.metadata import logs, segment_nodes
from dlog.metadata.cursor_nodes import check_cursor_name
from dlog.metadata.log_name import check_log_name
from dlog.metadata.policies import Permissions
from dlog.metadata.policy import Policy, Right, encode_policy
from dlog.metadata.retention import Retention
from dlog.metadata.retention_node import read_retention, write_retention
from dlog.metadata.segment import FIRST_SEGMENT_SEQNO
from dlog.metadata.truncation import first_left
from dlog.read.cursors import LogCursors, attach_cursor
from dlog.read.log_reader import LogReader, open_log_reader
from dlog.read.positioning import EARLIEST, Start
from dlog.read.read_only_log import ReadOnlyLog
from dlog.read.verifier import LogVerification, verify_log
from dlog.write import space
from dlog.write.log_writer import LogWriter
from dlog.write.opening import lock_owner, locked, open_log_writer
from dlog.write.segment_lifecycle import SegmentLifecycle
from ledger.audit import audited_async
from ledger.client import LedgerClient
from ledger.tasks.forks import RULE, call_in_child
from namespace.clock import wall_ms
from namespace.lock import DistributedLock
from namespace.store import MetadataStore


class Namespace:
    """The logs of one namespace. Made by ``dlog.open_namespace``; its calls may run concurrently.

    Every call raises ``InvalidLogNameError`` for a name that no log can have, ``LogUnavailableError`` while
    the metadata store cannot be reached, ``NamespaceLostError`` once the session with it is over, and
    ``NamespaceClosedError`` after the ``async with`` block. If it was opened with ``read_only=True``, every
    call that changes something raises ``ReadOnlyError`` before anything happens.
    """

    def __init__(
        self,
        uri: str,
        store: MetadataStore,
        client: LedgerClient,
        path: str,
        config: NamespaceConfig,
        *,
        client_id: str,
        first_segment_seqno: int = FIRST_SEGMENT_SEQNO,
        wall_ms: Callable[[], int] = wall_ms,
        principal: str | None = None,
        read_only: bool = False,
        is_snapshot: bool = False,
    ) -> None:
        self.uri = uri
        self.read_only = read_only
        self.is_snapshot = is_snapshot  # read-only, and no process writes: later records do not appear
        self._permissions = Permissions(store, path, client_id if principal is None else principal)
        self.config = config
        self._store, self._client, self._path = store, client, path
        self._client_id, self._first_segment_seqno, self._wall_ms = client_id, first_segment_seqno, wall_ms
        self._is_closed = self._is_forked = False
        call_in_child(self, Namespace._refuse_in_child)

    def __repr__(self) -> str:
        return f"<Namespace {self.uri}, {'closed' if self._is_closed else self._store.state.value}>"

    async def create_log(self, name: str, *, exist_ok: bool = False) -> None:
        """Create an empty log. A name may have parts (``shop/orders``). If cancelled, the log may exist.

        Raises:
            LogExistsError: Unless ``exist_ok``.
        """
        name = await self._permitted(name, Right.WRITE)
        with translated(name, "creating it"):
            await logs.create_log(self._store, self._path, name, exist_ok=exist_ok)

    async def delete_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """Delete a log with all of its records. Its readers fail.

        If the call is cancelled or fails, part of the log may be deleted; call it again.

        Raises:
            LogNotFoundError
            LogLockedError: The log has a writer.
            LogMetadataError: Another client changed the log during the deletion.
        """
        name = self._checked(name, Right.ADMIN)
        with translated(name, "deleting it"):
            async with audited_async("delete log", f"{self.uri} {name}"):
                await self._permitted(name, Right.ADMIN)
                await self._delete_log(name, lock_timeout_s)

    async def _delete_log(self, name: str, lock_timeout_s: float) -> None:
        async with self._locked(name, lock_timeout_s):
            with translated(name, "deleting it"):
                metadata = await logs.open_log(self._store, self._path, name)
                listed = await segment_nodes.list_segments(self._store, self._path, name, gaps_ok=True)
                # Ledgers first. The next attempt finds a node without its ledger; it cannot find a ledger
                # without a node.
                for segment in listed.segments:
                    await self._client.delete(segment.ledger_id)
                    try:
                        await segment_nodes.delete_segment(self._store, self._path, name, segment)
                    except LogFencedError as exc:
                        raise LogInUseError(name, exc.evidence) from exc
                if metadata.allocated_ledger_id is not None:
                    await self._client.delete(metadata.allocated_ledger_id)
                await logs.delete_log_nodes(self._store, self._path, name)

    async def truncate_log(self, name: str, before: DLSN) -> DLSN | None:
        """Truncate a log, also while another process writes it; see ``LogWriter.truncate``.

        Readers begin at ``before``, or earlier: records of the segment in use stay. A truncated record stays
        truncated. If the call is cancelled or fails, some records may be truncated, from the first on; call
        it again. ``purge_log`` or the log's writer then deletes whole segments of truncated records.

        Returns:
            The first position that is left; None if there is no segment yet.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        name = self._checked(name, Right.ADMIN)
        with translated(name, "truncating it"):
            async with audited_async("truncate log", f"{self.uri} {name} before {before}"):
                await self._permitted(name, Right.ADMIN)
                marked = await space.mark_truncated(self._store, self._path, name, before)
        return first_left(marked)

    async def purge_log(self, name: str, *, dry_run: bool = False) -> list[SegmentDescription]:
        """Delete the truncated segments of a log and their ledgers, also while another process writes it.

        The newest completed segment stays until there is a newer one. A reader inside a deleted segment gets
        ``LogTruncatedError``. If the call is cancelled or fails, some segments may be deleted, from the
        oldest on; call it again. Bookies give the disk space back with their next garbage collection.

        Args:
            dry_run: Delete nothing.

        Returns:
            The segments that were deleted, oldest first; with ``dry_run``, those that would be.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        name = self._checked(name, Right.READ if dry_run else Right.ADMIN)
        if dry_run:
            await self._permitted(name, Right.READ)
            purged = await space.purge_segments(self._store, self._client, self._path, name, dry_run=True)
        else:
            with translated(name, "purging it"):
                async with audited_async("purge log", f"{self.uri} {name}"):
                    await self._permitted(name, Right.ADMIN)
                    purged = await space.purge_segments(self._store, self._client, self._path, name)
        return [SegmentDescription.of(each) for each in purged]

    async def retention(self, name: str) -> Retention | None:
        """How long the records of a log are kept; None: until they are truncated.

        Raises:
            LogMetadataError: The stored rule does not parse.
        """
        name = await self._permitted(name, Right.READ)
        with translated(name, "reading its retention"):
            return await read_retention(self._store, self._path, name)

    async def set_retention(self, name: str, retention: Retention | None) -> None:
        """Set how long the records of a log are kept; None: until they are truncated.

        The log's writers obey: they do so when they open, when they roll, and every minute. If
        cancelled, the rule may or may not be stored.

        Raises:
            LogNotFoundError
        """
        name = self._checked(name, Right.ADMIN)
        with translated(name, "changing its retention"):
            async with audited_async("change retention", f"{self.uri} {name} {retention}"):
                await self._permitted(name, Right.ADMIN)
                await write_retention(self._store, self._path, name, retention)

    async def retain_log(self, name: str) -> list[SegmentDescription]:
        """Apply the log's retention now, and purge it, also while another process writes it.

        If the call is cancelled or fails, part of it may be done, from the oldest segment on.

        Returns:
            The segments that were deleted, oldest first.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        name = self._checked(name, Right.ADMIN)
        with translated(name, "applying its retention"):
            async with audited_async("retain log", f"{self.uri} {name}"):
                await self._permitted(name, Right.ADMIN)
                now_ms = self._wall_ms()
                await space.retain(self._store, self._client, self._path, name, now_ms=now_ms)
                purged = await space.purge_segments(self._store, self._client, self._path, name)
        return [SegmentDescription.of(each) for each in purged]

    async def list_logs(self, prefix: str = "") -> list[str]:
        """The names of all logs, sorted; with a prefix, of the logs below it (``shop``: ``shop/orders``)."""
        self._check_open()
        with translated(None, "listing logs"):
            return await logs.list_logs(self._store, self._path, prefix)

    async def log_exists(self, name: str) -> bool:
        """True if the log exists now."""
        name = self._checked(name)
        with translated(name, "looking for it"):
            return await logs.log_exists(self._store, self._path, name)

    async def segments(self, name: str) -> list[SegmentDescription]:
        """The log's segments, oldest first.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        await self._permitted(name, Right.READ)
        return [SegmentDescription.of(each) for each in await self._read_only_log(name).segments()]

    async def last_dlsn(self, name: str) -> DLSN | None:
        """The position of the last record that a reader sees now; None if there is none.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        record = await log.last_record(await log.segments())
        return None if record is None else record.dlsn

    async def verify_log(self, name: str, *, expect_head: str | None = None) -> LogVerification:
        """Read a whole log and check its digests, positions, transaction ids, metadata and hash chain.

        The result names the first problem. It changes nothing, and may be cancelled at any time.

        Args:
            expect_head: The ``head`` of an earlier check: the log must still hold the chain up to it.

        Raises:
            ValueError: ``expect_head`` is no head.
            LogNotFoundError, LogMetadataError, LogUnavailableError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        return await verify_log(log, expect_head)

    async def describe_log(self, name: str) -> LogDescription:
        """A log's segments, ends, number of records and writer, found without reading all of it.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        segments = await log.segments()
        last = await log.last_record(segments)
        count = sum(segment.record_count for segment in segments)
        if last is not None:
            # Count the visible records of segments in progress: the last one has its number in the segment.
            newest = next(each for each in segments if each.segment_seqno == last.dlsn.segment_seqno)
            if newest.in_progress:
                count += last.sequence_id
                older = [each for each in segments if each.segment_seqno < newest.segment_seqno]
                if older and older[-1].in_progress:
                    count += await log.visible_count(older[-1])
        with translated(name, "looking for its writer"):
            writer = await lock_owner(self._store, self._path, log.name)
        return LogDescription(
            name=log.name,
            first_dlsn=first_left(segments),
            last_dlsn=None if last is None else last.dlsn,
            last_txid=None if last is None else last.txid,
            record_count=count,
            is_sealed=any(each.last_txid == TXID_MAX for each in segments),
            writer=writer,
            segments=tuple(SegmentDescription.of(each) for each in segments),
        )

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
            config: Used instead of the namespace's writer settings.

        Raises:
            LogNotFoundError, EndOfStreamError (sealed), LogLockedError, LogFencedError, LogMetadataError
        """
        return self._open_writer(
            self._checked(name, Right.WRITE), create, lock_timeout_s, config or self.config.writer
        )

    def open_reader(
        self,
        name: str,
        *,
        start: DLSN | int | Start | datetime.datetime = EARLIEST,
        end: DLSN | None = None,
        follow: bool = True,
        cursor: str | None = None,
    ) -> AbstractAsyncContextManager[LogReader]:
        """Read a log, for the duration of an ``async with``. Any number of readers may read at the same time.

        Args:
            start: A DLSN: at that record. A transaction id: at the first record with at least that id. A
                datetime: the same with its epoch milliseconds, which are the default transaction ids.
                EARLIEST: at the first record left. LATEST: after the last record visible now.
            end: The last position to read, inclusive.
            follow: Wait for more records at the end of the log; False to stop there. Records that a writer
                appended within the last few milliseconds may not be visible yet; its ``flush`` makes them
                visible.
            cursor: The name of a cursor. If it was committed before, the reader starts at its position, else
                at ``start``. ``LogReader.commit`` moves it.

        Raises:
            LogNotFoundError, InvalidCursorNameError
            LogTruncatedError: The start is a DLSN, and a record at it or after it is truncated.
            LogReaderStalledError: Finding the start failed for longer than ``ReaderConfig.retry_timeout_s``.
        """
        if isinstance(start, datetime.datetime):
            if start.tzinfo is None:
                raise ValueError(
                    f"start={start!r} has no time zone; add one (tzinfo=datetime.UTC, or .astimezone())"
                )
            start = int(start.timestamp() * 1000)
        log = self._read_only_log(name)
        return self._open_reader(
            log, start, end, follow, None if cursor is None else check_cursor_name(cursor)
        )

    def cursors(self, name: str) -> LogCursors:
        """The cursors of a log: named positions that readers commit."""
        log = self._read_only_log(name)
        return LogCursors(
            self._store,
            self._path,
            log,
            partial(self._permitted, log.name),
            retry_timeout_s=self.config.reader.retry_timeout_s,
        )

    async def count_records(self, name: str, *, start: DLSN | None = None) -> int:
        """The number of records visible now, at or after a position; None: in the whole log.

        Truncated records count until their segments are deleted. At most one segment is read, in part.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        return await log.count_from(await log.segments(), DLSN(0, 0, 0) if start is None else start)

    @property
    def principal(self) -> str:
        """The name under which the policy of the namespace knows this program."""
        return self._permissions.principal

    async def policy(self) -> Policy | None:
        """The policy of the namespace; None if there is none, so that everything is allowed.

        Raises:
            LogMetadataError: It does not parse.
        """
        self._check_open()
        with translated(None, "reading its policy"):
            return await self._permissions.policy()

    async def set_policy(self, policy: Policy | None) -> None:
        """Replace the policy of the namespace; None deletes it. If cancelled, it may or may not be stored.

        Open writers and readers go on; it counts for later openings.

        Raises:
            AccessDeniedError: The stored policy does not let this program's principal change it.
        """
        self._check_open(Right.ADMIN)
        rules = "none" if policy is None else encode_policy(policy).decode()
        with translated(None, "changing its policy"):
            async with audited_async("change policy", f"{self.uri} {rules}"):
                await self._permissions.replace(policy)

    # For this package only.

    def close(self) -> None:
        """Refuse every later call. Open writers and readers end with the block that opened the namespace."""
        self._is_closed = True

    def _refuse_in_child(self) -> None:
        """Refuse every later call: called in a forked child."""
        self._is_forked = True

    def _check_open(self, right: Right = Right.READ) -> None:
        if self._is_forked:
            raise NamespaceClosedError(f"namespace {self.uri}: {RULE}")
        if self._is_closed:
            raise NamespaceClosedError(f"namespace {self.uri} was closed; open it again")
        if self.read_only and right is not Right.READ:
            raise ReadOnlyError(f"namespace {self.uri}")

    def _checked(self, name: str, right: Right = Right.READ) -> str:
        self._check_open(right)
        return check_log_name(name)

    async def _permitted(self, name: str, right: Right) -> str:
        name = self._checked(name, right)
        with translated(name, "reading the policy"):
            await self._permissions.check(name, right)
        return name

    @asynccontextmanager
    async def _open_reader(
        self,
        log: ReadOnlyLog,
        start: DLSN | int | Start,
        end: DLSN | None,
        follow: bool,
        cursor: str | None,
    ) -> AsyncIterator[LogReader]:
        await self._permitted(log.name, Right.READ)
        attached = None if cursor is None else await attach_cursor(self.cursors(log.name), cursor)
        if attached is not None and attached.seen is not None:
            start = attached.seen.position
        async with open_log_reader(
            log, self.config.reader, start=start, end=end, follow=follow, cursor=attached
        ) as reader:
            yield reader

    def _read_only_log(self, name: str) -> ReadOnlyLog:
        return ReadOnlyLog(self._store, self._client, self._path, self._checked(name), self.config.password)

    def _locked(self, name: str, timeout_s: float) -> AbstractAsyncContextManager[DistributedLock]:
        return locked(self._store, self._path, name, self._client_id, timeout_s)

    @asynccontextmanager
    async def _open_writer(
        self, name: str, create: bool, lock_timeout_s: float | None, config: WriterConfig
    ) -> AsyncIterator[LogWriter]:
        await self._permitted(name, Right.WRITE)
        if create:
            await self.create_log(name, exist_ok=True)
        timeout_s = config.lock_timeout_s if lock_timeout_s is None else lock_timeout_s
        async with self._locked(name, timeout_s) as lock:
            lifecycle = SegmentLifecycle(
                self._store,
                self._client,
                self._path,
                name,
                self.config,
                first_segment_seqno=self._first_segment_seqno,
                wall_ms=self._wall_ms,
            )
            async with open_log_writer(
                self._read_only_log(name),
                lifecycle,
                lock,
                config,
                wall_ms=self._wall_ms,
                check_truncation=lambda: self._permitted(name, Right.ADMIN),
            ) as writer:
                yield writer
