"""The errors for a program that uses the calls for trio where they cannot run.

Inside: the check for a program without trio. It stands at the doors, the functions that open something by a
URI: there is no other way to an object for trio. The check for another thread than that of the object.
Not inside: another run in the same thread, since the run before it has closed what it opened.

Source: our own.
"""

from __future__ import annotations

from threading import get_ident

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


def check_thread(owner: int, what: str) -> None:
    """Raise in another thread than that of the run of trio in which something was opened.

    Args:
        owner: The identity of that thread.
        what: What was opened.

    Raises:
        RuntimeError: This is another thread. Nothing was done.
    """
    if get_ident() != owner:
        raise RuntimeError(
            f"{what} was opened by a run of trio in another thread, and only tasks of that run may use it;"
            " nothing was done. Use dlog.blocking or ledger.blocking in a program with threads, or call from"
            " this thread by trio.from_thread.run and run_sync"
        )
