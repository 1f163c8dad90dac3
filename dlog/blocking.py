"""The same namespace, writers and readers for code without ``async``: scripts, notebooks, Spark workers,
asyncio.

Inside: a trio loop in a thread of its own for each open namespace, and objects that hand every call to the
one implementation there. Not inside: any behaviour of their own; what a call promises is written at its
namesake.
Always: calls may come from any thread; a KeyboardInterrupt cancels the call that waits and leaves the rest as
it was; records submitted by one thread keep their order.

In asyncio, ``await asyncio.wrap_future(writer.submit(payload))``.
"""

from __future__ import annotations

import atexit
import datetime
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

import trio

from dlog.config import NamespaceConfig, WriterConfig
from dlog.connect import open_namespace as open_async
from dlog.description import LogDescription, SegmentDescription
from dlog.errors import NamespaceClosedError, RecordOutcome
from dlog.log_reader import LogReader as AsyncLogReader
from dlog.log_writer import LogWriter as AsyncLogWriter
from dlog.log_writer import as_bytes
from dlog.namespace_handle import Namespace as AsyncNamespace
from dlog.pending import Pending
from dlog.positioning import EARLIEST, Start
from dlog.record import Record
from namespace.dlsn import DLSN

T = TypeVar("T")

RECORDS_AT_ONCE = 1024  # that an iterating reader fetches from the loop's thread


class _Loop:
    """A trio loop in a daemon thread, and calls into it."""

    def __init__(self, name: str) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._ready = threading.Event()
        # A daemon, so that a program that forgets to close can end; ``_close_all`` closes it properly before.
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(trio.sleep_forever)
            self._ready.set()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Call a function that neither waits nor raises in the loop; calls keep their order."""
        assert self._token is not None
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            raise NamespaceClosedError("it was closed; open the namespace again") from None

    def run(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Run an asynchronous function in the loop and return, or raise, what it does."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("dlog.blocking was called from its own loop; use the asynchronous API there")
        future: Future[T] = Future()
        scope = trio.CancelScope()

        async def task() -> None:
            try:
                with scope:
                    result = await function(*args, **kwargs)
            except BaseException as exc:
                future.set_exception(exc)
                if not isinstance(exc, Exception):
                    raise
            else:
                if scope.cancelled_caught:
                    future.cancel()
                    future.set_running_or_notify_cancel()
                else:
                    future.set_result(result)

        def start() -> None:
            assert self._nursery is not None
            self._nursery.start_soon(task)

        self.call_soon(start)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # this thread was interrupted, by Ctrl-C for one
                self.call_soon(scope.cancel)
                wait((future,))
            raise

    def stop(self) -> None:
        """End the loop; everything in it should be closed already."""
        try:
            self.call_soon(self._cancel)
        except NamespaceClosedError:
            return
        self._thread.join()

    def _cancel(self) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()


class _Held(Generic[T]):
    """The value of an asynchronous context manager, held open by a task in the loop."""

    def __init__(self, loop: _Loop, manager: AbstractAsyncContextManager[T]) -> None:
        self._loop = loop
        self._manager = manager
        self._release = trio.Event()
        self._ended: Future[None] = Future()
        self.value: T = loop.run(self._open)

    async def _open(self) -> T:
        opened: Future[T] = Future()
        told = trio.Event()
        nursery = self._loop._nursery
        assert nursery is not None
        scope = trio.CancelScope()

        async def hold() -> None:
            try:
                with scope:
                    async with self._manager as value:
                        opened.set_result(value)
                        told.set()
                        await self._release.wait()
            except Exception as exc:
                (opened if not opened.done() else self._ended).set_exception(exc)
            finally:
                told.set()
                if not self._ended.done():
                    self._ended.set_result(None)

        nursery.start_soon(hold)
        try:
            await told.wait()
        except trio.Cancelled:
            scope.cancel()
            raise
        return opened.result()

    def release(self) -> None:
        """Leave the context manager; raises what that does, the first time."""

        async def leave() -> None:
            self._release.set()
            ended = trio.Event()
            token = trio.lowlevel.current_trio_token()
            self._ended.add_done_callback(lambda _: token.run_sync_soon(ended.set))
            # Not cancelled by an interrupt: the asynchronous side bounds how long it may take.
            with trio.CancelScope(shield=True):
                await ended.wait()

        try:
            self._loop.run(leave)
        except NamespaceClosedError:
            return
        self._ended, ended = _done(), self._ended
        ended.result()


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


class LogWriter:
    """See ``dlog.LogWriter``. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, loop: _Loop, manager: AbstractAsyncContextManager[AsyncLogWriter]) -> None:
        self._loop = loop
        self._held = _Held(loop, manager)
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
            is_first = not self._queue
            self._queue.append((payload, txid, future))
            self._queued_bytes += len(payload)
        if is_first:
            self._loop.call_soon(self._drain)
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
    if pending.outcome is RecordOutcome.DURABLE:
        future.set_result(pending.dlsn)
        return
    try:
        assert pending.dlsn
    except Exception as exc:
        future.set_exception(exc)


class LogReader:
    """See ``dlog.LogReader``: an iterator of records. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, loop: _Loop, manager: AbstractAsyncContextManager[AsyncLogReader]) -> None:
        self._loop = loop
        self._held = _Held(loop, manager)
        self._reader = self._held.value
        self._records: deque[Record] = deque()  # fetched, not yet returned

    def __repr__(self) -> str:
        return f"<blocking {repr(self._reader)[1:]}"

    @property
    def position(self) -> DLSN | None:
        """See ``dlog.LogReader.position``."""
        return self._records[0].dlsn if self._records else self._reader.position

    @property
    def is_sealed(self) -> bool:
        """See ``dlog.LogReader.is_sealed``."""
        return self._reader.is_sealed and not self._records

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        if not self._records:
            self._records.extend(self._loop.run(self._reader.read_batch, RECORDS_AT_ONCE))
            if not self._records:
                raise StopIteration
        return self._records.popleft()

    def read_batch(self, records_max: int, *, wait_s: float | None = None) -> list[Record]:
        """See ``dlog.LogReader.read_batch``."""
        if self._records:
            return [self._records.popleft() for _ in range(min(records_max, len(self._records)))]
        return self._loop.run(self._reader.read_batch, records_max, wait_s=wait_s)

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
        self._loop = _Loop(f"dlog {uri}")
        self._open: weakref.WeakSet[LogWriter | LogReader] = weakref.WeakSet()
        self._is_closed = False
        try:
            self._held = _Held(self._loop, open_async(uri, config=config))
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
