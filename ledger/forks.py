"""What a forked child is told of the objects that its parent has open.

Inside: the list of these objects. Not inside: what each of them does then.
Always: nothing is checked on a hot path: the system calls this module in the child, before the child's first
step after the fork.

A child has a copy of the parent's memory but none of its threads, and shares its sockets. A call through such
an object would wait for ever, or write into the parent's connections.

Source: fork(2); pthread_atfork(3).
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

RULE = "this process was forked after it was opened; a namespace must be opened after the fork"


class OpenBeforeFork(Protocol):
    """An object that refuses calls in a forked child."""

    def forked(self) -> None:
        """Refuse every later call. Called in the child; it must not wait, and takes no lock."""


def refuse_after_fork(opened: OpenBeforeFork) -> None:
    """Have ``opened.forked()`` called in forked children while the object lives."""
    _opened.add(opened)


_opened: weakref.WeakSet[OpenBeforeFork] = weakref.WeakSet()


def _tell_child() -> None:
    for each in list(_opened):
        each.forked()


os.register_at_fork(after_in_child=_tell_child)
