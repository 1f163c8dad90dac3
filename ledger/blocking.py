"""The same client and handles for code without ``async``: scripts, notebooks, worker threads.

Inside: objects that hand each call to the one implementation, in a trio loop in a thread of its own for each
open client. Not inside: how their calls are made (``blocking_face``), the loop (``loop_thread``); any
behaviour of their own. A call promises what the trio call of its name promises.
Always: calls may come from any thread; a KeyboardInterrupt cancels the call that waits, and the docstring
says what a cancelled call may have done; entries submitted by one thread keep their order.

In asyncio, ``await asyncio.wrap_future(writer.submit(payload))``.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any

from ledger.client import LedgerClient as TrioLedgerClient
from ledger.deploy.deployment import open_client as open_in_trio
from ledger.errors import ClientClosedError
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.service_uri import without_user_info
from ledger.payloads import as_payload, as_payloads
from ledger.read.handle import ReadHandle as TrioReadHandle
from ledger.runtime.tasks.blocking_face import Face, LoopFace, called, close_after_block, forwarded, opener
from ledger.runtime.tasks.face import Shown, attribute, shown
from ledger.runtime.tasks.futures import LoopFuture, settle
from ledger.runtime.tasks.thread_queue import ThreadQueue
from ledger.write.handle import WriteHandle as TrioWriteHandle

Buffer = bytes | bytearray | memoryview


_Submitted = tuple[bytes, Future[int]]


class _SubmittedEntries:
    """Entries that threads have submitted through one handle, and that are not settled; the loop's.

    The handle of trio refers to it, so it does not refer to the object that callers have.
    """

    def __init__(self, handle: TrioWriteHandle) -> None:
        self._handle = handle
        self._unconfirmed: deque[tuple[int, Future[int], int]] = deque()  # with their bytes

    def submit_now(self, queue: ThreadQueue[_Submitted], submitted: _Submitted) -> None:
        """Submit an entry that a thread has queued."""
        payload, future = submitted
        try:
            entry_id = self._handle.submit(payload)
        except Exception as exc:
            settle(future, exc)
            queue.done(len(payload))
        else:
            self._unconfirmed.append((entry_id, future, len(payload)))

    def on_confirmed(self, queue: ThreadQueue[_Submitted], lac: int, error: BaseException | None) -> None:
        """Settle the futures of confirmed entries, or all of them when the handle has ended."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= lac:
            entry_id, future, size_bytes = unconfirmed.popleft()
            settle(future, entry_id)
            queue.done(size_bytes)
        if error is not None:
            while unconfirmed:
                _, future, size_bytes = unconfirmed.popleft()
                settle(future, error)
                queue.done(size_bytes)


class WriteHandle(Face[TrioWriteHandle]):
    """See ``ledger.WriteHandle``. A ``with`` block closes the ledger; an exception in it abandons the
    handle."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._bytes_in_flight_max = self._inner.bytes_in_flight_max
        entries = _SubmittedEntries(self._inner)
        self._queue: ThreadQueue[_Submitted] = ThreadQueue(self._loop, entries.submit_now)
        self._inner.on_confirmed(partial(entries.on_confirmed, self._queue))

    ledger_id: Shown[int] = attribute("ledger_id", "The ledger's id.")
    metadata: Shown[LedgerMetadata] = shown(TrioWriteHandle.metadata)
    lac: Shown[int] = shown(TrioWriteHandle.lac)
    last_pushed: Shown[int] = shown(TrioWriteHandle.last_pushed)
    length_bytes: Shown[int] = shown(TrioWriteHandle.length_bytes)
    bytes_in_flight: Shown[int] = shown(TrioWriteHandle.bytes_in_flight)
    bytes_in_flight_max: Shown[int] = shown(TrioWriteHandle.bytes_in_flight_max)

    append = forwarded(TrioWriteHandle.append, payload=as_payload)
    append_many = forwarded(TrioWriteHandle.append_many, payloads=as_payloads)
    wait_capacity = forwarded(TrioWriteHandle.wait_capacity)
    wait_bytes_in_flight_below = forwarded(TrioWriteHandle.wait_bytes_in_flight_below)
    wait_confirmed = forwarded(TrioWriteHandle.wait_confirmed)
    force = forwarded(TrioWriteHandle.force)
    write_explicit_lac = forwarded(TrioWriteHandle.write_explicit_lac)
    close = forwarded(TrioWriteHandle.close)
    abandon = called(TrioWriteHandle.abandon)

    def submit(self, payload: Buffer) -> Future[int]:
        """Add an entry; the future has its id once it is confirmed.

        Waits only while too many bytes are in flight; an entry counts as at least 1 KiB, since its future
        takes as much memory. The future fails with the error that ended the handle:
        the entry may be in the ledger then. Cancelling the future changes nothing about the entry.

        Raises:
            LedgerClosedError: The handle was closed.
            LedgerFencedError: A recovery fenced the ledger.
            LedgerWriteError: The handle failed; the reasons are in it.
            ClientClosedError: The client was closed.
        """
        payload = as_payload(payload)  # the caller may fill its buffer again at once
        bytes_max = self._bytes_in_flight_max
        if self._queue.held_bytes > bytes_max or self._inner.bytes_in_flight > bytes_max:
            self._loop.run(self._wait_room)
        future: Future[int] = LoopFuture()
        self._queue.put((payload, future), len(payload))
        return future

    def __enter__(self) -> WriteHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close if exc is None else self.abandon, exc)

    async def _wait_room(self) -> None:
        """In the loop: return when there is room for an entry. Half of it, or callers would wake for each."""
        await self._queue.wait_held_below(self._bytes_in_flight_max // 2 + 1)
        await self._inner.wait_capacity()


class ReadHandle(Face[TrioReadHandle]):
    """See ``ledger.ReadHandle``. Closed by ``close`` or the end of a ``with`` block."""

    ledger_id: Shown[int] = attribute("ledger_id", "The ledger's id.")
    metadata: Shown[LedgerMetadata] = shown(TrioReadHandle.metadata)
    last_confirmed: Shown[int] = shown(TrioReadHandle.last_confirmed)
    is_closed: Shown[bool] = shown(TrioReadHandle.is_closed)
    length_bytes: Shown[int | None] = shown(TrioReadHandle.length_bytes)
    digest_mismatches: Shown[int] = shown(TrioReadHandle.digest_mismatches)

    read = forwarded(TrioReadHandle.read)
    read_unconfirmed = forwarded(TrioReadHandle.read_unconfirmed)
    read_payloads = forwarded(TrioReadHandle.read_payloads)
    read_last_confirmed = forwarded(TrioReadHandle.read_last_confirmed)
    wait_last_confirmed_beyond = forwarded(TrioReadHandle.wait_last_confirmed_beyond)
    close = forwarded(TrioReadHandle.close)

    def __enter__(self) -> ReadHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after_block(self.close, exc)


class LedgerClient(LoopFace[TrioLedgerClient]):
    """See ``ledger.LedgerClient``. Closed by ``close`` or the end of a ``with`` block, at the latest when
    Python ends. Closing ends the handles, without closing their ledgers."""

    def __init__(self, uri: str, manager: AbstractAsyncContextManager[TrioLedgerClient]) -> None:
        """For ``open_client``."""
        name, advice = f"ledger {without_user_info(uri)}", "the client was closed; open another one"
        super().__init__(name, manager, ClientClosedError, advice)

    create = forwarded(TrioLedgerClient.create, WriteHandle)
    create_from = forwarded(TrioLedgerClient.create_from, WriteHandle)
    open = forwarded(TrioLedgerClient.open, ReadHandle)
    statistics = called(TrioLedgerClient.statistics)
    recover = forwarded(TrioLedgerClient.recover)
    delete = forwarded(TrioLedgerClient.delete)
    metadata = forwarded(TrioLedgerClient.metadata)
    ledger_ids = forwarded(TrioLedgerClient.ledger_ids)
    bookie_space = forwarded(TrioLedgerClient.bookie_space)


open_client = opener(open_in_trio, LedgerClient)
