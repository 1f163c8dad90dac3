"""The auditor: finds ledgers that lost replicas, and marks them for the workers.

Inside: following the bookies and the delay, the audit of all ledgers' metadata, the check that reads from all
ledgers, those of placement and of replicas. Not inside: ledgers of bookies that came back
(``returned_bookies``), visiting and marking (``ledger_visits``), when an audit is due (``lost_bookies``), the
rules of the checks (``placement_check``, ``replicas_check``), the election, restoring replicas (``worker``).
Always: an audit marks a bookie's ledgers only if the bookie is neither writable nor read-only, by lists read
after the metadata; nothing is marked while auto-recovery is switched off; an audit that failed is repeated.

Source: Auditor.java, AuditorBookieCheckTask.java, AuditorCheckAllLedgersTask.java,
AuditorPlacementPolicyCheckTask.java, AuditorReplicasCheckTask.java; docs/autorecovery.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing

import attrs
import trio

from ledger.catalog.catalog import Versioned
from ledger.context import ClientContext
from ledger.errors import LedgerError, MetadataFormatError
from ledger.fragments.ledger_check import LedgerCheck, last_entry_of
from ledger.fragments.placement_check import PlacementFindings, Placing, ledger_placing
from ledger.fragments.registered import RegisteredBookies, read_cookie_owners, read_registered
from ledger.fragments.replicas_check import ReplicaFindings
from ledger.metadata_store.errors import ConnectionLostError, SessionExpiredError
from ledger.metadata_store.store import MetadataStore
from ledger.replication.config import ReplicationConfig
from ledger.replication.ledger_visits import OPEN_PAUSE_S, LedgerVisits
from ledger.replication.lost_bookies import Action, AuditNow, CancelAudit, LostBookies, ScheduleAudit
from ledger.replication.marks import RecoveryDelay, RegularCheck, UnderReplicatedLedgers
from ledger.replication.returned_bookies import ReturnedBookies
from ledger.runtime.clock import wall_ms
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import report_contained

logger = get_logger(__name__)

AUDIT_GROUP = 200  # ledgers whose metadata are read before what they lack is marked
AUDIT_RESTS_S_MAX = 300.0  # a ledger that can be restored may come after many that cannot
MARK_REST = 79  # times the length of a mark that no worker can use before another bookie is registered
MARK_REST_S_MAX = 0.4
UNREACHED_PAUSE_S = 60.0  # the metadata store forgets a dead bookie, or one that restarts is back
CONTAINED_PAUSE_S = 60.0  # after an error that nobody expected; it may come again at once


_Ensembles = frozenset[frozenset[str]]


class _Progress(enum.Enum):
    """The ledgers of a group that lack replicas."""

    NOTHING = enum.auto()  # there are none
    WAITS = enum.auto()  # no registered bookie can take them
    RESTORABLE = enum.auto()  # of some


@attrs.define
class _Audit:
    """The findings of an audit so far."""

    began_s: float
    ensembles: dict[int, _Ensembles] = attrs.Factory(dict)  # by ledger
    is_open: set[int] = attrs.Factory(set)
    waiting: list[int] = attrs.Factory(list)  # closed ledgers, for a bookie
    marked: int = 0
    are_all_there: bool = True  # the bookies of all ledgers
    _shared: dict[_Ensembles, _Ensembles] = attrs.Factory(dict)  # many ledgers share few sets of bookies

    async def note(self, current: Versioned) -> None:
        """Keep what counts of a ledger's metadata."""
        ensembles = frozenset(frozenset(ensemble.bookies) for ensemble in current.metadata.ensembles)
        self.ensembles[current.ledger_id] = self._shared.setdefault(ensembles, ensembles)
        if not current.metadata.is_closed:
            self.is_open.add(current.ledger_id)


@attrs.define
class AuditorStats:
    """The work done by the auditors of one program, and what their last checks found."""

    audits: int = 0
    audit_s: float = 0.0  # all audits together
    audit_marks: int = 0  # ledgers that audits marked
    audits_delayed: int = 0  # a bookie was lost, and its audit waited for the delay
    audits_cancelled: int = 0  # the bookie came back meanwhile
    ledger_checks: int = 0
    ledger_check_s: float = 0.0
    placement_checks: int = 0
    placement_check_s: float = 0.0
    replicas_checks: int = 0
    replicas_check_s: float = 0.0
    ledgers_marked: int = 0  # by audits and checks
    placement: PlacementFindings | None = None  # None: never checked
    replicas: ReplicaFindings | None = None


class Auditor:
    """The auditor of a cluster, while this program is the elected one."""

    def __init__(
        self,
        context: ClientContext,
        session: MetadataStore,
        marks: UnderReplicatedLedgers,
        config: ReplicationConfig,
        *,
        wall_ms: Callable[[], int] = wall_ms,
        stats: AuditorStats | None = None,
    ) -> None:
        self.stats = stats or AuditorStats()
        self._context, self._session, self._marks, self._config = context, session, marks, config
        self._root, self._wall_ms = context.catalog.root, wall_ms
        self._visits = LedgerVisits(context, session, marks, config)
        self._returned = ReturnedBookies(
            context, session, marks, config, self._visits, self._note_marked, wall_ms
        )
        self._check = LedgerCheck(
            context, percentage=config.verified_percentage, reads_max=config.reads_in_flight_max
        )
        self._wake = trio.Event()
        self._audit_at: float | None = None
        self._is_audit_due = False
        self._must_repeat = False  # an audit that a change of the bookies has cut short

    async def run(self) -> None:
        """Audit until cancelled. Marks of an interrupted audit stay; they are true.

        An error at one ledger, or in one round, ends only that.

        Raises:
            ledger.metadata_store.errors.SessionExpiredError: The session is over.
        """
        await self._marks.init_recovery_delay(self._config.lost_bookie_delay_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_bookies)
            nursery.start_soon(self._returned.follow, lambda: self._wake)
            nursery.start_soon(self._returned.check_returned)
            config = self._config
            for check, interval_s, run in (
                (RegularCheck.READS, config.ledger_check_interval_s, self.check_ledgers),
                (RegularCheck.PLACEMENT, config.placement_check_interval_s, self.check_placement),
                (RegularCheck.REPLICAS, config.replicas_check_interval_s, self.check_replicas),
            ):
                nursery.start_soon(self._run_regularly, check, interval_s or math.inf, run)
            await self._follow_delay_and_audit(nursery)

    async def audit(self) -> int:
        """Mark the ledgers of all lost bookies; return their number.

        First those that are being written, and those that a worker can restore now. The others wait for a
        bookie, so finding and marking them takes a small share of the time until the registered bookies
        change. If cancelled, or if it raises, some are marked.
        """
        found = _Audit(began_s=trio.current_time())
        wake, group_s = self._wake, found.began_s
        registered = await read_registered(self._session, self._root)
        is_one_lost = not await read_cookie_owners(self._session, self._root) <= registered.all
        is_repeated, must_rest, is_cut = self._must_repeat, False, False
        async with aclosing(self._visits.groups(AUDIT_GROUP)) as groups:
            async for group in groups:
                if must_rest:
                    await self._visits.pace.rest(group_s, wake=wake)
                    if wake.is_set() and not is_repeated:
                        is_cut = True  # the next audit has another pace, and begins now
                        break
                group_s = trio.current_time()
                progress = await self._audit_group(group, found)
                is_urgent = progress is _Progress.RESTORABLE or (
                    is_one_lost and progress is _Progress.NOTHING
                )
                is_late = group_s > found.began_s + AUDIT_RESTS_S_MAX
                must_rest = not (is_urgent or is_late or wake.is_set())
        if found.are_all_there and not is_cut:
            closed = found.ensembles.keys() - found.is_open
            self._returned.absences.on_closed(closed, found.began_s, trio.current_time())
        self._must_repeat = is_cut or not await self._mark_waiting(found, registered, wake)
        self.stats.audits += 1
        self.stats.audit_s += trio.current_time() - found.began_s
        self.stats.audit_marks += found.marked
        self.stats.ledgers_marked += found.marked
        logger.info(
            "audit: %d of %d ledgers miss replicas, because bookies are lost",
            found.marked,
            len(found.ensembles),
            extra=event("audit.done", ledgers=len(found.ensembles), marked=found.marked),
        )
        return found.marked

    async def _audit_group(self, group: Sequence[int], found: _Audit) -> _Progress:
        """Mark those of these ledgers that are being written, or that a worker can restore now."""
        while True:
            await self._marks.wait_enabled()
            await self._visits.visit(group, found.note)
            # After the metadata, so that a bookie that has just joined and got a ledger is not lost.
            registered = await read_registered(self._session, self._root)
            if await self._marks.is_enabled():
                break
        progress = _Progress.NOTHING
        for ledger_id in group:
            ensembles = found.ensembles.get(ledger_id, frozenset())
            short = [one for one in ensembles if not one <= registered.all]
            if not short:
                continue
            found.are_all_there = False
            waits = all(registered.writable <= one for one in short)
            if progress is not _Progress.RESTORABLE:
                progress = _Progress.WAITS if waits else _Progress.RESTORABLE
            if waits and ledger_id not in found.is_open:
                found.waiting.append(ledger_id)
            else:
                lost = sorted(frozenset().union(*short) - registered.all)
                newly_marked = await self._visits.mark(ledger_id, lost)
                found.marked += newly_marked
        return progress

    async def _mark_waiting(self, found: _Audit, before: RegisteredBookies, wake: trio.Event) -> bool:
        """Mark those that no bookie can take, slowly; False if another audit must look at them again.

        The bookies are read again when they change. If nothing but new ones came, those that they can take
        are marked at once, and the others slowly.
        """
        if found.waiting and not wake.is_set():
            logger.info(
                "audit: %d ledgers lack replicas that no other bookie can take; they are marked slowly",
                len(found.waiting),
                extra=event("audit.waits", ledgers=len(found.waiting)),
            )
        registered = before
        for ledger_id in found.waiting:
            if wake.is_set():
                wake = self._wake
                registered = await read_registered(self._session, self._root)
                if not before.all < registered.all:
                    return False
                before = registered
            mark_s = trio.current_time()
            short = [one for one in found.ensembles[ledger_id] if not one <= registered.all]
            if not short:
                continue
            lost = sorted(frozenset().union(*short) - registered.all)
            newly_marked = await self._visits.mark(ledger_id, lost)
            found.marked += newly_marked
            if all(registered.writable <= one for one in short):
                rest_s = min(MARK_REST_S_MAX, MARK_REST * (trio.current_time() - mark_s))
                with trio.move_on_after(rest_s):
                    await wake.wait()
        return True

    async def check_ledgers(self) -> int:
        """Read from every ledger; mark those that miss replicas on registered bookies; return their number.

        If cancelled, or if it raises, some are marked.
        """
        marked, began_s = 0, trio.current_time()
        unchecked, example = 0, ""
        doubtful: list[int] = []  # a registered bookie of theirs could not be reached
        is_second_look = False

        async def check(current: Versioned, registered: RegisteredBookies) -> None:
            nonlocal marked, unchecked, example
            try:
                lac = await last_entry_of(self._context, current)
            except LedgerError as exc:
                unchecked += 1
                example = example or f"ledger {current.ledger_id}: {exc}"
                return
            found = await self._check.find(current, lac, registered)
            if found.unreached and not is_second_look:
                doubtful.append(current.ledger_id)
            elif lost := registered.all.intersection(bookie for one in found.bad for bookie in one.bookies):
                newly_marked = await self._visits.mark_lacking(current, lost)
                marked += newly_marked

        await self._visits.check_each(check)
        if doubtful:
            is_second_look = True
            await trio.sleep(UNREACHED_PAUSE_S)
            await self._visits.check_again(doubtful, check)
        await self._marks.set_checked(RegularCheck.READS)
        self.stats.ledger_checks += 1
        self.stats.ledger_check_s += trio.current_time() - began_s
        self.stats.ledgers_marked += marked
        if unchecked:  # one line: with a bookie away they may be thousands
            logger.warning(
                "%d ledgers were not checked, for example %s",
                unchecked,
                example,
                extra=event("check.incomplete", ledgers=unchecked, example=example),
            )
        logger.info(
            "check of all ledgers: %d miss replicas", marked, extra=event("check.done", marked=marked)
        )
        return marked

    async def check_placement(self) -> PlacementFindings:
        """Judge the placement of all closed ledgers; mark those placed badly, if workers may move replicas.

        If cancelled, or if it raises, some are marked.
        """
        began_s = trio.current_time()
        found, placer = PlacementFindings(), self._context.placer
        topology = await placer.located()

        async def check(current: Versioned, registered: RegisteredBookies) -> None:
            if not current.metadata.is_closed:
                return
            placing = ledger_placing(current.metadata, placer.config, topology, registered.all)
            found.count(placing)
            if (
                placing is Placing.BAD
                and self._config.repairs_placement
                and await self._marks.is_enabled()
                and await self._visits.is_unchanged(current)
            ):
                newly_marked = await self._visits.mark(current.ledger_id, ())
                found.marked += newly_marked

        await self._visits.check_each(check)
        if self._config.marked_grace_s:
            oldest_ms = self._wall_ms() - self._config.marked_grace_s * 1000
            marks = [one.mark.ctime_ms for one in await self._marks.marked()]
            found.overdue = sum(ctime_ms is not None and ctime_ms < oldest_ms for ctime_ms in marks)
        found.at_ms = await self._marks.set_checked(RegularCheck.PLACEMENT)
        self.stats.placement = found
        self.stats.placement_checks += 1
        self.stats.placement_check_s += trio.current_time() - began_s
        self.stats.ledgers_marked += found.marked
        logger.info(
            "check of the placement: %d of %d closed ledgers are placed badly, of %d it is not known",
            found.bad,
            found.ledgers,
            found.unknown,
            extra=event("check.placement", ledgers=found.ledgers, bad=found.bad, unknown=found.unknown),
        )
        return found

    async def check_replicas(self) -> ReplicaFindings:
        """Ask all bookies for their lists of entries, slowly; mark ledgers that lack entries on registered
        bookies.

        Of a ledger that is being written it looks at what is confirmed. Ledgers that are marked already are
        left out. If cancelled, or if it raises, some are marked.
        """
        found, began_s = ReplicaFindings(), trio.current_time()

        async def check(current: Versioned, registered: RegisteredBookies) -> None:
            metadata, ledger_id = current.metadata, current.ledger_id
            if metadata.is_closed and metadata.last_entry_id < 0:
                return
            if await self._marks.seen(ledger_id) is not None:
                return
            try:
                lac = await last_entry_of(self._context, current)
            except LedgerError:
                found.unknown += 1
                return
            count = await self._visits.count(current, lac, registered.all)
            if count is not None and count.lacking and not metadata.is_closed:
                await trio.sleep(OPEN_PAUSE_S)  # a bookie may only be a little behind the others
                count = await self._visits.count(current, lac, registered.all)
            found.ledgers += 1
            if count is None:
                found.unknown += 1
                return
            found.without_replica += count.is_without_replica
            found.below_ack_quorum += count.is_below_ack_quorum
            found.below_write_quorum += count.is_below_write_quorum
            if lost := count.lacking & registered.all:
                newly_marked = await self._visits.mark_lacking(current, lost)
                found.marked += newly_marked

        await self._visits.check_each(check, per_s=self._config.replicas_check_ledgers_per_s)
        found.at_ms = await self._marks.set_checked(RegularCheck.REPLICAS)
        self.stats.replicas = found
        self.stats.replicas_checks += 1
        self.stats.replicas_check_s += trio.current_time() - began_s
        self.stats.ledgers_marked += found.marked
        logger.info(
            "check of the replicas: of %d ledgers %d have an entry without a replica, %d with too few",
            found.ledgers,
            found.without_replica,
            found.below_write_quorum,
            extra=event(
                "check.replicas",
                ledgers=found.ledgers,
                without_replica=found.without_replica,
                below_ack_quorum=found.below_ack_quorum,
                below_write_quorum=found.below_write_quorum,
                unknown=found.unknown,
            ),
        )
        return found

    # --- lost bookies ---------------------------------------------------------------------------------------

    async def _follow_bookies(self) -> None:
        while True:
            await self._context.membership.wait_change()
            self._wake_up()

    def _note_marked(self, ledgers: int) -> None:
        self.stats.ledgers_marked += ledgers

    def _wake_up(self) -> None:
        self._wake.set()
        self._wake = trio.Event()

    async def _follow_delay_and_audit(self, nursery: trio.Nursery) -> None:
        delay_changed = trio.Event()
        delay = await self._delay(delay_changed)
        lost = LostBookies(await read_cookie_owners(self._session, self._root), delay.seconds)
        nursery.start_soon(self._wake_after, delay_changed)
        interval_s = self._config.bookie_check_interval_s
        regular_at = trio.current_time()
        while True:
            wake = self._wake
            try:
                await self._marks.wait_enabled()
                if delay_changed.is_set():
                    watch = trio.Event()
                    found = await self._delay(watch)
                    delay_changed = watch
                    nursery.start_soon(self._wake_after, delay_changed)
                    # A watch also fires after a lost connection. Only a write is a wish for an audit.
                    if found.version != delay.version:
                        delay = found
                        self._perform(lost.on_delay_set(delay.seconds))
                available = (await read_registered(self._session, self._root)).all
                self._perform(lost.on_bookies(available))
                now = trio.current_time()
                if self._audit_at is not None and self._audit_at <= now:
                    self._perform(lost.on_delay_over())
                if regular_at <= now:
                    regular_at = now + interval_s if interval_s else float("inf")
                    # A bookie that is away for less than the delay must not be audited.
                    self._is_audit_due |= not lost.is_pending
                self._is_audit_due |= self._must_repeat and not lost.is_pending
                if self._is_audit_due:
                    await self.audit()
                    self._is_audit_due = False
            except ConnectionLostError as exc:
                logger.warning(
                    "the audit is repeated, the metadata store is out of reach: %s",
                    exc,
                    extra=event("audit.failed", error=exc),
                )
                await trio.sleep(self._config.retry_pause_s)
                await self._marks.wait_reachable()
                continue
            except SessionExpiredError:
                raise
            except Exception as exc:
                report_contained("audit", exc)
                await trio.sleep(CONTAINED_PAUSE_S)
                continue
            with trio.move_on_at(min(regular_at, self._audit_at or float("inf"))):
                await wake.wait()

    async def _delay(self, changed: trio.Event) -> RecoveryDelay:
        try:
            return await self._marks.recovery_delay(changed)
        except MetadataFormatError as exc:
            delay_s = self._config.lost_bookie_delay_s
            logger.error(
                "the delay is taken to be %d s until its node is written again: %s",
                delay_s,
                exc,
                extra=event("audit.delay_unknown", error=exc),
            )
            return RecoveryDelay(delay_s, None)

    async def _wake_after(self, changed: trio.Event) -> None:
        await changed.wait()
        self._wake_up()

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case AuditNow():
                    self._audit_at, self._is_audit_due = None, True
                case ScheduleAudit(delay_s=delay_s):
                    self.stats.audits_delayed += 1
                    self._audit_at = trio.current_time() + delay_s
                    logger.info(
                        "a bookie is lost; its ledgers are audited in %d s unless it comes back",
                        delay_s,
                        extra=event("audit.scheduled", delay_s=delay_s),
                    )
                case CancelAudit():
                    self.stats.audits_cancelled += self._audit_at is not None
                    self._audit_at = None

    # --- regular checks -------------------------------------------------------------------------------------

    async def _run_regularly(
        self, check: RegularCheck, interval_s: float, run: Callable[[], Awaitable[object]]
    ) -> None:
        while True:
            try:
                changed = trio.Event()
                checked_ms = await self._checked_ms(check, changed)
                left_s = self._left_s(checked_ms, interval_s)
                if left_s > 0:
                    with trio.move_on_after(left_s):
                        await changed.wait()
                        continue  # an operator may have made the check due
                await self._marks.wait_enabled()
                await run()
            except ConnectionLostError as exc:
                logger.warning(
                    "a check of all ledgers (%s) is repeated: %s",
                    check.name.lower(),
                    exc,
                    extra=event("check.failed", check=check.name.lower(), error=exc),
                )
                await trio.sleep(self._config.retry_pause_s)
                await self._marks.wait_reachable()
            except SessionExpiredError:
                raise
            except Exception as exc:
                report_contained(f"check of all ledgers ({check.name.lower()})", exc)
                await trio.sleep(CONTAINED_PAUSE_S)

    async def _checked_ms(self, check: RegularCheck, changed: trio.Event) -> int | None:
        try:
            return await self._marks.checked_ms(check, changed)
        except MetadataFormatError as exc:
            logger.error(
                "the check is due now, and then writes its time again: %s",
                exc,
                extra=event("check.time_unknown", check=check.name.lower(), error=exc),
            )
            return 0

    def _left_s(self, checked_ms: int | None, interval_s: float) -> float:
        """Until the next check. ``checked_ms`` is 0 if an operator made the check due."""
        if checked_ms == 0:
            return 0
        if checked_ms is None:
            return 0 if math.isfinite(interval_s) else interval_s
        # The clock of the last auditor may have been ahead.
        return min(max(0.0, checked_ms / 1000 + interval_s - self._wall_ms() / 1000), interval_s)
