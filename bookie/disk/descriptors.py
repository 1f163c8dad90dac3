"""Storage that outlives a shortage of file descriptors.

Inside: spare descriptors, repeating a call that found none. Not inside: the calls (``real_disk``),
connections that give descriptors back (``bookie.server``), the process's limit (``descriptor_limit``).
Always: EMFILE and ENFILE are no failure of a disk. The call is repeated until there is a descriptor, so
nothing is acknowledged until then, and no file counts as damaged. On the event loop no call waits: there it
fails if neither a spare nor a closed connection helps.

Source: open(2); docs/security.md, "Connections and descriptors".
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import trio

from bookie.disk.descriptor_limit import descriptor_limit
from ledger.runtime.log_lines import get_logger

OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_PAUSE_S = 0.02
_LOG_S = 10.0
_UNCONNECTED_WAIT_S = 5.0  # of each call, before a server is connected and after the bookie stops
_LOOP_TRIES = 4

P = ParamSpec("P")
T = TypeVar("T")
log = get_logger(__name__)


class Descriptors:
    """Repeats calls that found no descriptor. Thread-safe, except where a method says otherwise."""

    def __init__(self, *, pause: Callable[[float], None] = time.sleep) -> None:
        """``pause``: how a thread waits, in seconds."""
        self._pause = pause
        self._spares: list[int] = []
        self._spares_max = 0
        self._lock = threading.Lock()
        self._inside = threading.local()  # ``is_set``: this thread is in the job of a call
        self._on_shortage: Callable[[], None] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self.shortages = 0  # calls that found no descriptor at first

    def __repr__(self) -> str:
        return f"<Descriptors, {len(self._spares)} of {self._spares_max} spare>"

    @property
    def spares_count(self) -> int:
        return len(self._spares)

    def connect(self, on_shortage: Callable[[], None]) -> None:
        """Call ``on_shortage`` on this loop while a call finds no descriptor, so that it closes connections.

        On the loop. From now on calls in threads wait without limit, until ``close``.
        """
        self._token = trio.lowlevel.current_trio_token()
        self._on_shortage = on_shortage

    def hold_spares(self, count: int) -> None:
        """Hold descriptors that calls may use in a shortage. ``refill`` takes them back."""
        self._spares_max = count
        self.refill()

    def refill(self) -> None:
        """Hold the spare descriptors again that were given up, as far as there are any."""
        while len(self._spares) < self._spares_max:
            try:
                spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
            with self._lock:
                self._spares.append(spare)

    def close(self) -> None:
        """The bookie stops: close the spares."""
        self._on_shortage = None
        self._spares_max = 0
        while self._give_up_spare():
            pass

    def call(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``job``; repeat it while it finds no descriptor. It must have done nothing in that case.

        In a thread it waits as long as it takes, or 5 s if no server is connected. On the loop it does not
        wait. A call in the job of another call does not wait either: the outer call repeats all of its job,
        so that the job's locks are free meanwhile.

        Raises:
            OSError: Of the job. EMFILE or ENFILE only on the loop, in another call, or if no server is
                connected.
        """
        if getattr(self._inside, "is_set", False):
            return job(*args, **kwargs)
        self._inside.is_set = True
        try:
            return self._repeat(job, *args, **kwargs)
        finally:
            self._inside.is_set = False

    def _repeat(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return job(*args, **kwargs)
        except OSError as exc:
            if exc.errno not in OUT_OF_DESCRIPTORS:
                raise
            shortage = exc
        self.shortages += 1
        is_on_loop = trio.lowlevel.in_trio_run()
        tries, waited_s, logged_s = 0, 0.0, 0.0
        try:
            while True:
                if not self._give_up_spare():
                    if is_on_loop:
                        if tries >= _LOOP_TRIES:
                            raise shortage
                        tries += 1
                        if self._on_shortage is not None:
                            self._on_shortage()
                    else:
                        if self._on_shortage is None and waited_s >= _UNCONNECTED_WAIT_S:
                            raise shortage
                        self._post_shortage()
                        self._pause(_PAUSE_S)
                        waited_s += _PAUSE_S
                        if waited_s - logged_s >= _LOG_S:
                            logged_s = waited_s
                            _log_wait(waited_s, shortage)
                try:
                    return job(*args, **kwargs)
                except OSError as exc:
                    if exc.errno not in OUT_OF_DESCRIPTORS:
                        raise
                    shortage = exc
        finally:
            del shortage  # a traceback that refers to itself would keep its frames alive

    def _give_up_spare(self) -> bool:
        with self._lock:
            if not self._spares:
                return False
            os.close(self._spares.pop())
            return True

    def _post_shortage(self) -> None:
        token, on_shortage = self._token, self._on_shortage
        if token is not None and on_shortage is not None:
            with contextlib.suppress(trio.RunFinishedError):  # the loop has ended
                token.run_sync_soon(on_shortage, idempotent=True)


def _log_wait(waited_s: float, shortage: OSError) -> None:
    log.warning(
        "storage has waited %.0f s for a file descriptor: %s. Nothing is acknowledged until one is free."
        " Raise the limit of open files (now %d), or close other programs",
        waited_s,
        shortage,
        descriptor_limit(),
    )
