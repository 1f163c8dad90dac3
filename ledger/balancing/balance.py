"""Moving replicas by a plan: ledger by ledger under their locks, until the bookies are about equally full.

Inside: the order of the steps, what ends a run, its progress. Not inside: the choice (``plan``), the copy of
a ledger's replica and the change of its metadata (``ledger.replication.ledger_restorer``).
Always: one run at a time in a cluster, and none while ledgers lack replicas; a run keeps no state but the
metadata of the ledgers, so that another run continues it, whatever ended it. When a bookie is lost the run
ends before its next change, because the replicas that are left must not depend on a copy.

A reader that opened a ledger before a move knows the old bookie. That one serves it until its garbage
collection of over-replicated ledgers, and denies it afterwards; then the reader reads the metadata again
(``ledger.read.handle``).

Source: our own; docs/running.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import trio

from ledger.balancing.placing import may_replace
from ledger.balancing.plan import WITHIN, ClosedLedger, Move, Plan, plan_moves
from ledger.balancing.run_node import WAIT_S, RunningBalance, encode_run, held_run
from ledger.balancing.survey import Survey, check_unmarked, survey
from ledger.client import LedgerClient
from ledger.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    ClusterNotWholeError,
    LedgerError,
)
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.store import MetadataStore
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_restorer import LedgerRestorer, Outcome
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.runtime.clock import wall_ms
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.task_errors import for_each

logger = get_logger(__name__)

LOST = (BookieUnavailableError, BookieTimeoutError)  # it may be registered until its session ends
CHOSEN_AT_ONCE_MAX = 1000  # ledgers; a plan of more is made in a thread
LOCK_WAIT_S, LOCK_PAUSE_S = 10.0, 0.5  # for the lock of a ledger, after all others were tried
PROGRESS_S = 1.0  # between two writes of the progress to the metadata store


@attrs.frozen(kw_only=True)
class BalanceOptions:
    """How a run works."""

    within: float = WITHIN
    replication: ReplicationConfig = attrs.Factory(ReplicationConfig)
    host_name: str = ""  # for those who look
    wait_s: float = WAIT_S  # for the end of a killed run's session


@attrs.frozen
class LeftMove:
    """A replica that stayed where it was."""

    ledger_id: int
    source: str
    target: str
    reason: str


@attrs.define
class Balanced:
    """The result of a run."""

    plan: Plan
    open_ledgers: int
    unknown_ledgers: int
    after: dict[str, int] = attrs.field(factory=dict)  # bytes of each bookie by the metadata, as of now
    moves_done: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    left: list[LeftMove] = attrs.field(factory=list)


async def plan_balance(client: LedgerClient, session: MetadataStore, *, within: float = WITHIN) -> Balanced:
    """The result of a run with its plan and without a move. It changes nothing.

    Raises: as ``balance_bookies``.
    """
    marks = UnderReplicatedLedgers(session, client.root)
    return await _planned(client, await survey(client, session, marks), within)


async def balance_bookies(
    client: LedgerClient,
    session: MetadataStore,
    options: BalanceOptions | None = None,
    *,
    on_progress: Callable[[RunningBalance], object] = lambda _: None,
    on_wait: Callable[[RunningBalance], object] = lambda _: None,
) -> Balanced:
    """Move replicas of closed ledgers to emptier bookies. If it ends early, call it again.

    If cancelled, or if it raises, the moves so far are complete. Copies without a name in the metadata may be
    left on a bookie, which deletes them later.

    Args:
        session: One session of the client, which gets the locks.
        on_progress: Gets the progress at the start, and after each ledger.
        on_wait: Gets the run of another program, before the wait for its end.

    Raises:
        ClusterNotWholeError: A bookie is away or was lost, or ledgers lack replicas.
        BalanceRunningError: Another program runs one.
        ledger.metadata_store.errors.MetadataError: The metadata store failed.
    """
    options = options or BalanceOptions()
    marks = UnderReplicatedLedgers(session, client.root, host_name=options.host_name)
    await marks.prepare()
    run = RunningBalance(options.host_name, wall_ms())
    async with held_run(session, client.root, run, wait_s=options.wait_s, on_wait=on_wait) as path:
        result = await _planned(client, await survey(client, session, marks), options.within)
        plan = result.plan
        run = attrs.evolve(run, moves=len(plan.moves), bytes=plan.size_bytes)
        restorer = LedgerRestorer(client.context, session, options.replication, lock_path=marks.lock_path)
        moving = _Moves(client, session, marks, restorer, path, run, result, on_progress)
        await moving.run_guarded()
    return result


async def _planned(client: LedgerClient, found: Survey, within: float) -> Balanced:
    placer = client.context.placer
    topology = await placer.located()

    def may_move(ledger: ClosedLedger, before: Sequence[str], after: Sequence[str]) -> bool:
        return may_replace(placer.config, topology, before, after, ledger.write_quorum, ledger.ack_quorum)

    choose = partial(plan_moves, found.uses, found.ledgers, may_move, within=within)
    if len(found.ledgers) <= CHOSEN_AT_ONCE_MAX:
        plan = choose()
    else:
        plan = await trio.to_thread.run_sync(choose)  # other tasks of the loop get their turns
    return Balanced(plan, found.open_ledgers, found.unknown_ledgers, dict(plan.before))


@attrs.define
class _Moves:
    """One run, while it holds the node."""

    client: LedgerClient
    session: MetadataStore
    marks: UnderReplicatedLedgers
    restorer: LedgerRestorer
    path: str
    run: RunningBalance
    result: Balanced
    on_progress: Callable[[RunningBalance], object]
    _told_s: float = float("-inf")

    async def run_guarded(self) -> None:
        """Make the moves; end with an error as soon as a bookie is lost."""
        bookies = {use.bookie for use in self.result.plan.uses}
        membership, watching = self.client.membership, trio.CancelScope()

        async def watch() -> None:
            with watching:
                while not (lost := bookies - membership.writable - membership.readonly):
                    await membership.wait_change()
                raise self._ended(", ".join(sorted(lost)))

        async def move() -> None:
            try:
                await self._run()
            except LOST as exc:
                raise self._ended(str(exc)) from None
            watching.cancel()

        await for_each(lambda task: task(), (watch, move))

    def _ended(self, lost: str) -> ClusterNotWholeError:
        return ClusterNotWholeError(
            f"the balance ends after {self.run.moves_done} of {self.run.moves} moves, because a bookie is"
            f" lost: {lost}. The moves so far are complete. When the bookie is back, or its ledgers are"
            " restored, run the command again"
        )

    async def _run(self) -> None:
        await self._tell(0, 0)
        busy = [part for part in _by_replica(self.result.plan.moves) if not await self._try(part, 0.0)]
        for part in busy:
            if not await self._try(part, LOCK_WAIT_S):
                self._leave(part, "another program works on it")
        await self._tell(0, 0, is_last=True)

    async def _try(self, moves: Sequence[Move], wait_s: float) -> bool:
        """Move one replica of a ledger; False if another program has the ledger's lock all the time.

        Workers of auto-recovery have it, and bookies for a moment when they delete a replica.
        """
        ledger_id, source, target = moves[0].ledger_id, moves[0].source, moves[0].target
        await check_unmarked(self.marks)
        if target not in self.client.membership.writable:
            self._leave(moves, f"{target} takes no entries any more")
            return True
        deadline_s = trio.current_time() + wait_s
        while (taken := await self.marks.take_unmarked(ledger_id)) is None:
            if trio.current_time() >= deadline_s:
                return False
            await trio.sleep(LOCK_PAUSE_S)
        try:
            outcome = await self.restorer.relocate(ledger_id, source, target)
        except LOST:
            raise
        except LedgerError as exc:
            self._leave(moves, str(exc))
            return True
        finally:
            self.result.entries_copied = self.restorer.stats.entries_copied
            self.result.bytes_copied = self.restorer.stats.bytes_copied
            await self.marks.release(taken)
        if outcome in (Outcome.RESTORED, Outcome.GONE):
            await self._count(moves)
        else:
            self._leave(moves, _why(outcome))
        return True

    async def _count(self, moves: Sequence[Move]) -> None:
        size_bytes = sum(move.size_bytes for move in moves)
        self.result.moves_done += len(moves)
        self.result.after[moves[0].source] -= size_bytes
        self.result.after[moves[0].target] += size_bytes
        await self._tell(len(moves), size_bytes)

    def _leave(self, moves: Sequence[Move], reason: str) -> None:
        move = moves[0]
        self.result.left.append(LeftMove(move.ledger_id, move.source, move.target, reason))

    async def _tell(self, moves: int, size_bytes: int, *, is_last: bool = False) -> None:
        run = self.run
        self.run = run = attrs.evolve(
            run, moves_done=run.moves_done + moves, bytes_done=run.bytes_done + size_bytes
        )
        self.on_progress(run)
        if trio.current_time() < self._told_s + PROGRESS_S and not is_last:
            return
        self._told_s = trio.current_time()
        try:
            await self.session.put(self.path, encode_run(run))
        except ConnectionLostError as exc:  # the next write tells more
            logger.info("the progress of the balance is not stored: %s", exc, extra=event("balance.untold"))


def _by_replica(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """The moves of one ledger from one bookie to another one together, as they are in a plan."""
    for _, group in itertools.groupby(moves, lambda move: (move.ledger_id, move.source, move.target)):
        yield list(group)


def _why(outcome: Outcome) -> str:
    return {
        Outcome.OPEN: "it is not closed",
        Outcome.FAILED: "its metadata changed, or the new bookie did not return each entry",
    }[outcome]
