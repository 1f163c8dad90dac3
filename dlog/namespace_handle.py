"""A namespace: the logs kept in one place, and opening them.

Inside: the object that ``open_namespace`` yields. Not inside: finding and connecting to the place
(``connect``, ``embedded``), writing and reading (``log_writer``, ``log_reader``).
Always: every error that leaves here is one of ``dlog.errors``.

Source: DistributedLog, BKDistributedLogNamespace.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from dlog.config import NamespaceConfig, WriterConfig
from dlog.description import LogDescription, SegmentDescription
from dlog.errors import (
    DLogError,
    LogLockedError,
    LogNotFoundError,
    NamespaceClosedError,
    as_dlog_error,
    translated,
)
from dlog.log_reader import LogReader, open_log_reader
from dlog.log_source import LogSource
from dlog.log_writer import LogWriter, wall_ms
from dlog.nursery import open_service_tasks
from dlog.positioning import EARLIEST, Start, first_left
from dlog.record import TXID_MAX
from dlog.segment_keeper import SegmentKeeper
from dlog.segments import LogSegments
from ledger.client import LedgerClient
from namespace import errors as namespace_errors
from namespace import logs, paths
from namespace.dlsn import DLSN
from namespace.lock import DistributedLock, in_order, member_owner
from namespace.log_name import check_log_name
from namespace.segment import FIRST_SEGMENT_SEQNO
from namespace.store import MetadataStore


class Namespace:
    """The logs of one namespace. Made by ``dlog.open_namespace``; its calls may run concurrently.

    Every call raises ``InvalidLogNameError`` for a name that no log can have, ``LogUnavailableError`` while
    the metadata store cannot be reached, ``NamespaceLostError`` once the session with it is over,
    ``NamespaceClosedError`` after the ``async with`` block was left.
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
    ) -> None:
        self.uri = uri
        self.config = config
        self._store, self._client, self._path = store, client, path
        self._client_id, self._first_segment_seqno, self._wall_ms = client_id, first_segment_seqno, wall_ms
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Namespace {self.uri}, {'closed' if self._is_closed else self._store.state.value}>"

    async def create_log(self, name: str, *, exist_ok: bool = False) -> None:
        """Create an empty log. Names may have parts (``shop/orders``). If cancelled, it may or may not exist.

        Raises:
            LogExistsError: Unless ``exist_ok``.
        """
        name = self._checked(name)
        with translated(name, "creating it"):
            await logs.create_log(self._store, self._path, name, exist_ok=exist_ok)

    async def delete_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """Delete a log with all of its records. Readers of it fail.

        If cancelled or failed, part of it may be gone; call it again.

        Raises:
            LogNotFoundError
            LogLockedError: It has a writer.
        """
        name = self._checked(name)
        async with self._locked(name, lock_timeout_s):
            with translated(name, "deleting it"):
                metadata = await logs.open_log(self._store, self._path, name)
                listed = await logs.list_segments(self._store, self._path, name, gaps_ok=True)
                # Ledgers first: a node without its ledger is found by the next attempt, the reverse by
                # nobody.
                for segment in listed.segments:
                    await self._client.delete(segment.ledger_id)
                    await logs.delete_segment(self._store, self._path, name, segment)
                if metadata.allocated_ledger_id is not None:
                    await self._client.delete(metadata.allocated_ledger_id)
                await logs.delete_log_nodes(self._store, self._path, name)

    async def list_logs(self, prefix: str = "") -> list[str]:
        """The names of all logs, sorted; with a prefix those below it (``shop`` gives ``shop/orders``)."""
        self._check_open()
        with translated(None, "listing logs"):
            return await logs.list_logs(self._store, self._path, prefix)

    async def log_exists(self, name: str) -> bool:
        """Whether there is such a log now."""
        name = self._checked(name)
        with translated(name, "looking for it"):
            return await logs.log_exists(self._store, self._path, name)

    async def segments(self, name: str) -> list[SegmentDescription]:
        """The log's segments, oldest first.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        return [SegmentDescription.of(each) for each in await self._source(name).segments()]

    async def last_dlsn(self, name: str) -> DLSN | None:
        """The position of the last record that can be read now; None if there is none.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        source = self._source(name)
        record = await source.last_record(await source.segments())
        return None if record is None else record.dlsn

    async def describe_log(self, name: str) -> LogDescription:
        """What is known about a log without reading it.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        source = self._source(name)
        segments = await source.segments()
        last = await source.last_record(segments)
        count = sum(segment.record_count for segment in segments)
        if last is not None:
            # Of segments in progress, what is visible: their last record tells its place in its segment.
            newest = next(each for each in segments if each.segment_seqno == last.dlsn.segment_seqno)
            if newest.in_progress:
                count += last.sequence_id
                older = [each for each in segments if each.segment_seqno < newest.segment_seqno]
                if older and older[-1].in_progress:
                    count += await source.visible_count(older[-1])
        with translated(name, "looking for its writer"):
            writer = await self._lock_owner(source.log)
        return LogDescription(
            name=source.log,
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
        """Become the log's one writer, for the length of an ``async with``.

        Waits for the lock, then recovers what a writer before left unfinished, so that it can write no more
        and every record it was told to be durable is in the log. Leaving the block writes out what was
        submitted and gives the lock back.

        Args:
            create: Create the log if it does not exist.
            lock_timeout_s: How long to wait for another writer to let go; 0: not at all; None: as configured.
            config: Instead of the namespace's.

        Raises:
            LogNotFoundError, EndOfStreamError (sealed), LogLockedError, LogFencedError, LogMetadataError
        """
        return self._open_writer(self._checked(name), create, lock_timeout_s, config or self.config.writer)

    def open_reader(
        self,
        name: str,
        *,
        start: DLSN | int | Start | datetime.datetime = EARLIEST,
        end: DLSN | None = None,
        follow: bool = True,
    ) -> AbstractAsyncContextManager[LogReader]:
        """Read a log, for the length of an ``async with``. Any number of readers may read, none disturbs the
        writer.

        Args:
            start: A DLSN: at that record. A transaction id: at the first record with at least that id. A
                moment: the
                same with its epoch milliseconds, which is what writers use unless told otherwise. EARLIEST:
                at the first record left. LATEST: behind the last record visible now.
            end: The last position wanted, inclusive.
            follow: Wait for more at the end of the log; False: stop there. What a writer has appended within
                the last
                few milliseconds may not be visible yet; its ``flush`` makes it so.

        Raises:
            LogNotFoundError
            LogTruncatedError: The start is a DLSN and a record there, or behind it, is gone.
            LogReaderStalledError: Finding the start failed for longer than ``ReaderConfig.patience_s``.
        """
        if isinstance(start, datetime.datetime):
            if start.tzinfo is None:
                raise ValueError(
                    f"start={start!r}: say which time zone it is in (datetime.UTC, or .astimezone())"
                )
            start = int(start.timestamp() * 1000)
        return open_log_reader(self._source(name), self.config.reader, start=start, end=end, follow=follow)

    # The rest is for this package.

    def close(self) -> None:
        """Refuse every later call; what is open ends with the block that opened the namespace."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise NamespaceClosedError(f"namespace {self.uri}: it was closed; open it again")

    def _checked(self, name: str) -> str:
        self._check_open()
        with translated(name, "checking its name"):
            return check_log_name(name)

    def _source(self, name: str) -> LogSource:
        return LogSource(self._store, self._client, self._path, self._checked(name), self.config.password)

    async def _lock_owner(self, name: str) -> str | None:
        path = paths.lock_path(self._path, name)
        try:
            members = in_order((await self._store.children(path)).names)
            if not members:
                return None
            if (owner := member_owner(members[0])) is not None:
                return owner[0]
            return (await self._store.get(f"{path}/{members[0]}")).value.decode("utf-8", "replace")
        except namespace_errors.NoNodeError:
            return None

    @asynccontextmanager
    async def _locked(self, name: str, timeout_s: float) -> AsyncIterator[DistributedLock]:
        lock = DistributedLock(self._store, paths.lock_path(self._path, name), self._client_id)
        try:
            await lock.acquire(timeout_s)
        except namespace_errors.LockTakenError as exc:
            raise LogLockedError(name, exc.owner, exc.waited_s) from exc
        except namespace_errors.NoNodeError as exc:
            raise LogNotFoundError(name) from exc
        except namespace_errors.NamespaceError as exc:
            raise as_dlog_error(exc, name, "acquiring its lock") from exc
        try:
            yield lock
        finally:
            # Bounded and shielded in there; a lock that is gone is fine.
            with trio.CancelScope(shield=True):
                await lock.release()

    @asynccontextmanager
    async def _open_writer(
        self, name: str, create: bool, lock_timeout_s: float | None, config: WriterConfig
    ) -> AsyncIterator[LogWriter]:
        if create:
            await self.create_log(name, exist_ok=True)
        timeout_s = config.lock_timeout_s if lock_timeout_s is None else lock_timeout_s
        async with self._locked(name, timeout_s) as lock, open_service_tasks() as tasks:
            segments = LogSegments(
                self._store,
                self._client,
                self._path,
                name,
                self.config,
                first_segment_seqno=self._first_segment_seqno,
                wall_ms=self._wall_ms,
            )
            await segments.refresh()
            await segments.recover_all()
            last_txid = segments.last_txid
            keeper = SegmentKeeper(name, segments, lock, config, last_txid=last_txid)
            writer = LogWriter(name, keeper, config, last_txid=last_txid, wall_ms=self._wall_ms)
            tasks.start_soon(keeper.run)
            tasks.start_soon(keeper.keep_visible)
            tasks.start_soon(keeper.watch_lock)
            try:
                yield writer
            except BaseException:
                # Records already taken are still written; the error of the block is the one to tell.
                with trio.CancelScope(shield=True):
                    try:
                        await writer.aclose()
                    except DLogError:
                        pass
                raise
            else:
                await writer.aclose()
