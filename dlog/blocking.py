"""Namespaces, writers and readers without ``async``: for scripts, notebooks, Spark workers, asyncio.

Inside: objects that pass each call to the asynchronous implementation. It runs in a trio loop in a thread of
its own, one for each open namespace. The promise of each call is that of the asynchronous call of the same
name.
Not inside: the loop (``ledger.loop_thread``), any behaviour of their own.
Always: calls may come from any thread; a KeyboardInterrupt cancels the waiting call, as a cancellation does
in the asynchronous API: a reader loses no record, an interrupted ``append`` may have written its record;
records submitted by one thread keep their order.

In asyncio, ``await asyncio.wrap_future(writer.submit(payload))``.
"""

from __future__ import annotations

import atexit
import datetime
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from itertools import islice
from operator import length_hint
from types import TracebackType

import trio

from dlog.config import NamespaceConfig, WriterConfig
from dlog.connect import open_namespace as open_async
from dlog.description import LogDescription, SegmentDescription
from dlog.errors import NamespaceClosedError
from dlog.format.dlsn import DLSN
from dlog.format.record import Record
from dlog.metadata.cursor_nodes import Cursor
from dlog.metadata.policy import Policy
from dlog.metadata.retention import Retention
from dlog.namespace_handle import Namespace as AsyncNamespace
from dlog.read.cursors import LogCursors as AsyncLogCursors
from dlog.read.log_reader import LogReader as AsyncLogReader
from dlog.read.positioning import EARLIEST, Start
from dlog.read.verifier import LogVerification
from dlog.write.log_writer import LogWriter as AsyncLogWriter
from dlog.write.log_writer import as_bytes
from dlog.write.pending import settle_future
from ledger.forks import call_in_child
from ledger.loop_thread import Held, LoopThread
from namespace.service_uri import without_user_info

RECORDS_AT_ONCE = 1024  # an iterating reader fetches so many from the loop's thread


class LogWriter:
    """See ``dlog.LogWriter``. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[AsyncLogWriter]) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._writer = self._held.value
        self._queue: deque[tuple[bytes, int | None, Future[DLSN]]] = deque()
        self._queued_bytes = 0
        self._guard = threading.Lock()
        call_in_child(self, LogWriter._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Forget what was queued: called in a forked child, whose next call raises."""
        self._queue, self._queued_bytes = deque(), 0
        self._guard = threading.Lock()  # another thread of the parent may have held it

    def __repr__(self) -> str:
        return f"<blocking {repr(self._writer)[1:]}"

    @property
    def last_txid(self) -> int:
        """See ``dlog.LogWriter.last_txid``."""
        return self._writer.last_txid

    def append(self, payload: bytes | bytearray | memoryview, *, txid: int | None = None) -> DLSN:
        """See ``dlog.LogWriter.append``."""
        return self._loop.run(self._writer.append, as_bytes(payload), txid=txid)

    def append_many(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        *,
        txids: Iterable[int] | None = None,
    ) -> list[DLSN]:
        """See ``dlog.LogWriter.append_many``. The calling thread consumes the iterables."""
        txids = None if txids is None else list(txids)
        return self._loop.run(self._writer.append_many, [as_bytes(each) for each in payloads], txids=txids)

    def submit(self, payload: bytes | bytearray | memoryview, *, txid: int | None = None) -> Future[DLSN]:
        """See ``dlog.LogWriter.submit``. Waits only while too many bytes are in flight.

        The future gets every error of the record, also the ones that ``submit`` raises there, such as
        ``TxidOutOfOrderError``. Cancelling the future changes nothing about the record. The caller may reuse
        its buffer at once.
        """
        if payload.__class__ is not bytes:
            payload = as_bytes(payload)  # copied now: the loop takes it later
        if self._queued_bytes + self._writer.bytes_in_flight > self._writer.bytes_in_flight_max:
            self.wait_capacity()
        future: Future[DLSN] = Future()
        with self._guard:
            if not self._queue:
                # Before the record is queued: this may raise, and then no call would drain the queue. Under
                # the guard: a thread that finds records queued relies on a drain before its own next call.
                self._loop.call_soon(self._drain)
            self._queue.append((payload, txid, future))
            self._queued_bytes += len(payload)
        return future

    def wait_capacity(self) -> None:
        """See ``dlog.LogWriter.wait_capacity``."""
        self._loop.run(self._writer.wait_capacity)

    def flush(self) -> None:
        """See ``dlog.LogWriter.flush``."""
        self._loop.run(self._writer.flush)

    def truncate(self, first_kept: DLSN) -> DLSN | None:
        """See ``dlog.LogWriter.truncate``."""
        return self._loop.run(self._writer.truncate, first_kept)

    def close(self) -> None:
        """See ``dlog.LogWriter.aclose``. Idempotent."""
        self._held.release()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self.close, exc)

    def _drain(self) -> None:
        """In the loop: submit the records that the threads have queued, in order."""
        with self._guard:
            queue, self._queue = self._queue, deque()
            self._queued_bytes = 0
        for payload, txid, future in queue:
            try:
                pending = self._writer.submit(payload, txid=txid)
            except Exception as exc:
                if future.set_running_or_notify_cancel():
                    future.set_exception(exc)
            else:
                pending.on_settled(lambda pending=pending, future=future: settle_future(pending, future))  # type: ignore[misc]


class LogReader:
    """See ``dlog.LogReader``: an iterator of records. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[AsyncLogReader]) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._reader = self._held.value
        self._guard = threading.Lock()
        self._records: list[Record] = []  # fetched
        # The records not returned yet. Threads and interrupts cannot divide a step of a list's iterator.
        self._ahead = iter(self._records)
        self._position = self._reader.position  # after all fetched records
        self._fetching: trio.Event | None = None  # set when the fetch in progress ends
        call_in_child(self, LogReader._refuse_in_child)

    def _refuse_in_child(self) -> None:
        """Free the guard: called in a forked child, whose next fetch raises."""
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return f"<blocking {repr(self._reader)[1:]}"

    @property
    def position(self) -> DLSN | None:
        """See ``dlog.LogReader.position``."""
        if self._fetching is not None:
            # A fetch moves records from the reader to this object. Between two steps of the loop it has moved
            # all of them or none.
            with suppress(NamespaceClosedError):
                return self._loop.run(self._position_in_loop)
        with self._guard:
            left = length_hint(self._ahead)
            return self._records[-left].dlsn if left else self._position

    @property
    def cursor(self) -> Cursor | None:
        """See ``dlog.LogReader.cursor``."""
        return self._reader.cursor

    def commit(self, last: DLSN | None = None) -> Cursor | None:
        """See ``dlog.LogReader.commit``."""
        if last is not None and ((here := self.position) is None or last >= here):
            raise ValueError(f"{last} was not returned yet, so it cannot be committed")
        return self.commit_to(self.position if last is None else last.next_slot())

    def commit_to(self, position: DLSN | None) -> Cursor | None:
        """See ``dlog.LogReader.commit_to``."""
        # The asynchronous reader's position is that of the records fetched ahead.
        if position is not None and ((here := self.position) is None or position > here):
            raise ValueError(f"the reader has not come to {position} yet")
        return self._loop.run(self._reader.commit_to, position)

    @property
    def is_sealed(self) -> bool:
        """See ``dlog.LogReader.is_sealed``."""
        return self._reader.is_sealed and not self._has_records

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        while True:
            for record in self._ahead:
                return record
            if not self._loop.run(self._fetch, RECORDS_AT_ONCE, None):
                raise StopIteration

    def read_batch(self, records_max: int, *, wait_s: float | None = None) -> list[Record] | None:
        """See ``dlog.LogReader.read_batch``."""
        if records_max < 1:
            raise ValueError(f"records_max={records_max}: at least 1")
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if records := list(islice(self._ahead, records_max)):
                return records
            fetched = self._loop.run(self._fetch, records_max, deadline_s)
            if not fetched:
                return [] if fetched is False else None

    @property
    def _has_records(self) -> bool:
        return length_hint(self._ahead) > 0

    async def _fetch(self, records_max: int, deadline_s: float | None) -> bool | None:
        """In the loop: fetch records; False if none came in time, None at the end.

        The records are stored in this object. So a later call returns them if the calling thread is
        interrupted. There is one fetch at a time, so that records keep their order.
        """

        def left_s() -> float:
            return math.inf if deadline_s is None else max(0.0, deadline_s - time.monotonic())

        with trio.move_on_after(left_s()):
            while self._fetching is not None:
                await self._fetching.wait()
        if self._has_records:
            return True  # decided by one look: another thread may take the record before a second one
        if self._fetching is not None:
            return False
        self._fetching = trio.Event()
        try:
            wait_s = None if deadline_s is None else left_s()
            records = await self._reader.read_batch(records_max, wait_s=wait_s)
            with self._guard:
                self._records, self._position = records or [], self._reader.position
                self._ahead = iter(self._records)
            return None if records is None else bool(records)
        finally:
            self._position = self._reader.position
            self._fetching.set()
            self._fetching = None

    async def _position_in_loop(self) -> DLSN | None:
        await trio.lowlevel.checkpoint()
        left = length_hint(self._ahead)
        return self._records[-left].dlsn if left else self._reader.position

    def close(self) -> None:
        """End the reader. Idempotent."""
        self._held.release()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self.close, exc)


class LogCursors:
    """See ``dlog.LogCursors``."""

    def __init__(self, loop: LoopThread, cursors: AsyncLogCursors) -> None:
        self.log = cursors.log
        self._loop, self._cursors = loop, cursors

    def __repr__(self) -> str:
        return f"<blocking {repr(self._cursors)[1:]}"

    def list(self) -> list[Cursor]:
        """See ``dlog.LogCursors.list``."""
        return self._loop.run(self._cursors.list)

    def get(self, name: str) -> Cursor | None:
        """See ``dlog.LogCursors.get``."""
        return self._loop.run(self._cursors.get, name)

    def set(self, name: str, position: DLSN) -> Cursor:
        """See ``dlog.LogCursors.set``."""
        return self._loop.run(self._cursors.set, name, position)

    def delete(self, name: str) -> bool:
        """See ``dlog.LogCursors.delete``."""
        return self._loop.run(self._cursors.delete, name)

    def lag(self, cursor: Cursor) -> int:
        """See ``dlog.LogCursors.lag``."""
        return self._loop.run(self._cursors.lag, cursor)


class Namespace:
    """See ``dlog.Namespace``. Closed by ``close`` or the end of a ``with`` block, at the latest when
    Python ends."""

    def __init__(self, uri: str, config: NamespaceConfig | None = None) -> None:
        self._loop = LoopThread(
            f"dlog {without_user_info(uri)}", NamespaceClosedError, "it was closed; open the namespace again"
        )
        self._open: weakref.WeakSet[LogWriter | LogReader] = weakref.WeakSet()
        self._is_closed = False
        try:
            self._held = Held(self._loop, open_async(uri, config=config))
        except BaseException:
            self._loop.stop()
            raise
        self._namespace: AsyncNamespace = self._held.value
        _namespaces.add(self)

    def __repr__(self) -> str:
        return f"<blocking {repr(self._namespace)[1:]}"

    @property
    def uri(self) -> str:
        """The URI as passed to ``open_namespace``."""
        return self._namespace.uri

    def create_log(self, name: str, *, exist_ok: bool = False) -> None:
        """See ``dlog.Namespace.create_log``."""
        self._loop.run(self._namespace.create_log, name, exist_ok=exist_ok)

    def delete_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """See ``dlog.Namespace.delete_log``."""
        self._loop.run(self._namespace.delete_log, name, lock_timeout_s=lock_timeout_s)

    def truncate_log(self, name: str, before: DLSN) -> DLSN | None:
        """See ``dlog.Namespace.truncate_log``."""
        return self._loop.run(self._namespace.truncate_log, name, before)

    def purge_log(self, name: str, *, dry_run: bool = False) -> list[SegmentDescription]:
        """See ``dlog.Namespace.purge_log``."""
        return self._loop.run(self._namespace.purge_log, name, dry_run=dry_run)

    def retention(self, name: str) -> Retention | None:
        """See ``dlog.Namespace.retention``."""
        return self._loop.run(self._namespace.retention, name)

    def set_retention(self, name: str, retention: Retention | None) -> None:
        """See ``dlog.Namespace.set_retention``."""
        self._loop.run(self._namespace.set_retention, name, retention)

    def retain_log(self, name: str) -> list[SegmentDescription]:
        """See ``dlog.Namespace.retain_log``."""
        return self._loop.run(self._namespace.retain_log, name)

    def cursors(self, name: str) -> LogCursors:
        """See ``dlog.Namespace.cursors``."""
        return LogCursors(self._loop, self._namespace.cursors(name))

    def count_records(self, name: str, *, start: DLSN | None = None) -> int:
        """See ``dlog.Namespace.count_records``."""
        return self._loop.run(self._namespace.count_records, name, start=start)

    def list_logs(self, prefix: str = "") -> list[str]:
        """See ``dlog.Namespace.list_logs``."""
        return self._loop.run(self._namespace.list_logs, prefix)

    @property
    def principal(self) -> str:
        """See ``dlog.Namespace.principal``."""
        return self._namespace.principal

    def policy(self) -> Policy | None:
        """See ``dlog.Namespace.policy``."""
        return self._loop.run(self._namespace.policy)

    def set_policy(self, policy: Policy | None) -> None:
        """See ``dlog.Namespace.set_policy``."""
        self._loop.run(self._namespace.set_policy, policy)

    def log_exists(self, name: str) -> bool:
        """See ``dlog.Namespace.log_exists``."""
        return self._loop.run(self._namespace.log_exists, name)

    def segments(self, name: str) -> list[SegmentDescription]:
        """See ``dlog.Namespace.segments``."""
        return self._loop.run(self._namespace.segments, name)

    def last_dlsn(self, name: str) -> DLSN | None:
        """See ``dlog.Namespace.last_dlsn``."""
        return self._loop.run(self._namespace.last_dlsn, name)

    def verify_log(self, name: str, *, expect_head: str | None = None) -> LogVerification:
        """See ``dlog.Namespace.verify_log``."""
        return self._loop.run(self._namespace.verify_log, name, expect_head=expect_head)

    def describe_log(self, name: str) -> LogDescription:
        """See ``dlog.Namespace.describe_log``."""
        return self._loop.run(self._namespace.describe_log, name)

    def open_writer(
        self,
        name: str,
        *,
        create: bool = False,
        lock_timeout_s: float | None = None,
        config: WriterConfig | None = None,
    ) -> LogWriter:
        """See ``dlog.Namespace.open_writer``. The writer is open; the caller closes it."""
        manager = self._namespace.open_writer(
            name, create=create, lock_timeout_s=lock_timeout_s, config=config
        )
        writer = LogWriter(self._loop, manager)
        self._open.add(writer)
        return writer

    def open_reader(
        self,
        name: str,
        *,
        start: DLSN | int | Start | datetime.datetime = EARLIEST,
        end: DLSN | None = None,
        follow: bool = True,
        cursor: str | None = None,
    ) -> LogReader:
        """See ``dlog.Namespace.open_reader``. The reader is open; the caller closes it."""
        manager = self._namespace.open_reader(name, start=start, end=end, follow=follow, cursor=cursor)
        reader = LogReader(self._loop, manager)
        self._open.add(reader)
        return reader

    def close(self) -> None:
        """Close all open writers and readers, then the namespace. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        _namespaces.discard(self)
        error: Exception | None = None
        try:
            for each in list(self._open):
                try:
                    each.close()
                except Exception as exc:
                    error = error or exc
            self._held.release()
        finally:
            self._loop.stop()
        if error is not None:
            raise error

    def __enter__(self) -> Namespace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self.close, exc)


def open_namespace(uri: str, *, config: NamespaceConfig | None = None) -> Namespace:
    """See ``dlog.open_namespace``. Close the result, or use it in a ``with`` statement."""
    return Namespace(uri, config)


def _close(close: Callable[[], None], exc: BaseException | None) -> None:
    """Close. If the block raised, its error is raised, not one of closing."""
    try:
        close()
    except Exception:
        if exc is None:
            raise


_namespaces: weakref.WeakSet[Namespace] = weakref.WeakSet()


def _close_all() -> None:
    for each in list(_namespaces):
        try:
            each.close()
        except Exception:
            pass  # the program ends; a recovery finds every durable record


atexit.register(_close_all)
