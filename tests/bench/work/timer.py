"""A timer that fires at the rate of a schedule, for a loop of trio or for a plain thread.

trio rounds its timeouts up to a millisecond, which is more than a record takes. A timerfd has no such limit.

Source: timerfd_create(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

import trio

from tests.bench.schedule import NS, Schedule

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_EXPIRATIONS_BYTES = 8


class _TimerSpec(ctypes.Structure):
    _fields_ = [
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    ]


class Timer:
    """Fires when the first record is due, and again after each interval."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait(self) -> None:
        """Block until the timer has fired since the last call."""
        os.read(self._descriptor, _EXPIRATIONS_BYTES)

    async def wait_in_loop(self) -> None:
        """Return when the timer has fired since the last call."""
        await trio.lowlevel.wait_readable(self._descriptor)
        os.read(self._descriptor, _EXPIRATIONS_BYTES)


@contextlib.contextmanager
def open_timer(schedule: Schedule) -> Iterator[Timer]:
    """Open the timer of a schedule.

    Raises:
        OSError: The system refused the timer.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create failed")
    try:
        spec = _TimerSpec(
            *divmod(max(1, round(NS / schedule.rate)), NS), *divmod(max(1, schedule.start_ns), NS)
        )
        if libc.timerfd_settime(descriptor, _ABSOLUTE, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        yield Timer(descriptor)
    finally:
        os.close(descriptor)
