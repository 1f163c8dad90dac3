"""The same client and handles for code without ``async``: scripts, notebooks, worker threads.

Inside: objects that hand each call to the one implementation, in a trio loop in a thread of its own for each
open client. Not inside: the loop (``loop_thread``); any behaviour of their own. The namesake of a call says
what it promises.
Always: calls may come from any thread; a KeyboardInterrupt cancels the call that waits, and the namesake says
what a cancelled call may have done; entries submitted by one thread keep their order.

In asyncio, ``await asyncio.wrap_future(writer.submit(payload))``.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType

from ledger.client import BookieSpace
from ledger.client import LedgerClient as AsyncLedgerClient
from ledger.config import ClientConfig
from ledger.deploy.deployment import open_client as open_async
from ledger.digest import DigestType, Entry
from ledger.errors import ClientClosedError
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.service_uri import without_user_info
from ledger.payloads import as_payload
from ledger.read.handle import ReadHandle as AsyncReadHandle
from ledger.runtime.statistics import Statistics
from ledger.runtime.tasks.loop_thread import Held, LoopThread
from ledger.write.handle import WriteHandle as AsyncWriteHandle

Buffer = bytes | bytearray | memoryview


class WriteHandle:
    """See ``ledger.WriteHandle``. A ``with`` block closes the ledger; an exception in it abandons the
    handle."""

    def __init__(self, loop: LoopThread, handle: AsyncWriteHandle, bytes_in_flight_max: int) -> None:
        self._loop, self._handle = loop, handle
        self._bytes_in_flight_max = bytes_in_flight_max
        self._queue: deque[tuple[bytes, Future[int]]] = deque()
        self._queued_bytes = 0
        self._guard = threading.Lock()
        self._unconfirmed: deque[tuple[int, Future[int]]] = deque()  # the loop's
        handle.on_confirmed(self._on_confirmed)

    def __repr__(self) -> str:
        return f"<blocking {repr(self._handle)[1:]}"

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """See ``ledger.WriteHandle.metadata``."""
        return self._handle.metadata

    @property
    def lac(self) -> int:
        """The last add confirmed; -1 before the first."""
        return self._handle.lac

    @property
    def length_bytes(self) -> int:
        """See ``ledger.WriteHandle.length_bytes``."""
        return self._handle.length_bytes

    def append(self, payload: Buffer) -> int:
        """See ``ledger.WriteHandle.append``."""
        return self._loop.run(self._handle.append, as_payload(payload))

    def append_many(self, payloads: Iterable[Buffer]) -> range:
        """See ``ledger.WriteHandle.append_many``."""
        return self._loop.run(self._handle.append_many, list(map(as_payload, payloads)))

    def submit(self, payload: Buffer) -> Future[int]:
        """Add an entry; the future has its id once it is confirmed.

        Waits only while too many bytes are in flight. The future fails with the error that ended the handle:
        the entry may be in the ledger then. Cancelling the future changes nothing about the entry.

        Raises:
            LedgerClosedError: The handle was closed.
            LedgerFencedError: A recovery fenced the ledger.
            LedgerWriteError: The handle failed; the reasons are in it.
            ClientClosedError: The client was closed.
        """
        payload = as_payload(payload)  # the caller may fill its buffer again at once
        if self._queued_bytes + self._handle.bytes_in_flight > self._bytes_in_flight_max:
            self.wait_capacity()
        future: Future[int] = Future()
        with self._guard:
            if not self._queue:
                # First, because it may raise. The guard is held: a caller that finds the queue filled relies
                # on its being drained before anything else that this caller calls.
                self._loop.call_soon(self._drain)
            self._queue.append((payload, future))
            self._queued_bytes += len(payload)
        return future

    def wait_capacity(self) -> None:
        """See ``ledger.WriteHandle.wait_capacity``."""
        self._loop.run(self._handle.wait_capacity)

    def force(self) -> None:
        """See ``ledger.WriteHandle.force``."""
        self._loop.run(self._handle.force)

    def write_explicit_lac(self) -> None:
        """See ``ledger.WriteHandle.write_explicit_lac``."""
        self._loop.run(self._handle.write_explicit_lac)

    def close(self) -> None:
        """See ``ledger.WriteHandle.close``."""
        self._loop.run(self._handle.close)

    def abandon(self) -> None:
        """See ``ledger.WriteHandle.abandon``."""
        self._loop.run(_called, self._handle.abandon)

    def __enter__(self) -> WriteHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None:
            self.close()
        else:
            self.abandon()

    def _drain(self) -> None:
        """In the loop: submit what the threads have queued, in their order."""
        with self._guard:
            queue, self._queue = self._queue, deque()
            self._queued_bytes = 0
        for payload, future in queue:
            try:
                entry_id = self._handle.submit(payload)
            except Exception as exc:
                _settle(future, exc)
            else:
                self._unconfirmed.append((entry_id, future))

    def _on_confirmed(self, lac: int, error: BaseException | None) -> None:
        """In the loop: settle the futures of confirmed entries, or all of them when the handle has ended."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= lac:
            entry_id, future = unconfirmed.popleft()
            _settle(future, entry_id)
        if error is not None:
            while unconfirmed:
                _settle(unconfirmed.popleft()[1], error)


class ReadHandle:
    """See ``ledger.ReadHandle``. Closed by ``close`` or the end of a ``with`` block."""

    def __init__(self, loop: LoopThread, handle: AsyncReadHandle) -> None:
        self._loop, self._handle = loop, handle

    def __repr__(self) -> str:
        return f"<blocking {repr(self._handle)[1:]}"

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """See ``ledger.ReadHandle.metadata``."""
        return self._handle.metadata

    @property
    def last_confirmed(self) -> int:
        """See ``ledger.ReadHandle.last_confirmed``."""
        return self._handle.last_confirmed

    @property
    def is_closed(self) -> bool:
        """See ``ledger.ReadHandle.is_closed``."""
        return self._handle.is_closed

    def read(self, first: int, last: int) -> list[Entry]:
        """See ``ledger.ReadHandle.read``."""
        return self._loop.run(self._handle.read, first, last)

    def read_payloads(self, first: int, last: int) -> list[bytes]:
        """See ``ledger.ReadHandle.read_payloads``."""
        return self._loop.run(self._handle.read_payloads, first, last)

    def read_last_confirmed(self) -> int:
        """See ``ledger.ReadHandle.read_last_confirmed``."""
        return self._loop.run(self._handle.read_last_confirmed)

    def wait_last_confirmed_beyond(self, entry_id: int, *, timeout_s: float) -> int:
        """See ``ledger.ReadHandle.wait_last_confirmed_beyond``."""
        return self._loop.run(self._handle.wait_last_confirmed_beyond, entry_id, timeout_s=timeout_s)

    def close(self) -> None:
        """See ``ledger.ReadHandle.close``."""
        self._loop.run(self._handle.close)

    def __enter__(self) -> ReadHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if exc is None:  # an error of the block is the one that counts
                raise


class LedgerClient:
    """See ``ledger.LedgerClient``. Closed by ``close`` or the end of a ``with`` block, at the latest when
    Python ends. Closing ends the handles, without closing their ledgers."""

    def __init__(self, uri: str, config: ClientConfig | None = None, *, read_only: bool = False) -> None:
        self._loop = LoopThread(
            f"ledger {without_user_info(uri)}", ClientClosedError, "the client was closed; open another one"
        )
        try:
            self._held = Held(self._loop, open_async(uri, config=config, read_only=read_only))
        except BaseException:
            self._loop.stop()
            raise
        self._client: AsyncLedgerClient = self._held.value
        self._bytes_in_flight_max = (config or ClientConfig()).bytes_in_flight_max
        self._is_closed = False
        _clients.add(self)

    def __repr__(self) -> str:
        return f"<blocking {repr(self._client)[1:]}"

    def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes | None = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> WriteHandle:
        """See ``ledger.LedgerClient.create``."""
        handle = self._loop.run(
            self._client.create,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            custom=custom,
            ledger_id=ledger_id,
            deferred_sync=deferred_sync,
        )
        return WriteHandle(self._loop, handle, self._bytes_in_flight_max)

    def statistics(self) -> Statistics:
        """See ``ledger.LedgerClient.statistics``."""

        async def read() -> Statistics:
            return self._client.statistics()

        return self._loop.run(read)

    def open(self, ledger_id: int, *, password: bytes | None = b"", recover: bool = True) -> ReadHandle:
        """See ``ledger.LedgerClient.open``."""
        return ReadHandle(
            self._loop, self._loop.run(self._client.open, ledger_id, password=password, recover=recover)
        )

    def recover(self, ledger_id: int) -> None:
        """See ``ledger.LedgerClient.recover``."""
        self._loop.run(self._client.recover, ledger_id)

    def delete(self, ledger_id: int) -> None:
        """See ``ledger.LedgerClient.delete``."""
        self._loop.run(self._client.delete, ledger_id)

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """See ``ledger.LedgerClient.metadata``."""
        return self._loop.run(self._client.metadata, ledger_id)

    def ledger_ids(self) -> list[int]:
        """See ``ledger.LedgerClient.ledger_ids``."""
        return self._loop.run(self._client.ledger_ids)

    def bookie_space(self, bookie: str) -> BookieSpace:
        """See ``ledger.LedgerClient.bookie_space``."""
        return self._loop.run(self._client.bookie_space, bookie)

    def close(self) -> None:
        """Close connections and session. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        _clients.discard(self)
        try:
            self._held.release()
        finally:
            self._loop.stop()

    def __enter__(self) -> LedgerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if exc is None:  # an error of the block is the one that counts
                raise


def open_client(uri: str, *, config: ClientConfig | None = None, read_only: bool = False) -> LedgerClient:
    """See ``ledger.open_client``; open on return, to be closed or used in a ``with`` statement."""
    return LedgerClient(uri, config, read_only=read_only)


async def _called(function: object) -> None:
    assert callable(function)  # the names are those of methods
    function()


def _settle(future: Future[int], result: int | BaseException) -> None:
    if not future.set_running_or_notify_cancel():
        return  # the caller cancelled it
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


_clients: weakref.WeakSet[LedgerClient] = weakref.WeakSet()


def _close_all() -> None:
    for each in list(_clients):
        try:
            each.close()
        except Exception:
            pass  # the program ends; a recovery finds every acknowledged entry


atexit.register(_close_all)
