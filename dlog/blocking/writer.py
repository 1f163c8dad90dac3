"""A writer without ``async``.

In asyncio, ``await asyncio.wrap_future(writer.submit(payload))``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from dlog.blocking.closing import close_after_block
from dlog.write.log_writer import LogWriter as AsyncLogWriter
from dlog.write.pending import settle_future
from ledger.payloads import as_payload
from ledger.runtime.tasks.forks import call_in_child
from ledger.runtime.tasks.loop_thread import Held, LoopThread
from namespace.dlsn import DLSN


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

    @property
    def payload_bytes_max(self) -> int:
        """See ``dlog.LogWriter.payload_bytes_max``."""
        return self._writer.payload_bytes_max

    def append(self, payload: bytes | bytearray | memoryview, *, txid: int | None = None) -> DLSN:
        """See ``dlog.LogWriter.append``."""
        payload = as_payload(payload)
        pending = self._loop.wait_settled(lambda: self._writer._submit_now(payload, txid))
        if pending is None:
            return self._loop.run(self._writer.append, payload, txid=txid)
        return pending.dlsn

    def append_many(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        *,
        txids: Iterable[int] | None = None,
        atomic: bool = False,
    ) -> list[DLSN]:
        """See ``dlog.LogWriter.append_many``. The calling thread consumes the iterables."""
        txids = None if txids is None else list(txids)
        return self._loop.run(
            self._writer.append_many, [as_payload(each) for each in payloads], txids=txids, atomic=atomic
        )

    def append_after(
        self, payload: bytes | bytearray | memoryview, last: DLSN | None, *, txid: int | None = None
    ) -> DLSN:
        """See ``dlog.LogWriter.append_after``."""
        return self._loop.run(self._writer.append_after, as_payload(payload), last, txid=txid)

    def append_many_after(
        self,
        payloads: Iterable[bytes | bytearray | memoryview],
        last: DLSN | None,
        *,
        txids: Iterable[int] | None = None,
    ) -> list[DLSN]:
        """See ``dlog.LogWriter.append_many_after``. The calling thread consumes the iterables."""
        txids = None if txids is None else list(txids)
        return self._loop.run(
            self._writer.append_many_after, [as_payload(each) for each in payloads], last, txids=txids
        )

    def append_once(self, payload: bytes | bytearray | memoryview, *, txid: int) -> DLSN:
        """See ``dlog.LogWriter.append_once``."""
        return self._loop.run(self._writer.append_once, as_payload(payload), txid=txid)

    def outcome(self, txid: int) -> DLSN | None:
        """See ``dlog.LogWriter.outcome``."""
        return self._loop.run(self._writer.outcome, txid)

    def submit(self, payload: bytes | bytearray | memoryview, *, txid: int | None = None) -> Future[DLSN]:
        """See ``dlog.LogWriter.submit``. Waits only while too many bytes are in flight.

        The future gets every error of the record, also the ones that ``submit`` raises there, such as
        ``TxidOutOfOrderError``. Cancelling the future changes nothing about the record. The caller may reuse
        its buffer at once.
        """
        if payload.__class__ is not bytes:
            payload = as_payload(payload)  # copied now: the loop takes it later
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

    def seal(self) -> None:
        """See ``dlog.LogWriter.seal``."""
        self._loop.run(self._writer.seal)

    def truncate(self, first_kept: DLSN) -> DLSN | None:
        """See ``dlog.LogWriter.truncate``."""
        return self._loop.run(self._writer.truncate, first_kept)

    def reopen(self) -> None:
        """See ``dlog.LogWriter.reopen``."""
        self._loop.run(self._writer.reopen)

    def close(self) -> None:
        """See ``dlog.LogWriter.aclose``. Idempotent."""
        self._held.release()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)

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
