"""Opening a writer again by itself, after it has stopped.

    stopped by                                        then
    ------------------------------------------------  ----------------------------------------
    bookies or metadata out of reach, a full disk     it is opened again
    its session expired, the node of its lock is gone it is opened again, unless another writer has the lock
    another writer fenced it                          it ends: two writers would fence each other for ever
    the namespace is lost, or the writer was closed   it ends

Inside: which reasons pass, the pauses and the limit. Not inside: what reopening does (``log_writer``).
Always: no record is written again: each that was in flight has its outcome before the next is taken.

Source: our own.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from dlog.config import WriterConfig
from dlog.errors import (
    DiskFullError,
    DLogError,
    LogFencedError,
    LogLockedError,
    LogLockLostError,
    LogUnavailableError,
    LogWriteError,
    NamespaceLostError,
    RecordOutcome,
    WriteError,
    WriterClosedError,
)
from dlog.retry_policy import is_store_away
from dlog.write.writer_shell import WriterShell
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.service_tasks import open_service_tasks

PAUSE_S_MAX = 10.0

logger = get_logger(__name__)


def passes(stopped: WriteError) -> bool:
    """True if a writer that stopped with this error may be opened again by itself."""
    return isinstance(stopped, LogLockLostError | LogWriteError)


def may_pass(error: DLogError, store: MetadataStore) -> bool:
    """True if reopening failed with an error that another attempt may not meet."""
    if isinstance(error, NamespaceLostError):
        return is_store_away(error, store)  # another session takes the place of one that expired
    return isinstance(error, LogUnavailableError | DiskFullError)


class Reopener:
    """Opens one writer again each time it stops for a reason that passes. Run ``keep_open`` in a task.

    The limit counts from the first failure after the writer had written all that it was given. It does not
    begin again with each reopening: each may succeed, and the segment after it fail.
    """

    def __init__(
        self,
        shell: Callable[[], WriterShell],
        reopen: Callable[[], Awaitable[None]],
        config: WriterConfig,
        store: MetadataStore,
    ) -> None:
        """Args:
        shell: That of the writer now.
        reopen: Replaces it, unless it has not stopped.
        """
        self._shell, self._reopen, self._config, self._store = shell, reopen, config, store
        self._is_over, self._scope = False, trio.CancelScope()
        self._changed = trio.Event()
        self._began_s, self._pause_s = 0.0, config.retry_pause_s

    def will_reopen(self, stopped: WriteError) -> bool:
        """True if a writer that stopped with this error is opened again, or that is not decided yet."""
        return not self._is_over and passes(stopped)

    async def wait_changed(self) -> None:
        """Return when the writer was opened again, or will not be."""
        await self._changed.wait()

    def changed(self) -> None:
        """Wake those who wait; each looks again."""
        self._changed.set()
        self._changed = trio.Event()

    def close(self) -> None:
        """End ``keep_open``: the writer is closed."""
        self._is_over = True
        self._scope.cancel()
        self.changed()

    async def keep_open(self) -> None:
        """Open the writer again whenever that is due, until it is closed or has stopped for good."""
        try:
            with self._scope:
                await self._keep_open()
        except Exception as exc:
            report_contained("reopening the writer of a log", exc)
            self._give_up(exc)
        finally:
            self.close()

    async def _keep_open(self) -> None:
        opened_s = -math.inf
        while (stopped := await self._shell().wait_stopped()) is not None and passes(stopped):
            shell, now_s = self._shell(), trio.current_time()
            machine = shell.machine
            if machine.has_written or now_s - opened_s > PAUSE_S_MAX:
                self._pause_s = self._config.retry_pause_s
            if opened_s == -math.inf or machine.has_written or not machine.has_failed_records:
                self._began_s = now_s
            elif now_s + self._pause_s > self._until_s:
                self._give_up(stopped)
                return
            if now_s - opened_s <= PAUSE_S_MAX:
                await self._pause()
            extra = event("writer.reopening", log=shell.log, error=stopped)
            logger.warning("log %s: its writer is opened again: %s", shell.log, stopped.message, extra=extra)
            while True:
                try:
                    await self._reopen()
                    break
                except WriterClosedError:
                    return
                except DLogError as exc:
                    if not may_pass(exc, self._store) or trio.current_time() + self._pause_s > self._until_s:
                        self._give_up(exc)
                        return
                await self._pause()
            opened_s = trio.current_time()
            self._report(shell)

    @property
    def _until_s(self) -> float:
        return self._began_s + self._config.reopen_timeout_s

    async def _pause(self) -> None:
        await trio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _report(self, shell: WriterShell) -> None:
        after_s = trio.current_time() - self._began_s
        lost, unknown = shell.machine.not_written_count, shell.machine.unknown_count
        extra = event(
            "writer.reopened", log=shell.log, after_s=round(after_s, 3), not_written=lost, unknown=unknown
        )
        logger.warning(
            "log %s: its writer is open again after %.1f s; %d records in flight were not written, and of %d"
            " it is unknown",
            shell.log,
            after_s,
            lost,
            unknown,
            extra=extra,
        )

    def _give_up(self, exc: Exception) -> None:
        shell = self._shell()
        if isinstance(exc, LogLockedError):
            error: WriteError = LogFencedError(shell.log, f"{exc.owner or 'another client'} holds its lock")
        elif isinstance(exc, WriteError):
            error = exc
        else:
            waited_s = trio.current_time() - self._began_s
            evidence = f"it could not be opened again for {waited_s:.0f} s: {exc}"
            error = LogWriteError(shell.log, evidence, RecordOutcome.NOT_WRITTEN)
        if error is not exc:
            error.__cause__ = exc
        extra = event("writer.not_reopened", log=shell.log, error=error)
        logger.error("log %s: its writer is not opened again: %s", shell.log, error.message, extra=extra)
        shell.machine.refuse(error)


@asynccontextmanager
async def kept_open(reopener: Reopener) -> AsyncIterator[None]:
    """Run ``keep_open`` for the duration of the block, which does not wait for an attempt at its end."""
    async with open_service_tasks() as tasks:
        tasks.start_soon(reopener.keep_open)
        yield
