"""Places where an error ends: one connection, one ledger's work, one round of a watch.

Inside: taking every ``Exception`` that is raised in such a place, one log line, a counter.
Not inside: the state that a half-made change leaves behind. Code that changes the journal, the index or a
cache reports its own failure (``bookie.storage.failure``) before its error gets here.
Always: ``Cancelled``, ``KeyboardInterrupt`` and ``SystemExit`` pass, also out of a group with other errors;
no text of a peer adds a line to the log or makes one longer than ``_TEXT_MAX``.

An error of a library, ``MemoryError``, ``RecursionError`` or ``struct.error`` is an ``Exception`` like any
other here: a list of expected classes would miss the next one.

Source: Erlang/OTP, supervisors, for the purpose; docs/running.md, "What ends a bookie".
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.task_errors import first_error

log = get_logger(__name__)

contained_failures: Counter[str] = Counter()  # by operation, since the process started; read by metrics

_TEXT_MAX = 300  # characters of the cause in the line
_TRACEBACKS_MAX = 64
_with_traceback: set[tuple[str, type[BaseException]]] = set()


class failure_domain:  # noqa: N801 - used as a statement: `with failure_domain(...):`
    """``with failure_domain("read of a ledger", ledger_id=7):`` an error ends the block, and nothing else.

    The block's error is counted and logged. The first error of an operation and class has its traceback.
    ``error`` is the error that ended the block, or None.
    """

    def __init__(self, operation: str, *, ledger_id: int | None = None, peer: str | None = None) -> None:
        """
        Args:
            operation: What the block does, from a fixed list: it is the label of a metric.
            peer: The address of the other side.
        """
        self._operation = operation
        self._ledger_id = ledger_id
        self._peer = peer
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<failure_domain {self._operation}>"

    def __enter__(self) -> failure_domain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        contained: BaseException | None = error
        rest: BaseException | None = None
        if isinstance(error, BaseExceptionGroup):
            contained, rest = error.split(Exception)
        elif not isinstance(error, Exception):
            return False
        if contained is None:
            return False
        self.error = contained
        report_contained(self._operation, contained, ledger_id=self._ledger_id, peer=self._peer)
        if rest is not None:
            raise rest
        return True


def report_contained(
    operation: str,
    error: BaseException,
    *,
    ledger_id: int | None = None,
    peer: str | None = None,
    directory: object = None,
) -> None:
    """Count an error that ended one domain, and log its line. For code that cannot use the ``with`` block."""
    contained_failures[operation] += 1
    cause = first_error(error)
    where = "".join(
        f", {name} {value}"
        for name, value in (("ledger", ledger_id), ("peer", peer), ("directory", directory))
        if value is not None
    )
    key = (operation, type(cause))
    is_new = key not in _with_traceback and len(_with_traceback) < _TRACEBACKS_MAX
    if is_new:
        _with_traceback.add(key)
    log.error(
        "%s%s: ended by %s: %s",
        operation,
        where,
        type(cause).__name__,
        first_line(cause),
        exc_info=cause if is_new else None,
        extra=event(
            "failure.contained",
            operation=operation,
            ledger=ledger_id,
            peer=peer,
            directory=None if directory is None else str(directory),
            error=type(cause).__name__,
        ),
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without control characters, at most ``_TEXT_MAX`` characters."""
    try:
        text = str(error)
    except Exception as exc:  # an error's own text may be computed from a peer's bytes
        text = f"its text cannot be made ({type(exc).__name__})"
    line = next(iter(text.splitlines()), "")
    return "".join(one if one.isprintable() else "?" for one in line[:_TEXT_MAX])
