"""One read from several replicas: the first good answer counts, a slow one is overtaken.

Inside: ``ReplicaRace``, asking one replica after the other without a task for any of them; ``run_races``,
waiting for many. Not inside: the order of replicas (``reader``), what is remembered of them
(``replica_reads``).
Always: what comes out was accepted by ``take``; when it is over, or stopped, nothing more is asked and every
question still open is taken back.

Source: ReadOpBase.java, DefaultSpeculativeRequestExecutionPolicy.java; reference sections 6.2 to 6.4.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import trio

from ledger.asked import Asked
from ledger.errors import BookieError, CorruptEntryError
from ledger.reader import EntryRead
from ledger.timers import Timer
from ledger.transport import Transport
from ledger.wire.messages import Reply, Request

T = TypeVar("T")


class ReplicaRace(Generic[T]):
    """Whether and what replicas answer to one request.

    Args:
        take: What is wanted of a bookie's answer. ``BookieError`` and ``CorruptEntryError``: another replica
            is asked; anything else that it raises ends the race and is raised by ``result``.
        speculative_s: After so long the next replica is asked too; None: only when those before have failed.
        on_failed: Told which replica gave no good answer, and why.
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
        self._asked: dict[str, Asked] = {}
        self._timer: Timer | None = None
        self._on_over: Callable[[], None] | None = None
        self._results: list[T] = []
        self._error: Exception | None = None
        self.slow: list[str] = []  # replicas that were asked before the one whose answer counts, in vain

    def start(self, on_over: Callable[[], None]) -> None:
        """Ask the first replica; ``on_over`` is called once, perhaps at once, unless ``stop`` is."""
        self._on_over = on_over
        self._go_on(self._ask_next)

    def stop(self) -> None:
        """Ask nothing more, tell nobody."""
        self._on_over = None
        if self._timer is not None:
            self._timer.cancel()
        asked, self._asked = self._asked, {}
        for one in asked.values():
            one.forget()

    def result(self) -> T:
        """What came out. Only when it is over.

        Raises:
            LedgerReadError: No replica gave a good answer.
            Exception: What ``take`` raised.
        """
        if self._error is not None:
            raise self._error
        if not self._results:
            raise self._reading.error()
        return self._results[0]

    def _go_on(self, act: Callable[[], None]) -> None:
        """Called by the tasks of connections and timers: an error of ours must end this race, not them."""
        try:
            act()
        except Exception as exc:
            self._error = exc
            self._finish()

    def _ask_next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (bookie := self._reading.next_bookie()) is not None:
            try:
                self._ask(bookie, self._request, self._take)
            except BookieError as exc:  # the transport is closed
                self._on_failed(bookie, exc)
                continue
            if self._speculative_s is not None:
                self._timer = self._transport.timers.after(
                    self._speculative_s, functools.partial(self._go_on, self._ask_next)
                )
            return
        if not self._asked:
            self._finish()

    def _ask(
        self,
        bookie: str,
        request: Request,
        take: Callable[[str, Reply], T],
        on_refused: Callable[[str, Exception], None] | None = None,
    ) -> None:
        refused = on_refused or self._refused

        def told(reply: Reply | BookieError) -> None:
            del self._asked[bookie]
            self._go_on(lambda: judge(reply))

        def judge(reply: Reply | BookieError) -> None:
            if isinstance(reply, BookieError):
                refused(bookie, reply)
                return
            try:
                result = take(bookie, reply)
            except (BookieError, CorruptEntryError) as exc:
                refused(bookie, exc)
            else:
                self._results.append(result)
                self.slow = list(self._asked)
                self._finish()

        self._asked[bookie] = self._transport.ask(bookie, request, told)

    def _refused(self, bookie: str, reason: Exception) -> None:
        """This replica gave no good answer."""
        self._on_failed(bookie, reason)
        # While another one is being waited for it has its time; ``_timer`` says when that is over.
        if not self._asked:
            self._ask_next()

    def _finish(self) -> None:
        on_over = self._on_over
        self.stop()
        if on_over is not None:
            on_over()


async def run_races(races: Sequence[ReplicaRace[Any]]) -> None:
    """Wait until all are over. If cancelled, they are stopped."""
    running = len(races)
    task: trio.lowlevel.Task | None = None

    def over() -> None:
        nonlocal running
        running -= 1
        if not running and task is not None:
            trio.lowlevel.reschedule(task)

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        for race in races:
            race.stop()
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.checkpoint_if_cancelled()
    for race in races:
        race.start(over)
    if running:
        task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)
    else:
        await trio.lowlevel.cancel_shielded_checkpoint()
