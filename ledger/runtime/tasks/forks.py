"""The objects that a parent has open, in its forked child.

Inside: the list of these objects. Not inside: the reaction of each.
Always: nothing is checked on a hot path: the system calls this module in the child, before the child's first
step after the fork.

A child has a copy of the parent's memory but none of its threads, and shares its sockets. A call through such
an object would wait for ever, or write into the parent's connections.

Source: fork(2); pthread_atfork(3).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

RULE = "this process was forked after it was opened; a namespace must be opened after the fork"


def call_in_child(opened: T, refuse: Callable[[T], None]) -> None:
    """Have ``refuse(opened)`` called in forked children while the object lives.

    The function makes the object refuse every later call. It must not wait, and takes no lock.
    """
    _opened[opened] = refuse


_opened: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def _call_all() -> None:
    for opened, refuse in list(_opened.items()):
        refuse(opened)


os.register_at_fork(after_in_child=_call_all)
