"""A writer without ``async``.

In asyncio, ``await asyncio.wrap_future(writer.submit(payload))``.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from dlog.errors import WriteError
from dlog.write.health import WriterState
from dlog.write.log_writer import Buffer, Headers, carries_trace
from dlog.write.log_writer import LogWriter as TrioWriter
from dlog.write.pending import settle_future
from ledger.payloads import as_payload, as_payloads
from ledger.runtime.tasks.blocking_face import HeldFace, called, forwarded
from ledger.runtime.tasks.face import Shown, attribute, described, listed, shown
from ledger.runtime.tasks.futures import LoopFuture, settle
from ledger.runtime.tasks.thread_queue import ITEM_BYTES, ThreadQueue
from namespace.dlsn import DLSN

SHARED_ITEM_BYTES = 2 * ITEM_BYTES  # a shared writer keeps more objects for a record
HEADER_HELD_BYTES = 128  # what a header takes in memory besides its bytes

_Attributes = tuple[bytes | None, dict[str, bytes]]
_Submitted = tuple[bytes, int | None, _Attributes | None, int | None, Future[DLSN], Context | None]


_NO_ATTRIBUTES = None, None


def _copied(key: Buffer | None, headers: Headers | None) -> _Attributes:
    values = {name: as_payload(value) for name, value in (headers or {}).items()}
    return None if key is None else as_payload(key), values


def _size_bytes(submitted: _Submitted) -> int:
    """Bytes of a record with its key and headers, each header with the objects that hold it."""
    payload, _, attributes, *_ = submitted
    if attributes is None:
        return len(payload)
    key, headers = attributes
    held = sum(len(str(name)) + len(value) + HEADER_HELD_BYTES for name, value in headers.items())
    return len(payload) + len(key or b"") + held


class LogWriter(HeldFace[TrioWriter]):
    """See ``dlog.LogWriter``. Closed by ``close`` or the end of a ``with`` block."""

    _item_bytes = ITEM_BYTES

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        item_bytes = self._item_bytes if self._inner.producer is None else SHARED_ITEM_BYTES
        take = partial(_submit_now, self._inner)
        self._queue: ThreadQueue[_Submitted] = ThreadQueue(self._loop, take, item_bytes)
        self._bytes_in_flight_max = self._inner.bytes_in_flight_max
        self._carries_trace = carries_trace(self._inner)

    log: Shown[str] = attribute("log", "The log's name.")
    payload_bytes_max: Shown[int] = attribute("payload_bytes_max", "A longer payload is refused.")
    last_txid: Shown[int] = shown(TrioWriter.last_txid)
    bytes_in_flight: Shown[int] = shown(TrioWriter.bytes_in_flight)
    bytes_in_flight_max: Shown[int] = shown(TrioWriter.bytes_in_flight_max)
    keys_and_headers: Shown[bool] = shown(TrioWriter.keys_and_headers)
    producer: Shown[str | None] = shown(TrioWriter.producer)
    is_owner: Shown[bool] = shown(TrioWriter.is_owner)
    forwarder_count: Shown[int] = shown(TrioWriter.forwarder_count)
    last_sequence: Shown[int] = shown(TrioWriter.last_sequence)
    state: Shown[WriterState] = shown(TrioWriter.state)
    failure: Shown[WriteError | None] = shown(TrioWriter.failure)
    oldest_pending_s: Shown[float] = shown(TrioWriter.oldest_pending_s)
    health = called(TrioWriter.health)

    append_many = forwarded(
        TrioWriter.append_many, payloads=as_payloads, txids=listed, keys=listed, headers=listed
    )
    append_after = forwarded(TrioWriter.append_after, payload=as_payload)
    append_many_after = forwarded(
        TrioWriter.append_many_after, payloads=as_payloads, txids=listed, keys=listed, headers=listed
    )
    append_once = forwarded(TrioWriter.append_once, payload=as_payload)
    outcome = forwarded(TrioWriter.outcome)
    wait_capacity = forwarded(TrioWriter.wait_capacity)
    flush = forwarded(TrioWriter.flush)
    seal = forwarded(TrioWriter.seal)
    truncate = forwarded(TrioWriter.truncate)
    reopen = forwarded(TrioWriter.reopen)

    @described(TrioWriter.aclose)
    def close(self) -> None:
        # Each later ``submit`` waits for the loop: threads that continue must not keep it from its end.
        self._bytes_in_flight_max = -1
        super().close()

    @described(TrioWriter.append)
    def append(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> DLSN:
        payload = as_payload(payload)
        pending = self._loop.wait_settled(
            lambda: self._inner.begin_append(payload, txid=txid, key=key, headers=headers, sequence=sequence)
        )
        if pending is None:
            return self._loop.run(
                self._inner.append, payload, txid=txid, key=key, headers=headers, sequence=sequence
            )
        return pending.dlsn

    def submit(
        self,
        payload: bytes | bytearray | memoryview,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        sequence: int | None = None,
    ) -> Future[DLSN]:
        """See ``dlog.LogWriter.submit``. Waits only while too many bytes are in flight.

        A record counts with its key and headers, and as at least 1 KiB, since its future takes as much; in a
        shared writer as at least 2 KiB.

        The future gets every error of the record, also the ones that ``submit`` raises there, such as
        ``TxidOutOfOrderError``. Cancelling the future changes nothing about the record. The caller may reuse
        its buffer at once.
        """
        if payload.__class__ is not bytes:
            payload = as_payload(payload)  # copied now: the loop takes it later
        bytes_max = self._bytes_in_flight_max
        if self._queue.held_bytes > bytes_max or self._inner.bytes_in_flight > bytes_max:
            self._loop.run(self._wait_room)
        future: Future[DLSN] = LoopFuture()
        # Copied now, as the payload; the loop checks them.
        attributes = None if key is None and not headers else _copied(key, headers)
        context = copy_context() if self._carries_trace else None  # with the span of this thread
        submitted = payload, txid, attributes, sequence, future, context
        self._queue.put(submitted, len(payload) if attributes is None else _size_bytes(submitted))
        return future

    async def _wait_room(self) -> None:
        """In the loop: return when there is room for a record. Half of it, or callers would wake for each."""
        await self._queue.wait_held_below(self._inner.bytes_in_flight_max // 2 + 1)
        await self._inner.wait_capacity()


def _submit_now(writer: TrioWriter, queue: ThreadQueue[_Submitted], submitted: _Submitted) -> None:
    """In the loop: submit a record that a thread has queued."""
    payload, txid, attributes, sequence, future, context = submitted
    size_bytes = len(payload) if attributes is None else _size_bytes(submitted)
    key, headers = _NO_ATTRIBUTES if attributes is None else attributes
    try:
        if context is None:
            pending = writer.submit(payload, txid=txid, key=key, headers=headers, sequence=sequence)
        else:
            pending = context.run(
                partial(writer.submit, payload, txid=txid, key=key, headers=headers, sequence=sequence)
            )
    except Exception as exc:
        settle(future, exc)
        queue.done(size_bytes)
        return

    def settled() -> None:
        settle_future(pending, future)
        queue.done(size_bytes)

    pending.on_settled(settled)
