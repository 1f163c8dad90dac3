"""The same namespace, writers and readers for code without ``async``: scripts, notebooks, Spark workers,
asyncio.

Inside: objects that hand every call to the one implementation, in a trio loop in a thread of its own for each
open namespace. Not inside: the loop (``loop_thread``); any behaviour of their own; what a call promises is
written at its namesake.
Always: calls may come from any thread; a KeyboardInterrupt cancels the call that waits, and what a cancelled
call may have done its namesake says: a reader loses no record, an interrupted ``append`` may have written;
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
from dlog.log_reader import LogReader as AsyncLogReader
from dlog.log_writer import LogWriter as AsyncLogWriter
from dlog.log_writer import as_bytes
from dlog.loop_thread import Held, LoopThread
from dlog.namespace_handle import Namespace as AsyncNamespace
from dlog.pending import Pending
from dlog.positioning import EARLIEST, Start
from dlog.record import Record
from namespace.dlsn import DLSN

RECORDS_AT_ONCE = 1024  # that an iterating reader fetches from the loop's thread


class LogWriter:
    """See ``dlog.LogWriter``. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[AsyncLogWriter]) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._writer = self._held.value
        self._queue: deque[tuple[bytes, int | None, Future[DLSN]]] = deque()
        self._queued_bytes = 0
        self._guard = threading.Lock()

    def __repr__(self) -> str:
        return f"<blocking {repr(self._writer)[1:]}"

    @property
    def last_txid(self) -> int:
        """See ``dlog.LogWriter.last_txid``."""
        return self._writer.last_txid

    def append(self, payload: bytes, *, txid: int | None = None) -> DLSN:
        """See ``dlog.LogWriter.append``."""
        return self._loop.run(self._writer.append, as_bytes(payload), txid=txid)

    def append_many(self, payloads: Iterable[bytes], *, txids: Iterable[int] | None = None) -> list[DLSN]:
        """See ``dlog.LogWriter.append_many``; the iterables are consumed in the calling thread."""
        txids = None if txids is None else list(txids)
        return self._loop.run(self._writer.append_many, [as_bytes(each) for each in payloads], txids=txids)

    def submit(self, payload: bytes, *, txid: int | None = None) -> Future[DLSN]:
        """See ``dlog.LogWriter.submit``; waits only while too many bytes are on their way already.

        The future fails with what awaiting would raise, ``TxidOutOfOrderError`` and its like included.
        Cancelling it changes nothing about the record. The caller's buffer may be filled again at once.
        """
        if payload.__class__ is not bytes:
            payload = as_bytes(payload)  # the loop takes it later
        if self._queued_bytes + self._writer.bytes_in_flight > self._writer.bytes_in_flight_max:
            self.wait_room()
        future: Future[DLSN] = Future()
        with self._guard:
            if not self._queue:
                # First, as it may raise, and then nobody would come for what is queued. With the guard held:
                # who finds the queue filled relies on its being drained before anything else it calls.
                self._loop.call_soon(self._drain)
            self._queue.append((payload, txid, future))
            self._queued_bytes += len(payload)
        return future

    def wait_room(self) -> None:
        """See ``dlog.LogWriter.wait_room``."""
        self._loop.run(self._writer.wait_room)

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
        """In the loop: submit what the threads have queued, in their order."""
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
                pending.on_settled(lambda pending=pending, future=future: _tell(pending, future))  # type: ignore[misc]


def _tell(pending: Pending, future: Future[DLSN]) -> None:
    if not future.set_running_or_notify_cancel():
        return  # nobody wants to know any more
    try:
        dlsn = pending.dlsn
    except Exception as exc:
        future.set_exception(exc)
    else:
        future.set_result(dlsn)


class LogReader:
    """See ``dlog.LogReader``: an iterator of records. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, loop: LoopThread, manager: AbstractAsyncContextManager[AsyncLogReader]) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._reader = self._held.value
        self._guard = threading.Lock()
        self._records: list[Record] = []  # fetched
        # Those not returned yet. Taking from a list's iterator is one step for threads and interrupts.
        self._ahead = iter(self._records)
        self._position = self._reader.position  # behind all of them
        self._fetching: trio.Event | None = None  # set when the fetch under way has ended

    def __repr__(self) -> str:
        return f"<blocking {repr(self._reader)[1:]}"

    @property
    def position(self) -> DLSN | None:
        """See ``dlog.LogReader.position``."""
        if self._fetching is not None:
            # Only between the steps of the loop is it sure that what the reader gave has arrived here.
            with suppress(NamespaceClosedError):
                return self._loop.run(self._where)
        with self._guard:
            left = length_hint(self._ahead)
            return self._records[-left].dlsn if left else self._position

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

    def read_batch(self, records_max: int, *, wait_s: float | None = None) -> list[Record]:
        """See ``dlog.LogReader.read_batch``."""
        if records_max < 1:
            raise ValueError(f"records_max={records_max}: at least 1")
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if records := list(islice(self._ahead, records_max)):
                return records
            if not self._loop.run(self._fetch, records_max, deadline_s):
                return []

    @property
    def _has_records(self) -> bool:
        return length_hint(self._ahead) > 0

    async def _fetch(self, records_max: int, deadline_s: float | None) -> bool:
        """In the loop: have records at hand; False if time is up or there will be no more.

        They are put where any later call finds them, so that none is lost when the calling thread is
        interrupted; one fetch at a time, so that they keep their order.
        """

        def left_s() -> float:
            return math.inf if deadline_s is None else max(0.0, deadline_s - time.monotonic())

        with trio.move_on_after(left_s()):
            while self._fetching is not None:
                await self._fetching.wait()
        if self._has_records or self._fetching is not None:
            return self._has_records
        self._fetching = trio.Event()
        try:
            wait_s = None if deadline_s is None else left_s()
            records = await self._reader.read_batch(records_max, wait_s=wait_s)
            with self._guard:
                self._records, self._ahead, self._position = records, iter(records), self._reader.position
            return bool(records)
        finally:
            self._position = self._reader.position
            self._fetching.set()
            self._fetching = None

    async def _where(self) -> DLSN | None:
        await trio.lowlevel.checkpoint()
        left = length_hint(self._ahead)
        return self._records[-left].dlsn if left else self._reader.position

    def close(self) -> None:
        """Take no more. Idempotent."""
        self._held.release()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self.close, exc)


class Namespace:
    """See ``dlog.Namespace``. Closed by ``close`` or the end of a ``with`` block, at the latest when
    Python ends."""

    def __init__(self, uri: str, config: NamespaceConfig | None = None) -> None:
        self._loop = LoopThread(f"dlog {uri}")
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
        """As it was given."""
        return self._namespace.uri

    def create_log(self, name: str, *, exist_ok: bool = False) -> None:
        """See ``dlog.Namespace.create_log``."""
        self._loop.run(self._namespace.create_log, name, exist_ok=exist_ok)

    def delete_log(self, name: str, *, lock_timeout_s: float = 0) -> None:
        """See ``dlog.Namespace.delete_log``."""
        self._loop.run(self._namespace.delete_log, name, lock_timeout_s=lock_timeout_s)

    def list_logs(self, prefix: str = "") -> list[str]:
        """See ``dlog.Namespace.list_logs``."""
        return self._loop.run(self._namespace.list_logs, prefix)

    def log_exists(self, name: str) -> bool:
        """See ``dlog.Namespace.log_exists``."""
        return self._loop.run(self._namespace.log_exists, name)

    def segments(self, name: str) -> list[SegmentDescription]:
        """See ``dlog.Namespace.segments``."""
        return self._loop.run(self._namespace.segments, name)

    def last_dlsn(self, name: str) -> DLSN | None:
        """See ``dlog.Namespace.last_dlsn``."""
        return self._loop.run(self._namespace.last_dlsn, name)

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
        """See ``dlog.Namespace.open_writer``; open on return, to be closed."""
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
    ) -> LogReader:
        """See ``dlog.Namespace.open_reader``; open on return, to be closed."""
        manager = self._namespace.open_reader(name, start=start, end=end, follow=follow)
        reader = LogReader(self._loop, manager)
        self._open.add(reader)
        return reader

    def close(self) -> None:
        """Close what was opened and not closed, then the namespace. Idempotent."""
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
    """See ``dlog.open_namespace``; open on return, to be closed or used in a ``with`` statement."""
    return Namespace(uri, config)


def _close(close: Callable[[], None], exc: BaseException | None) -> None:
    """Close; an error of the block is the one to tell."""
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
            pass  # there is nobody left to tell; a recovery finds every durable record


atexit.register(_close_all)
