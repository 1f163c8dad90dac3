"""How long a writer or a reader repeats a step while metadata or bookies are out of reach.

Inside: repeating a step with pauses that double, until a timeout.
Not inside: the steps, and the effect of a failure on the log (``writer_shell``, ``read_ahead``).
Always: the loss of a session that no other replaces ends the repetition at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from dlog.errors import DLogError, LogUnavailableError, NamespaceLostError
from ledger.causes import cause_of
from ledger.metadata_store.errors import ConnectionLostError, StoreDiskError
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

PASSES_CALLS_ON = True  # for ``shorten``

T = TypeVar("T")

logger = get_logger(__name__)

PAUSE_FACTOR_MAX = 16


def is_store_away(error: BaseException, store: MetadataStore) -> bool:
    """True if a call failed because the metadata store is out of reach, and the store may come back."""
    if store.state in (SessionState.EXPIRED, SessionState.CLOSED):
        return False
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, StoreDiskError):
        # What belonged to the session before the present one fails with its loss.
        if isinstance(cause, ConnectionLostError | NamespaceLostError):
            return True
        cause = cause_of(cause)
    return False


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
        is_transient: Callable[[LogUnavailableError], bool] = lambda exc: (
            not isinstance(exc, NamespaceLostError)
        ),
        timeout_s: Callable[[LogUnavailableError], float] | None = None,
    ) -> T:
        """Run the step; repeat it while it raises LogUnavailableError. Return the step's result.

        Args:
            subject: For the log line of a repetition: the log, and what tries again.
            on_timeout: Makes the error to raise when the timeout ends, from the step's last error and the
                seconds since the first run.
            check: Called before each run of the step; raises if the step must not run any more.
            is_transient: False for an error that ends the repetition.
            timeout_s: The timeout for an error; None: that of the policy for each.

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
            except LogUnavailableError as exc:
                if not is_transient(exc):
                    raise
                waited_s = trio.current_time() - began_s
                limit_s = self._timeout_s if timeout_s is None else timeout_s(exc)
                if waited_s + pause_s > limit_s:
                    error = on_timeout(exc, waited_s)
                    if error is exc:
                        raise
                    raise error from exc
                logger.info("%s: trying again: %s", subject(), exc, extra=event("step.retried", error=exc))
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, self.pause_s_max)

    async def while_store_is_away(
        self, step: Callable[[], Awaitable[T]], store: MetadataStore, *, subject: str
    ) -> T:
        """Run the step; repeat it while the metadata store is out of reach. Return the step's result.

        Raises:
            DLogError: From the step; its last error when the timeout ends.
        """
        return await self.until_done(
            step,
            subject=lambda: subject,
            on_timeout=lambda exc, _: exc,
            is_transient=lambda exc: is_store_away(exc, store),
        )
