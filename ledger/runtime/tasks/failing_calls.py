"""Calls of trio that may fail at once: their errors are raised at a checkpoint, as their results are.

A caller that repeats a call in spite of its errors would else keep its loop from every other task, and from
a cancellation of its own.

Inside: the checkpoint after an error. Not inside: calls that return at once, as a reader's with a record.
Always: in a forked child no checkpoint is made: the loop there is a copy, with the tasks of its parent.

Source: trio's rules for checkpoints.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import trio

PASSES_CALLS_ON = True  # for ``shorten``

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

_copied: object = None  # the token of the loop that a fork has copied into this process


def fails_at_checkpoint(call: F) -> F:
    """Make a checkpoint when the call raises an error. If it is cancelled there, that is raised instead."""

    @functools.wraps(call)
    async def made(*args: Any, **kwargs: Any) -> Any:
        try:
            return await call(*args, **kwargs)
        except Exception:
            await checkpoint_after_error()
            raise

    return cast(F, made)


async def checkpoint_after_error() -> None:
    """The same for a call whose caller counts each function; in its ``except``."""
    if _copied is None or trio.lowlevel.current_trio_token() is not _copied:
        await trio.lowlevel.checkpoint()


def _remember_copy() -> None:
    global _copied
    try:
        _copied = trio.lowlevel.current_trio_token()
    except RuntimeError:
        pass  # the thread that forked runs no loop


os.register_at_fork(after_in_child=_remember_copy)
