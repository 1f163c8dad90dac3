"""A request on its way to a bookie, and who is told what came of it.

Inside: ``Asked``. Not inside: which connection it goes over (``transport``), matching answers
(``connection``).
Always: who asked is told once, the answer or why there is none, or takes the question back and is not told;
never from inside ``Transport.ask``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ledger.connection import OPERATIONS, Call
from ledger.errors import BookieError, BookieTimeoutError
from ledger.wire.codes import Code
from ledger.wire.messages import AddReply, AddRequest, Reply, Request

if TYPE_CHECKING:
    from ledger.line import Line
    from ledger.timers import Timer

Told = Callable[[Reply | BookieError], None]
"""Is given what the bookie answered, whatever its code, or why there is no answer. Must not raise: the task
of the connection calls it, which others need."""


class Asked:
    """Made by ``Transport.ask``."""

    __slots__ = ("_on_forgotten", "_told", "call", "line", "request", "timeout_s", "timer")

    def __init__(
        self, line: Line, request: Request, told: Told, timeout_s: float, on_forgotten: Callable[[], None]
    ) -> None:
        self.line, self.request, self.timeout_s = line, request, timeout_s
        self.call: Call | None = None  # None also for adds, which are not forgotten: see ``CalledAdds``
        self.timer: Timer | None = None
        self._told: Told | None = told
        self._on_forgotten = on_forgotten

    def wake(self, result: Reply | Code | BookieError) -> None:
        """There is an answer, or there will be none."""
        told, self._told = self._told, None
        if told is None:
            return
        if self.timer is not None:
            self.timer.cancel()
        if isinstance(result, Code):
            assert isinstance(self.request, AddRequest)
            result = AddReply(result, self.request.ledger_id, self.request.entry_id)
        told(result)

    def forget(self) -> None:
        """Tell nobody. The bookie may have done what was asked, or may do it yet."""
        if self._told is None:
            return
        self._told = None
        if self.timer is not None:
            self.timer.cancel()
        if self.call is not None:
            self.line.connection.forget_call(self.call)
            self._on_forgotten()

    def time_is_up(self) -> None:
        """It took too long; an answer that comes now is dropped."""
        told = self._told
        if told is None:
            return
        self.forget()
        state = "" if self.line.is_connected else "; still connecting"
        what = OPERATIONS[type(self.request)].name
        told(BookieTimeoutError(self.line.bookie, f"no answer to {what} within {self.timeout_s:g} s{state}"))
