"""The error for a program without trio that calls a function for trio.

Inside: the check. It stands at the doors, the functions that open something by a URI: there is no other way
to an object for trio. Not inside: the calls on open objects, which are not checked.

Source: our own.
"""

from __future__ import annotations

import trio


def check_trio(door: str, advice: str) -> None:
    """Raise unless a task of trio makes the call.

    Args:
        door: The function that is called.
        advice: What to use without trio.

    Raises:
        RuntimeError: Another loop runs here, such as one of asyncio.
    """
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(f"{door} is for programs on trio, and no task of trio runs here: use {advice}")
