"""The thread of a writer: that of the run of trio which has opened it.

Inside: the checks of the calls of a writer. Not inside: those of readers (``log_reader``), of a namespace
(``dlog.context``), and the error (``trio_only``).
Always: a call from another thread is refused before it changes anything.

Source: our own; docs/guide.md, "Signal handlers, and memory in use".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, cast

from dlog.write.steps import taken_in_step
from ledger.runtime.tasks.failing_calls import checkpoint_after_error
from ledger.runtime.tasks.trio_only import check_thread

PASSES_CALLS_ON = True  # for ``shorten``


class Owned(Protocol):
    """A writer, which knows its thread."""

    log: str
    _thread: int  # the identity of the thread of its run


F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def check_own_thread(writer: Owned) -> None:
    """Raise if the caller is in another thread than the run in which the writer was opened.

    Raises:
        RuntimeError: Nothing was done.
    """
    check_thread(writer._thread, f"log {writer.log!r}: the writer")


def in_own_thread(call: F) -> F:
    """Check the thread of a writer's call first; and as ``fails_at_checkpoint``."""

    @functools.wraps(call)
    async def made(self: Owned, *args: Any, **kwargs: Any) -> Any:
        try:
            check_own_thread(self)
            return await call(self, *args, **kwargs)
        except Exception:
            await checkpoint_after_error()
            raise

    return cast(F, made)


def not_taken_now(writer: Owned) -> RuntimeError:
    """The error of a call in another thread, or in the middle of another step. Nothing was taken."""
    try:
        check_own_thread(writer)
    except RuntimeError as exc:
        return exc
    return taken_in_step(writer.log)
