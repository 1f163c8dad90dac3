"""A namespace: what most programs use, and the objects that hold the rest.

Inside: the object that ``open_namespace`` yields. Not inside: connecting to the store and to bookies
(``connect``), the work of the calls (``operations``, ``promotion``), writing and reading (``log_writer``,
``log_reader``).
Always: every error raised here is one of ``dlog.errors``; a call on a log that was promoted from here is made
where the log is now.

Source: DistributedLog, BKDistributedLogNamespace.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from dlog.backup.calls import BackupCalls
from dlog.blobs.calls import BlobCalls
from dlog.config import NamespaceConfig, WriterConfig
from dlog.context import NamespaceContext
from dlog.description import EntryTotals, LogDescription, SegmentDescription
from dlog.errors import ConfigError, EndOfStreamError, LogNotFoundError, translated
from dlog.format.arguments import as_txid
from dlog.operations.access import AccessCalls
from dlog.operations.administration import create_log, delete_log, purge_log, truncate_log
from dlog.operations.batches import BatchCalls
from dlog.operations.calls import waits_for_store, where_it_is
from dlog.operations.health import NamespaceHealth, health_of
from dlog.operations.opening import (
    cursors_of,
    open_reader,
    open_shared_writer,
    open_writer,
    watch_segments,
)
from dlog.operations.policy import PolicyCalls
from dlog.operations.properties import PropertyCalls
from dlog.operations.queries import describe_log
from dlog.operations.renaming import rename_log
from dlog.operations.repairs import RepairCalls
from dlog.operations.retention import RetentionCalls
from dlog.promotion.calls import PromotionCalls
from dlog.read.cursors import LogCursors
from dlog.read.log_reader import LogReader
from dlog.read.positioning import EARLIEST, Start, Where, position_or_txid, txid_at
from dlog.read.segment_watch import SegmentWatch
from dlog.scan.scan import Scan, ScannedLog, converter_of, open_scan
from dlog.statistics_names import statistics_of
from dlog.write.log_writer import LogWriter
from ledger.metadata_store.errors import NoNodeError
from ledger.pickling import ProcessBound
from ledger.runtime.statistics import Statistics
from namespace import logs
from namespace.cursor_nodes import check_cursor_name
from namespace.dlsn import DLSN
from namespace.federated_store import FederatedStore
from namespace.log_identity import log_id_in
from namespace.policy import Right


class Namespace(ProcessBound):
    """The logs of one namespace. Made by ``dlog.open_namespace``; its calls may run concurrently.

    Every call raises ``InvalidLogNameError`` for a name that no log can have, ``LogUnavailableError`` while
    the metadata store cannot be reached, ``NamespaceLostError`` once its directory was removed or replaced,
    and ``NamespaceClosedError`` after the ``async with`` block. If it was opened with ``read_only=True``,
    every call that changes something raises ``ReadOnlyError`` before anything happens.
    """

    def __init__(self, context: NamespaceContext) -> None:
        """``context``: what the calls are made of; for DLog's own packages."""
        self.context = context

    def __repr__(self) -> str:
        return repr(self.context)

    # The objects that hold what fewer programs need.

    @cached_property
    def properties(self) -> PropertyCalls:
        """A small map of texts that the users of a log keep beside its records."""
        return PropertyCalls(self.context)

    @cached_property
    def retention(self) -> RetentionCalls:
        """How long the records of logs are kept."""
        return RetentionCalls(self.context)

    @cached_property
    def batches(self) -> BatchCalls:
        """Writing whole segments at once, in one transaction for all their logs."""
        return BatchCalls(self.context)

    @cached_property
    def repair(self) -> RepairCalls:
        """Verifying, checking and mending logs; ledgers of no log."""
        return RepairCalls(self.context)

    @cached_property
    def promotion(self) -> PromotionCalls:
        """Moving logs of a directory to a cluster."""
        return PromotionCalls(self.context)

    @cached_property
    def backup(self) -> BackupCalls:
        """Copies of the whole namespace, made while it is written."""
        return BackupCalls(self.context)

    @cached_property
    def blobs(self) -> BlobCalls:
        """Contents of any size under names, beside the logs."""
        return BlobCalls(self.context)

    @cached_property
    def policy(self) -> PolicyCalls:
        """Which principals have which rights on which logs."""
        return PolicyCalls(self.context)

    @cached_property
    def access(self) -> AccessCalls:
        """Access control entries, which deny operations on logs to everyone."""
        return AccessCalls(self.context)

    @property
    def uri(self) -> str:
        """The URI as passed to ``open_namespace``."""
        return self.context.uri

    @property
    def config(self) -> NamespaceConfig:
        """How logs are stored, and the settings of writers and readers."""
        return self.context.config

    @property
    def read_only(self) -> bool:
        """True if every change is refused."""
        return self.context.read_only

    @property
    def is_snapshot(self) -> bool:
        """True if it is read-only, and no process writes: later records do not appear."""
        return self.context.is_snapshot

    @property
    def principal(self) -> str:
        """The name under which the policy of the namespace knows this program."""
        return self.context.permissions.principal

    def statistics(self) -> Statistics:
        """What this namespace's writers, readers and ledgers have counted since it was opened.

        Histograms are there only with the setting ``statistics``. Names are in docs/observability.md. Also of
        a closed namespace. A log that was promoted counts where its ledgers are: its reads and writes at the
        target are not here.
        """
        return statistics_of(self.context.client.recorder)

    def health(self, *, pending_s_max: float = 10.0) -> NamespaceHealth:
        """How this namespace is for this program, from what it knows already: no request is sent.

        Args:
            pending_s_max: It is a problem if a record is neither durable nor failed after this many seconds.
        """
        return health_of(self.context, pending_s_max)

    # Writing and reading.

    def open_writer(
        self,
        name: str,
        *,
        create: bool = False,
        lock_timeout_s: float | None = None,
        config: WriterConfig | None = None,
        reopen: bool = False,
        shared: bool = False,
        producer: str | None = None,
    ) -> AbstractAsyncContextManager[LogWriter]:
        """Become the log's one writer, or one of those that share it, for the duration of an ``async with``.

        It waits for the lock, then recovers the segments that an earlier writer left in progress. Afterwards
        the earlier writer can write no more, and every record that was durable for it is in the log. Leaving
        the block writes all submitted records and releases the lock.

        Args:
            create: Create the log if it does not exist.
            lock_timeout_s: How long to wait for another writer's lock; 0: not at all; None: as configured.
            config: The settings that it names are stronger than the namespace's writer settings.
            reopen: If the writer stops because bookies or metadata were out of reach, its session expired or
                the disk was full, open it again by itself, for at most ``WriterConfig.reopen_timeout_s``.
                Each record that was in flight has its outcome before: durable, not written, or unknown; none
                is written again. ``append``, ``flush`` and ``wait_capacity`` wait meanwhile, ``submit``
                raises. If another writer has the log, this one ends with ``LogFencedError``.
            shared: Any number of programs may have the log open for writing with ``shared``. One of them owns
                it, and the others forward their records to it; if it ends, another one takes over. Each
                record is stored once all the same. Such a writer opens itself again as with ``reopen``. In a
                cluster, programs on several machines need ``NamespaceConfig.owner_address``.
            producer: The name of this program's records in a log that is shared, 1 to 64 bytes of UTF-8; no
                two programs have it at the same time. None: a random one.

        Raises:
            LogNotFoundError, EndOfStreamError (sealed), LogLockedError, LogFencedError, LogMetadataError
            ConfigError: ``producer`` without ``shared``; or this program cannot listen at ``owner_address``.
        """
        ours = self.context.config.writer if config is None else config.over(self.context.config.writer)
        name = self.context.checked(name, Right.WRITE)
        if shared:
            return open_shared_writer(self.context, name, create, lock_timeout_s, ours, producer)
        if producer is not None:
            raise ConfigError(f"producer={producer!r}: only a shared writer has a producer; say shared=True")
        return open_writer(self.context, name, create, lock_timeout_s, ours, reopen)

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
        first, last = _bounds_of(start, end)
        return open_reader(
            self.context,
            name,
            first,
            end=last,
            follow=follow,
            cursor=None if cursor is None else check_cursor_name(cursor),
            gaps=gaps,
        )

    def scan(
        self,
        name: str,
        start: Where = EARLIEST,
        end: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        json: Mapping[str, Any] | bool = False,
        typed: bool = False,
    ) -> AbstractAsyncContextManager[Scan]:
        """The records of a log as Arrow record batches, for the duration of an ``async with``.

        The bounds are decided when it is opened: it never waits for records that are not written, and each
        iteration gives the same records. In ``dlog.blocking`` DuckDB, Polars and pandas take the scan itself;
        it needs no ``with`` there, and is closed when it is dropped. It needs the extra ``scan``.

        Args:
            start: As of ``open_reader``.
            end: The last record, inclusive, as of ``open_reader``. None and LATEST: the last one visible now.
            columns: The columns in their order, of ``segment``, ``entry``, ``slot``, ``txid``,
                ``sequence_id``, ``payload``, ``key``, ``headers`` and ``dlsn``, the position as text. None:
                all but ``dlsn``, and without ``payload`` if its fields are columns.
            json: Fields of payloads that are JSON objects, as further columns: names with types, which are
                those of Arrow, their names (``"int64"``), or int, float, str and bool. True: the fields that
                the first 1,000 records have, with the types that hold their values; text stays text. A
                field that a record does not have is null.
            typed: The payloads are those of ``dlog.typed``: ``schema`` and ``schema_version`` are columns,
                and ``json`` is about the fields of the values; without it, they are found as with True.

        Raises:
            ValueError: ``end`` is EARLIEST, a datetime has no time zone, or there is no such column or type.
            ConfigError: The package pyarrow is not installed.
            PayloadFieldsError: A payload is no JSON object, or a value has not the type of its column.
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        first, last = _bounds_of(start, end)

        def read(begin: DLSN | int | Start, stop: DLSN) -> AbstractAsyncContextManager[LogReader]:
            return self.open_reader(name, start=begin, end=stop)

        log = ScannedLog(self.context.checked(name, Right.READ), read, lambda: self.last_dlsn(name))
        converter = converter_of(
            columns, json, typed=typed, decrypts=self.config.reader.encryption is not None
        )
        return open_scan(log, converter, first, last)

    def watch_segments(self, name: str) -> AbstractAsyncContextManager[SegmentWatch]:
        """Follow a log's segments, for the duration of an ``async with``: an iterator of their changes.

        It reports what appeared, was completed, was truncated and was deleted since it was opened;
        ``SegmentWatch.segments`` has those that were there. What happened while nobody waited is reported as
        the difference: a segment that came and went is not seen.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        return watch_segments(self.context, name)

    def cursors(self, name: str) -> LogCursors:
        """The cursors of a log: named positions that readers commit."""
        return cursors_of(self.context, name)

    # The life of a log.

    @where_it_is
    async def create_log(self, name: str, *, exist_ok: bool = False) -> None:
        """Create an empty log. A name may have parts (``shop/orders``). If cancelled, the log may exist.

        Raises:
            LogExistsError: Unless ``exist_ok``.
        """
        await create_log(self.context, name, exist_ok=exist_ok)

    @where_it_is
    async def delete_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """Delete a log with all of its records. Its readers fail.

        If the call is cancelled or fails, part of the log may be deleted; call it again.

        Raises:
            LogNotFoundError
            LogLockedError: The log has a writer.
            LogMetadataError: Another client changed the log during the deletion.
        """
        await delete_log(self.context, name, lock_timeout_s=lock_timeout_s)

    async def rename_log(self, old: str, new: str, *, lock_timeout_s: float = 0) -> None:
        """Give a log another name in this namespace. Its records, positions and cursors stay as they are.

        So do its truncation, retention, properties, seal, encryption and hash chain. It takes the log's lock
        and completes segments that a dead writer left in progress; then one transaction moves the log.
        Readers that are open get ``LogRenamedError`` when they look for the next segment: open them by the
        new name. If the call is cancelled, or fails with ``LogUnavailableError``, the log has either name.

        Args:
            lock_timeout_s: How long to wait for the lock of a writer.

        Raises:
            LogNotFoundError, LogExistsError
            LogLockedError: The log has a writer.
            LogRenameError: The log cannot be renamed as it is now, or not to this name; the message says why.
            PromotionError, LogMovedError: The log is being promoted, or was promoted.
            ConfigError: The namespace is federated, or a part of a federated one.
            AccessDeniedError: The right to administer it is missing for one of the names, or deleting it or
                taking its lock is denied.
            LogMetadataError, CorruptLogError, LogUnavailableError
        """
        await rename_log(self.context, old, new, lock_timeout_s=lock_timeout_s)

    @where_it_is
    async def seal_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """End a log for good: it takes no more records, and its readers end (``LogReader.is_sealed``).

        It writes the end-of-stream marker, after recovering what an earlier writer left. A log that is sealed
        already stays so. If the call is cancelled or fails, the log may be sealed or not; call it again.

        Raises:
            LogNotFoundError
            LogLockedError: The log has a writer. It can seal the log itself (``LogWriter.seal``).
            LogFencedError, LogWriteError, LogMetadataError
        """
        name = await self.context.permitted(name, Right.ADMIN)  # opening a writer changes the log
        try:
            async with self.open_writer(name, lock_timeout_s=lock_timeout_s) as writer:
                await writer.seal()
        except EndOfStreamError:
            pass

    @where_it_is
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
        return await truncate_log(self.context, name, before)

    @where_it_is
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
        return await purge_log(self.context, name, dry_run=dry_run)

    # Questions; nothing is changed, and each call may be cancelled at any time.

    async def list_logs(self, prefix: str = "", *, pattern: str | None = None) -> list[str]:
        """The names of the logs, sorted; with a prefix, of those below it (``shop``: ``shop/orders``).

        If the namespace has a policy, only logs that this program may read are listed.

        Args:
            pattern: Only names that match it as a whole, prefix included: ``*`` stands for any characters,
                ``/`` too, ``?`` for one, ``[ab]`` for one of these. In a policy only ``*`` is special.
        """
        names = await self.context.readable_logs(prefix)
        return names if pattern is None else [name for name in names if fnmatchcase(name, pattern)]

    @where_it_is
    @waits_for_store
    async def log_location(self, name: str) -> str:
        """The path of the namespace that holds a log: in a federated namespace that of a sub-namespace.

        Raises:
            LogNotFoundError
            LogMetadataError: Two sub-namespaces hold it.
        """
        name = await self.context.permitted(name, Right.READ)
        with translated(name, "looking for it"):
            if not await logs.log_exists(self.context.nodes(name)):
                raise LogNotFoundError(name)
            place = (
                await self.context.store.locate(name)
                if isinstance(self.context.store, FederatedStore)
                else None
            )
            return place or self.context.path

    @waits_for_store
    async def log_exists(self, name: str) -> bool:
        """True if the log exists now; also of a log that was moved to another namespace.

        Raises:
            AccessDeniedError: The policy gives this program no right on a log of this name.
        """
        name = await self.context.may_read(name)
        with translated(name, "looking for it"):
            return await logs.log_exists(self.context.nodes(name))

    @where_it_is
    @waits_for_store
    async def segments(self, name: str) -> list[SegmentDescription]:
        """The log's segments, oldest first.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        await self.context.permitted(name, Right.READ)
        return [SegmentDescription.of(each) for each in await self.context.log(name).segments()]

    @where_it_is
    @waits_for_store
    async def last_dlsn(self, name: str) -> DLSN | None:
        """The position of the last record that a reader sees now; None if there is none.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self.context.log(await self.context.permitted(name, Right.READ))
        record = await log.last_record(await log.segments())
        return None if record is None else record.dlsn

    @where_it_is
    @waits_for_store
    async def position_of(
        self, name: str, *, txid: int | None = None, timestamp: datetime.datetime | None = None
    ) -> DLSN | None:
        """The position of the first visible record at a transaction id or a moment, or after it.

        It is found by a binary search, without a writer, a reader or the lock. None: there is no such record
        yet, or none is left.

        Args:
            txid: The record has this transaction id or a greater one.
            timestamp: The same with its epoch milliseconds, which are the default transaction ids.

        Raises:
            ValueError: Not exactly one of the two is given, or the moment has no time zone.
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        place = txid if timestamp is None else timestamp
        if place is None or (txid is not None and timestamp is not None):
            raise ValueError("position_of takes either txid or timestamp")
        wanted = txid_at(place) if isinstance(place, datetime.datetime) else as_txid(place)
        record = await self.context.log(await self.context.permitted(name, Right.READ)).first_from_txid(
            wanted
        )
        return None if record is None else record.dlsn

    @waits_for_store
    async def log_identity(self, name: str) -> str | None:
        """A number that no other log has, also none that gets the name later; it moves with the log.

        A log that is promoted keeps it for those who open it here, and has another one at its target.

        None: Apache's programs or an older release created the log, and no writer of this release has opened
        it.

        Raises:
            LogNotFoundError
        """
        name = await self.context.may_read(name)
        with translated(name, "reading its identity"):
            try:
                node = await self.context.store.get(self.context.nodes(name).root_path)
            except NoNodeError:
                raise LogNotFoundError(name) from None
            return log_id_in(node.value)

    @where_it_is
    @waits_for_store
    async def describe_log(self, name: str) -> LogDescription:
        """A log's segments, ends, number of records and writer, found without reading all of it.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        return await describe_log(self.context, name)

    @where_it_is
    @waits_for_store
    async def count_records(self, name: str, *, start: DLSN | None = None, end: DLSN | None = None) -> int:
        """The number of records visible now, between two positions or in the whole log.

        Truncated records count until their segments are deleted. At most two segments are read, in part.

        Args:
            start: The first record that counts; None: from the first one on.
            end: Records at or after it do not count, so the counts of adjoining ranges add up; None: all
                that are visible.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self.context.log(await self.context.permitted(name, Right.READ))
        return await log.count_from(await log.segments(), DLSN(0, 0, 0) if start is None else start, end)

    @where_it_is
    @waits_for_store
    async def entry_totals(self, name: str, entries: Iterable[tuple[int, int]]) -> list[EntryTotals | None]:
        """The records and bytes of a segment up to and including an entry, by reading that entry alone.

        So the size of a range of positions is known without reading the range.

        Args:
            entries: Log segment sequence numbers and entry ids.

        Returns:
            The totals in the order of ``entries``; None for an entry that is not there or not confirmed yet.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self.context.log(await self.context.permitted(name, Right.READ))
        return await log.entry_totals(await log.segments(), list(entries))


def _bounds_of(start: Where, end: Where | None) -> tuple[DLSN | int | Start, DLSN | int | Start | None]:
    if end is EARLIEST:
        raise ValueError("end=EARLIEST: give a DLSN, a transaction id, a datetime or LATEST")
    return position_or_txid(start), None if end is None else position_or_txid(end)


def check_namespace(namespace: object) -> None:
    """Raise a TypeError that helps, unless it is a namespace for trio; for functions that take one."""
    if not isinstance(namespace, Namespace):
        raise TypeError(
            f"a namespace of dlog.open_namespace is needed here, not {namespace!r}; dlog.aio and"
            " dlog.blocking have functions of the same names for their own"
        )
