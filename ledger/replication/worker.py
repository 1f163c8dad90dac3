"""Restoring marked ledgers, one after another.

Inside: taking a mark under its lock, what follows from the outcome, the pauses, during which the lock stays
taken so that no worker tries the ledger again. Not inside: restoring one ledger (``ledger_restorer``).
Always: a mark is deleted only after a check found all replicas, or after the ledger was deleted; a ledger
that is still written is closed only after ``open_ledger_grace_s``, and only if its end is still on a lost
bookie; a lock is released on every way out.

Source: ReplicationWorker.java; docs/autorecovery.md.
"""

from __future__ import annotations

import logging

import attrs
import trio

from ledger.errors import LedgerError
from ledger.replication.config import ReplicationConfig
from ledger.replication.failure_backoff import FailureBackoff
from ledger.replication.ledger_restorer import LedgerRestorer, Outcome
from ledger.replication.marks import TakenLedger, UnderReplicatedLedgers
from ledger.tasks.failure_domain import report_contained
from namespace.errors import ConnectionLostError, NoNodeError, SessionExpiredError
from namespace.events import event

logger = logging.getLogger(__name__)

CONTAINED_PAUSE_S = 60.0  # after an error that nobody expected; it may come again at once
POLL_S = 60.0  # at least so often an idle worker looks for marks


@attrs.define
class WorkerStats:
    """The work done by one worker."""

    ledgers_restored: int = 0
    ledgers_copied: int = 0  # attempts that copied a fragment at least
    restored_s: float = 0.0  # all these attempts together
    attempts_failed: int = 0
    attempts_unfinished: int = 0  # failed, or the ledger is still open
    unfinished_s: float = 0.0


class ReplicationWorker:
    """The worker of one program in one session with the metadata store."""

    def __init__(
        self,
        marks: UnderReplicatedLedgers,
        restorer: LedgerRestorer,
        config: ReplicationConfig,
        *,
        stats: WorkerStats | None = None,
    ) -> None:
        self.stats = stats or WorkerStats()
        self._marks, self._restorer, self._config = marks, restorer, config
        self._backoff = FailureBackoff(config.failed_ledger_pause_s)

    async def run(self) -> None:
        """Restore ledgers until cancelled; then release the locks. Marks and copies stay valid.

        Raises:
            namespace.errors.SessionExpiredError: The session is over, and with it the locks.
        """
        async with trio.open_nursery() as waiting:
            while True:
                try:
                    await self._marks.wait_enabled()
                    changed = trio.Event()
                    taken = await self._marks.take(changed)
                    if taken is None:
                        with trio.move_on_after(POLL_S):
                            await changed.wait()
                        continue
                    await self._work(taken, waiting)
                except (ConnectionLostError, LedgerError) as exc:
                    logger.warning(
                        "re-replication pauses: %s", exc, extra=event("replication.paused", error=exc)
                    )
                    await trio.sleep(self._config.retry_pause_s)
                except SessionExpiredError:
                    raise
                except Exception as exc:
                    report_contained("re-replication", exc)
                    await trio.sleep(CONTAINED_PAUSE_S)

    async def _work(self, taken: TakenLedger, waiting: trio.Nursery) -> None:
        """Try one ledger. Another task releases its lock, if that has to wait."""
        ledger_id = taken.ledger_id
        is_waiting, began_s = False, trio.current_time()
        try:
            outcome = await self._try_restore(ledger_id)
            if outcome in (Outcome.RESTORED, Outcome.GONE):
                await self._marks.complete(taken)
                self._backoff.on_healed(ledger_id)
                self.stats.ledgers_restored += 1
                self.stats.restored_s += trio.current_time() - began_s
                logger.info(
                    "ledger %d: %s, its mark is removed",
                    ledger_id,
                    outcome.value,
                    extra=event("ledger.restored", ledger=ledger_id, outcome=outcome.value),
                )
                return
            self.stats.attempts_unfinished += 1
            self.stats.unfinished_s += trio.current_time() - began_s
            waiting.start_soon(self._wait_and_release, taken, outcome)
            is_waiting = True
        finally:
            if not is_waiting:
                await self._marks.release(taken)

    async def _try_restore(self, ledger_id: int) -> Outcome:
        copied_before = self._restorer.stats.fragments_copied
        try:
            return await self._restorer.restore(ledger_id)
        except NoNodeError as exc:
            logger.warning(
                "ledger %d: the lock was lost during the work: %s",
                ledger_id,
                exc,
                extra=event("replication.lock_lost", ledger=ledger_id),
            )
        except LedgerError as exc:
            logger.warning(
                "ledger %d is not restored: %s",
                ledger_id,
                exc,
                extra=event("ledger.not_restored", ledger=ledger_id, error=exc),
            )
        except (ConnectionLostError, SessionExpiredError):
            raise
        except Exception as exc:  # its lock is kept for the pause of a failed ledger, and others are taken
            report_contained("restoring a ledger", exc, ledger_id=ledger_id)
        finally:
            self.stats.ledgers_copied += self._restorer.stats.fragments_copied > copied_before
        return Outcome.FAILED

    async def _wait_and_release(self, taken: TakenLedger, outcome: Outcome) -> None:
        ledger_id = taken.ledger_id
        try:
            if outcome is Outcome.OPEN:
                await trio.sleep(self._config.open_ledger_grace_s)
                await self._close_if_stuck(ledger_id)  # the next round finds a closed ledger
            else:
                self.stats.attempts_failed += 1
                await trio.sleep(self._backoff.on_failed(ledger_id))
        finally:
            await self._marks.release(taken)

    async def _close_if_stuck(self, ledger_id: int) -> None:
        try:
            try:
                await self._restorer.close_if_stuck(ledger_id)
            except (LedgerError, ConnectionLostError, SessionExpiredError):
                raise
            except Exception as exc:
                report_contained("closing a ledger", exc, ledger_id=ledger_id)
                self.stats.attempts_failed += 1
                await trio.sleep(self._backoff.on_failed(ledger_id))
        except (LedgerError, ConnectionLostError) as exc:
            self.stats.attempts_failed += 1
            logger.warning(
                "ledger %d, open on a lost bookie, could not be closed: %s",
                ledger_id,
                exc,
                extra=event("ledger.not_closed", ledger=ledger_id, error=exc),
            )
            await trio.sleep(self._backoff.on_failed(ledger_id))
