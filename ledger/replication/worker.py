"""Restoring marked ledgers, a few at once.

Inside: taking a mark under its lock, what follows from the outcome, the pauses, during which the lock stays
taken so that no worker tries the ledger again; ledgers that wait for a bookie. Not inside: restoring one
ledger (``ledger_restorer``).
Always: a mark is deleted only after a check found all replicas, or after the ledger was deleted; a ledger
that is still written is closed only after ``open_ledger_grace_s``, and only if its end is still on a lost
bookie that another one can replace; a lock is released on every way out. A ledger that waits for a bookie is
looked at once for each set of registered bookies, without its lock, and with a pause after each look.

Source: ReplicationWorker.java; docs/autorecovery.md.
"""

from __future__ import annotations

import attrs
import trio

from ledger.errors import LedgerError
from ledger.metadata_store.errors import ConnectionLostError, NoNodeError, SessionExpiredError
from ledger.replication.config import ReplicationConfig
from ledger.replication.failure_backoff import FailureBackoff
from ledger.replication.ledger_restorer import LedgerRestorer, Outcome
from ledger.replication.marks import SeenMark, TakenLedger, UnderReplicatedLedgers
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.task_errors import for_each

logger = get_logger(__name__)

CONTAINED_PAUSE_S = 60.0  # after an error that nobody expected; it may come again at once
POLL_S = 60.0  # at least so often an idle worker looks for marks
SAY_S = 60.0  # between two lines about ledgers that wait for a bookie
LIST_PAUSE_S = 0.2  # an idle worker lists the marks, which may be many, at most so often
REST = 79  # times the length of a look that found nothing to do
REST_S_MAX = 0.4


@attrs.define
class WorkerStats:
    """The work done by one worker."""

    ledgers_restored: int = 0
    ledgers_copied: int = 0  # attempts that copied a fragment at least
    restored_s: float = 0.0  # all these attempts together
    attempts: int = 0
    attempts_failed: int = 0
    attempts_unfinished: int = 0  # failed, waits for a bookie, or the ledger is still open
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
        self._listed: set[int] = set()  # at the last look at the marks
        self._waiting: set[int] = set()  # ledgers for which the registered bookies can do nothing
        self._bookies_changed = trio.Event()
        self._changed = trio.Event()  # there may be another ledger to take
        self._looking = trio.Lock()
        self._said_at = -SAY_S

    async def run(self) -> None:
        """Restore ledgers until cancelled; then release the locks. Marks and copies stay valid.

        Raises:
            ledger.metadata_store.errors.SessionExpiredError: The session is over, and with it the locks.
        """
        async with trio.open_nursery() as waiting:
            waiting.start_soon(self._follow_bookies)
            while True:
                try:
                    await self._marks.wait_enabled()
                    await self._restore_marked(waiting)
                except (ConnectionLostError, LedgerError) as exc:
                    logger.warning(
                        "re-replication pauses: %s", exc, extra=event("replication.paused", error=exc)
                    )
                    await trio.sleep(self._config.retry_pause_s)
                    await self._marks.wait_reachable()
                except SessionExpiredError:
                    raise
                except Exception as exc:
                    report_contained("re-replication", exc)
                    await trio.sleep(CONTAINED_PAUSE_S)

    async def _follow_bookies(self) -> None:
        while True:
            await self._restorer.membership.wait_change()
            self._waiting.clear()
            self._bookies_changed.set()
            self._bookies_changed = trio.Event()
            self._changed.set()

    async def _restore_marked(self, waiting: trio.Nursery) -> None:
        """Try marked ledgers, the new ones first; if there is none to try, return when there may be another.

        The looks at ledgers that wait may take minutes, so the marks are listed again when they change.
        """
        self._changed = changed = trio.Event()
        bookies_changed, began_s = self._bookies_changed, trio.current_time()
        todo = await self._marks.untaken(changed)
        list_at = began_s + max(LIST_PAUSE_S, (1 + REST) * (trio.current_time() - began_s))
        self._waiting.intersection_update(todo)
        old, self._listed = self._listed, set(todo)
        todo.sort(key=old.__contains__)
        left = iter([ledger_id for ledger_id in todo if ledger_id not in self._waiting])
        tried_before = self.stats.attempts

        async def lane(_: int) -> None:
            for ledger_id in left:  # the lanes share it; each ledger goes to one of them
                if changed.is_set() and trio.current_time() >= list_at:
                    return
                if not await self._marks.is_enabled():
                    changed.set()
                    return
                seen = await self._look(ledger_id)
                taken = None if seen is None else await self._marks.take_seen(seen)
                if taken is None:
                    continue
                try:
                    await self._work(taken, waiting)
                except (ConnectionLostError, SessionExpiredError):
                    raise
                except Exception as exc:  # the other lanes continue
                    report_contained("re-replication", exc)
                    await trio.sleep(CONTAINED_PAUSE_S)

        await for_each(lane, range(self._config.ledgers_in_flight_max))
        self._say_waiting()
        if self.stats.attempts == tried_before and self._bookies_changed is bookies_changed:
            with trio.move_on_after(POLL_S):
                await changed.wait()
            with trio.move_on_at(list_at):
                await bookies_changed.wait()

    async def _look(self, ledger_id: int) -> SeenMark | None:
        """The mark of a ledger that an attempt may restore; None if it has none, or waits for a bookie."""
        async with self._looking:
            began_s, bookies_changed = trio.current_time(), self._bookies_changed
            seen = await self._marks.seen(ledger_id)
            if seen is None or not await self._restorer.must_wait(ledger_id, seen.replicas):
                return seen
            self._wait_for_bookies(ledger_id, bookies_changed)
            with trio.move_on_after(min(REST_S_MAX, REST * (trio.current_time() - began_s))):
                await bookies_changed.wait()
            return None

    def _wait_for_bookies(self, ledger_id: int, bookies_changed: trio.Event) -> None:
        if not bookies_changed.is_set():  # else the look may be older than the change
            self._waiting.add(ledger_id)
            self._say_waiting()

    def _say_waiting(self) -> None:
        if self._waiting and trio.current_time() >= self._said_at + SAY_S:
            self._said_at = trio.current_time()
            logger.warning(
                "%d ledgers lack replicas and wait for a bookie: every writable one has its place in their"
                " ensembles already; start the lost bookie, or another one",
                len(self._waiting),
                extra=event("replication.waits_for_bookie", ledgers=len(self._waiting)),
            )

    async def _work(self, taken: TakenLedger, waiting: trio.Nursery) -> None:
        """Try one ledger. Another task releases its lock, if that has to wait."""
        ledger_id = taken.ledger_id
        is_waiting, began_s = False, trio.current_time()
        bookies_changed = self._bookies_changed
        self.stats.attempts += 1
        try:
            outcome = await self._try_restore(taken)
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
            if outcome is Outcome.WAITING:
                self._wait_for_bookies(ledger_id, bookies_changed)
                return
            waiting.start_soon(self._wait_and_release, taken, outcome)
            is_waiting = True
        finally:
            if not is_waiting:
                await self._marks.release(taken)

    async def _try_restore(self, taken: TakenLedger) -> Outcome:
        ledger_id = taken.ledger_id
        self._restorer.copied.discard(ledger_id)
        try:
            return await self._restorer.restore(ledger_id, taken.replicas)
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
            self.stats.ledgers_copied += ledger_id in self._restorer.copied
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
