"""One read from several replicas: the first good reply counts; a slow replica is overtaken.

Inside: ``SpeculativeRead``, which tries one replica after another without a task of its own; ``wait_reads``,
which waits for many of them.
Not inside: the order of replicas (``replica_rules``), what is remembered of them (``replica_reads``).
Always: a result was accepted by ``take``; when the read is done or stopped, it sends no more requests and
forgets those in flight.

Source: ReadOpBase.java, DefaultSpeculativeRequestExecutionPolicy.java; docs/protocol.md 6.1 to 6.3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import trio

from ledger.errors import BookieError, CorruptEntryError
from ledger.read.replica_rules import EntryRead
from ledger.runtime.tasks.timers import Timer
from ledger.transport.bookie_connection import PendingRequest
from ledger.transport.transport import Transport
from ledger.wire.messages import Reply, Request

T = TypeVar("T")


class SpeculativeRead(Generic[T]):
    """Sends one request to replicas in turn until a reply is good.

    Args:
        take: Makes the result from a bookie's reply. If it raises ``BookieError`` or ``CorruptEntryError``,
            the next replica is tried. Any other exception ends the read, and ``result`` raises it.
        speculative_s: Send to the next replica too after this long without a reply; None: only after a
        failure.
        on_failed: Called with each replica whose reply was not good, and the reason.
    """

    def __init__(
        self,
        transport: Transport,
        reading: EntryRead,
        request: Request,
        take: Callable[[str, Reply], T],
        *,
        speculative_s: float | None,
        on_failed: Callable[[str, Exception], None],
    ) -> None:
        self._transport, self._reading, self._request, self._take = transport, reading, request, take
        self._speculative_s, self._on_failed = speculative_s, on_failed
        self._requests: dict[str, PendingRequest] = {}
        self._timer: Timer | None = None
        self._on_done: Callable[[], None] | None = None
        self._results: list[T] = []
        self._error: Exception | None = None
        self.slow: list[str] = []  # replicas still without a reply when a good one came

    def start(self, on_done: Callable[[], None]) -> None:
        """Send to the first replica. ``on_done`` is called once, possibly at once, unless ``stop`` comes
        first."""
        self._on_done = on_done
        self._guarded(self._send_next)

    def stop(self) -> None:
        """Forget the requests in flight and never call ``on_done``."""
        self._on_done = None
        if self._timer is not None:
            self._timer.cancel()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.forget()

    def result(self) -> T:
        """The result of the read, once it is done.

        Raises:
            LedgerReadError: No replica returned the entry.
            Exception: ``take`` raised it.
        """
        if self._error is not None:
            raise self._error
        if not self._results:
            raise self._reading.error()
        return self._results[0]

    def _guarded(self, act: Callable[[], object]) -> None:
        """Call ``act``. Its error ends this read, not the task of the connection or of the timers."""
        try:
            act()
        except Exception as exc:
            self._error = exc
            self._finish()

    def _send_next(self) -> bool:
        """Send to the next replica; False if none is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (bookie := self._reading.next_bookie()) is not None:
            try:
                self._send(bookie, self._request, self._take)
            except BookieError as exc:  # the transport is closed
                self._on_failed(bookie, exc)
                continue
            if self._speculative_s is not None:
                self._timer = self._transport.timers.after(
                    self._speculative_s, functools.partial(self._guarded, self._overtake)
                )
            return True
        if not self._requests:
            self._finish()
        return False

    def _overtake(self) -> None:
        if self._send_next():
            self._transport.speculative_reads += 1

    def _send(
        self,
        bookie: str,
        request: Request,
        take: Callable[[str, Reply], T],
        on_refused: Callable[[str, Exception], None] | None = None,
    ) -> None:
        refused = on_refused or self._refused

        def on_reply(reply: Reply | BookieError) -> None:
            del self._requests[bookie]
            self._guarded(lambda: take_reply(reply))

        def take_reply(reply: Reply | BookieError) -> None:
            if isinstance(reply, BookieError):
                refused(bookie, reply)
                return
            try:
                result = take(bookie, reply)
            except (BookieError, CorruptEntryError) as exc:
                refused(bookie, exc)
            else:
                self._results.append(result)
                self.slow = list(self._requests)
                self._finish()

        self._requests[bookie] = self._transport.send(bookie, request, on_reply)

    def _refused(self, bookie: str, reason: Exception) -> None:
        """This replica did not return the entry."""
        self._on_failed(bookie, reason)
        # With another request in flight, ``_timer`` decides when the next replica is tried.
        if not self._requests:
            self._send_next()

    def _finish(self) -> None:
        on_done = self._on_done
        self.stop()
        if on_done is not None:
            on_done()


async def wait_reads(reads: Sequence[SpeculativeRead[Any]]) -> None:
    """Start these reads and wait until all are done. If cancelled, they are stopped."""
    running = len(reads)
    task: trio.lowlevel.Task | None = None

    def on_done() -> None:
        nonlocal running
        running -= 1
        if not running and task is not None:
            trio.lowlevel.reschedule(task)

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        for read in reads:
            read.stop()
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.checkpoint_if_cancelled()
    for read in reads:
        read.start(on_done)
    if running:
        task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
    else:
        await trio.lowlevel.cancel_shielded_checkpoint()
