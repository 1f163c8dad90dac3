"""When a segment that began on fewer bookies than asked is rolled to a full ensemble.

Inside: the wait for enough bookies. Not inside: the roll (``segment_roller``).
Always: only bookies that have been there for ``STEADY_S`` without a break count, so a bookie that comes and
goes makes no segments; what is known about one segment is forgotten with the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

STEADY_S = 5.0


class FullEnsembleWatch:
    """Knows whether the segment in use can be replaced by one on all bookies. Run ``run`` in a task.

    Args:
        on_full: Called when it can.
    """

    def __init__(self, on_full: Callable[[], None]) -> None:
        self.is_full = False
        self._on_full = on_full
        self._wait: Callable[[float], Awaitable[None]] | None = None
        self._pause_s = 0.0
        self._begun = trio.Event()

    def begin(self, wait: Callable[[float], Awaitable[None]] | None, *, pause_s: float = 0.0) -> None:
        """Another segment is in use.

        Args:
            wait: Returns once enough bookies have been writable for this many seconds. None: the segment has
                all its bookies.
            pause_s: Look only after this long.
        """
        self._wait, self._pause_s, self.is_full = wait, pause_s, False
        self._begun.set()
        self._begun = trio.Event()

    def again(self, pause_s: float) -> None:
        """The roll failed: wait for the bookies once more, after a pause."""
        self.begin(self._wait, pause_s=pause_s)

    async def run(self) -> None:
        """Wait for the bookies of each segment until cancelled."""
        while True:
            begun = self._begun
            async with trio.open_nursery() as nursery:
                if self._wait is not None:
                    nursery.start_soon(self._watch, self._wait)
                await begun.wait()
                nursery.cancel_scope.cancel()

    async def _watch(self, wait: Callable[[float], Awaitable[None]]) -> None:
        await trio.sleep(self._pause_s)
        await wait(STEADY_S)
        self.is_full = True
        self._on_full()
