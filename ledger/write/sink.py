"""What the transport calls with the replies to a writer's adds.

Inside: the two methods, and the end of a writer that one of them leaves in the middle of a change.
Not inside: what the writer does with replies (``handle``).
Always: an error in a writer's own code ends that writer, whose next call raises it; it reaches neither the
connection nor another writer.

Source: our own; docs/running.md, "What ends a bookie".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from ledger.codes import Code
from ledger.errors import LedgerError, LedgerWriteError
from ledger.runtime.tasks.failure_domain import first_line, report_contained


class Sink:
    """The methods that the transport calls; an application does not see them as methods of the handle."""

    def __init__(
        self,
        ledger_id: int,
        take_replies: Callable[[str, Code, Sequence[int]], None],
        take_loss: Callable[[str, Exception], None],
        end: Callable[[Callable[[], LedgerError]], None],
    ) -> None:
        """``end``: ends the writer with the error that its argument makes."""
        self._ledger_id, self._end = ledger_id, end
        self._take_replies, self._take_loss = take_replies, take_loss

    def __repr__(self) -> str:
        return f"<Sink of ledger {self._ledger_id}>"

    def on_add_replies(self, bookie: str, code: Code, entry_ids: Sequence[int]) -> None:
        """See ``AddSink``."""
        try:
            self._take_replies(bookie, code, entry_ids)
        except Exception as exc:
            self._fail(exc, bookie)

    def on_bookie_lost(self, bookie: str, cause: Exception) -> None:
        """See ``AddSink``."""
        try:
            self._take_loss(bookie, cause)
        except Exception as exc:
            self._fail(exc, bookie)

    async def guarded(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task of the writer. Its error ends the writer, not the client."""
        try:
            await function(*args)
        except Exception as exc:
            self._fail(exc, None)

    def _fail(self, error: Exception, bookie: str | None) -> None:
        report_contained("writer of a ledger", error, ledger_id=self._ledger_id, peer=bookie)
        where = "" if bookie is None else f" at a reply of bookie {bookie}"
        message = f"the writer failed{where}: {type(error).__name__}: {first_line(error)}"
        self._end(lambda: LedgerWriteError(self._ledger_id, message))
