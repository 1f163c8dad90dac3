"""Futures that a loop gives to other threads, and their outcome.

Always: what a callback of the program raises, ``SystemExit`` included, ends neither the loop nor another
future; its log line is one of ours, so that the loop waits for no handler (``log_lines``).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from ledger.pickling import ProcessBound
from ledger.runtime.tasks.failure_domain import report_contained

T = TypeVar("T")


class LoopFuture(ProcessBound, Future[T]):
    """A future that the loop settles."""

    def add_done_callback(self, fn: Callable[[Future[T]], Any]) -> None:
        """Call ``fn`` with the future when it is done, in the loop; now if it is. Its errors are logged."""
        super().add_done_callback(partial(_contained, fn))


def _contained(callback: Callable[[Future[T]], Any], future: Future[T]) -> None:
    try:
        callback(future)
    except Exception as exc:  # ``Future`` would log it itself, in the loop
        report_contained("callback of a future", exc)


def settle(future: Future[T], outcome: T | BaseException) -> None:
    """Set the result, or the exception. Does nothing if the program has cancelled the future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except BaseException as exc:  # of a callback, which ``Future`` lets through if it is no Exception
        report_contained("callback of a future", exc)
