"""How long a writer tries what is out of reach.

Inside: trying again, with pauses that grow, until a deadline. Not inside: what is tried, and what a failure
means for the log (``segment_keeper``).
Always: a session that is over does not come back, and a writer that has stopped tries nothing more, unless
what is tried is to tell the fate of records that were sent before.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from dlog.config import WriterConfig
from dlog.errors import LogUnavailableError, LogWriteError, NamespaceLostError, RecordOutcome, WriteError

T = TypeVar("T")

logger = logging.getLogger(__name__)

RETRY_PAUSE_FACTOR_MAX = 16


class Patience:
    """A writer's, by its configuration."""

    def __init__(self, log: str, config: WriterConfig) -> None:
        self._log = log
        self._patience_s, self._pause_s = config.patience_s, config.retry_pause_s
        self.pause_s_max = RETRY_PAUSE_FACTOR_MAX * config.retry_pause_s

    async def until_done(
        self, step: Callable[[], Awaitable[T]], *, refusal: Callable[[], WriteError | None]
    ) -> T:
        """Do the step, again and again while it raises LogUnavailableError; return what it returns.

        Args:
            refusal: Why it need not be tried any more, if so; asked before each try, and raised.

        Raises:
            LogWriteError: Patience ended, or the session did; nothing was written.
            DLogError: What the step raised otherwise.
        """
        deadline_s = trio.current_time() + self._patience_s
        pause_s = self._pause_s
        while True:
            if (error := refusal()) is not None:
                raise error
            try:
                return await step()
            except LogUnavailableError as exc:
                if isinstance(exc, NamespaceLostError) or trio.current_time() + pause_s > deadline_s:
                    raise LogWriteError(self._log, str(exc), RecordOutcome.NOT_WRITTEN) from exc
                logger.info("log %s: trying again: %s", self._log, exc)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, self.pause_s_max)
