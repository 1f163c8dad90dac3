"""How long a writer or a reader repeats a step while metadata or bookies are out of reach.

Inside: repeating a step with pauses that double, until a timeout.
Not inside: the steps, and the effect of a failure on the log (``segment_roller``, ``read_ahead``).
Always: the loss of the session with the metadata store ends the repetition at once: a session does not come
back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from dlog.errors import DLogError, LogUnavailableError, NamespaceLostError

T = TypeVar("T")

logger = logging.getLogger(__name__)

PAUSE_FACTOR_MAX = 16


class RetryPolicy:
    """The retry timeout and the first pause of one writer or reader."""

    def __init__(self, *, timeout_s: float, pause_s: float) -> None:
        self._timeout_s, self._pause_s = timeout_s, pause_s
        self.pause_s_max = PAUSE_FACTOR_MAX * pause_s

    async def until_done(
        self,
        step: Callable[[], Awaitable[T]],
        *,
        subject: Callable[[], str],
        on_timeout: Callable[[LogUnavailableError, float], DLogError],
        check: Callable[[], None] = lambda: None,
    ) -> T:
        """Run the step; repeat it while it raises LogUnavailableError. Return the step's result.

        Args:
            subject: For the log line of a repetition: the log, and what tries again.
            on_timeout: Makes the error to raise when the timeout ends, from the step's last error and the
                seconds since the first run.
            check: Called before each run of the step; raises if the step must not run any more.

        Raises:
            NamespaceLostError: The session with the metadata store is over.
            DLogError: From ``on_timeout``, ``check`` or the step.
        """
        began_s = trio.current_time()
        pause_s = self._pause_s
        while True:
            check()
            try:
                return await step()
            except NamespaceLostError:
                raise
            except LogUnavailableError as exc:
                waited_s = trio.current_time() - began_s
                if waited_s + pause_s > self._timeout_s:
                    raise on_timeout(exc, waited_s) from exc
                logger.info("%s: trying again: %s", subject(), exc)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, self.pause_s_max)
