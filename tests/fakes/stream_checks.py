"""Trio's check of a stream, with its asserts also where Python was started with ``-O``.

Inside: its code, compiled again if it has lost its asserts. Some of these do what is checked.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import trio.testing


def _half_closeable() -> Any:
    check = trio.testing.check_half_closeable_stream
    if __debug__:
        return check
    file = check.__code__.co_filename
    (module,) = (each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == file)
    names = {"__name__": module.__name__, "__package__": module.__package__}
    exec(compile(inspect.getsource(module), file, "exec", optimize=0), names)
    return names["check_half_closeable_stream"]


check_half_closeable_stream = _half_closeable()
