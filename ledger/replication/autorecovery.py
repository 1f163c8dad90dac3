"""One program's part in auto-recovery: a candidate for the auditor, and a worker.

Inside: assembling both for each session with the metadata store, the end of a session. Not inside: processes
and signals (``dlog autorecovery``, ``bookie.main``).
Always: what holds a lock or was elected ends with its session; the next session begins again.

Source: AutoRecoveryMain.java; docs/autorecovery.md.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

import attrs
import trio

from ledger.context import ClientContext
from ledger.errors import LedgerError
from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.replication.auditor import Auditor, AuditorStats
from ledger.replication.config import ReplicationConfig
from ledger.replication.election import AuditorElection
from ledger.replication.ledger_restorer import LedgerRestorer, RestorerStats
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.replication.worker import ReplicationWorker, WorkerStats
from ledger.runtime.clock import wall_ms
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.runtime.tasks.task_errors import errors_in

logger = get_logger(__name__)

CONTAINED_PAUSE_S = 60.0  # after an error that nobody expected; it may come again at once
WITHDRAW_S = 2.0


@attrs.frozen
class AutoRecoveryStats:
    """The work of the auditors and workers of one program, over all its sessions."""

    auditor: AuditorStats = attrs.field(factory=AuditorStats)
    worker: WorkerStats = attrs.field(factory=WorkerStats)
    copies: RestorerStats = attrs.field(factory=RestorerStats)


@attrs.define
class AutoRecovery:
    """Auto-recovery in this program, over all its sessions."""

    context: ClientContext
    store: MetadataStore
    candidate: str  # the id in its vote for the auditor
    config: ReplicationConfig = attrs.Factory(ReplicationConfig)
    host_name: str = attrs.Factory(socket.getfqdn)
    wall_ms: Callable[[], int] = wall_ms
    """The clock for the dates in marks and of checks, in epoch milliseconds."""
    is_auditor: bool = attrs.field(default=False, init=False)
    stats: AutoRecoveryStats = attrs.field(factory=AutoRecoveryStats)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Audit, if elected, and restore ledgers until cancelled.

        A session that ends is replaced if the store does so. If cancelled, locks and the vote are deleted;
        marks stay, and another program continues.

        Args:
            task_status: Started when the nodes of auto-recovery exist.

        An error that nobody expected ends one attempt, not the program, once it has started.

        Raises:
            MetadataFormatError: The nodes of auto-recovery have another format; only before it has started.
            ledger.metadata_store.errors.SessionExpiredError: The session is over, and the store
                opens no other.
        """
        is_started = False

        def started() -> None:
            nonlocal is_started
            if not is_started:
                is_started = True
                task_status.started()

        while True:
            try:
                await self._run_session(self.store.current_session(), started)
            except ConnectionLostError as exc:
                logger.warning(
                    "auto-recovery waits for the metadata store: %s",
                    exc,
                    extra=event("autorecovery.waits", error=exc),
                )
            except SessionExpiredError:
                if self.store.state in (SessionState.EXPIRED, SessionState.CLOSED):
                    raise
            except Exception as exc:
                if not is_started:
                    raise  # the operator who starts the program learns why it cannot work
                report_contained("auto-recovery", exc)
                await trio.sleep(CONTAINED_PAUSE_S)
            await trio.sleep(self.config.retry_pause_s)
            await self.store.wait_reachable()

    async def _run_session(self, session: MetadataStore, started: Callable[[], None]) -> None:
        root, config = self.context.catalog.root, self.config
        marks = UnderReplicatedLedgers(
            session,
            root,
            host_name=self.host_name,
            rng=random.Random(self.context.rng.random()),
            wall_ms=self.wall_ms,
        )
        await marks.prepare()
        started()
        stats = self.stats
        restorer = LedgerRestorer(
            self.context, session, config, lock_path=marks.lock_path, stats=stats.copies
        )
        worker = ReplicationWorker(marks, restorer, config, stats=stats.worker)
        auditor = Auditor(self.context, session, marks, config, wall_ms=self.wall_ms, stats=stats.auditor)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.run)
                nursery.start_soon(
                    self._audit_if_elected, AuditorElection(session, root, self.candidate), auditor
                )
                await self._wait_expired(session)
        except BaseExceptionGroup as group:
            raise _most_serious(group) from group
        finally:
            self.is_auditor = False

    async def _audit_if_elected(self, election: AuditorElection, auditor: Auditor) -> None:
        try:
            while True:
                try:
                    await election.wait_elected()
                    logger.info(
                        "%s is the auditor of the cluster",
                        self.candidate,
                        extra=event("auditor.elected", candidate=self.candidate),
                    )
                    self.is_auditor = True
                    await auditor.run()
                except* SessionExpiredError:
                    raise
                except* ConnectionLostError as group:
                    logger.warning(
                        "the auditor pauses: %s", group.exceptions[0], extra=event("auditor.paused")
                    )
                except* Exception as group:  # the worker of this program continues
                    report_contained("auditor", group)
                    await trio.sleep(CONTAINED_PAUSE_S)
                await trio.sleep(self.config.retry_pause_s)
                await self.store.wait_reachable()
        finally:
            with trio.move_on_after(WITHDRAW_S) as scope:
                scope.shield = True
                try:
                    await election.withdraw()
                except (ConnectionLostError, SessionExpiredError):
                    pass  # the vote ends with the session

    async def _wait_expired(self, session: MetadataStore) -> None:
        while (state := session.state) not in (SessionState.EXPIRED, SessionState.CLOSED):
            await session.wait_state_change(state)
        raise SessionExpiredError("/")


def _most_serious(group: BaseException) -> BaseException:
    """The error that decides what happens next: any other one before the end of the session."""
    errors = errors_in(group)
    for kind in (ConnectionLostError, SessionExpiredError):
        others = [error for error in errors if not isinstance(error, kind)]
        errors = others or errors
    unexpected = [error for error in errors if not isinstance(error, LedgerError)]
    return (unexpected or errors or [group])[0]
