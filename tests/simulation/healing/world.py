"""A world with auto-recovery: auditors and workers over the cluster of every world.

Inside: ``HealWorld``: its healers, the changes of their nodes, the wait until repair comes to rest, the last
look. Not inside: the cluster (``tests.simulation.world``), auto-recovery in it (``healers``), its faults
(``faults``, ``injector``), the rules (``rules``).
Always: a ledger is judged against metadata and disks, not by what a worker says.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from unittest.mock import patch

import attrs
import trio

from ledger.catalog.paths import AVAILABLE, COOKIES, Layout, ledger_id_of, ledger_path, underreplicated_id_of
from ledger.client import open_ledger_client
from ledger.context import ClientSeams
from ledger.decommission import decommission_bookie
from ledger.errors import LedgerError
from ledger.fragments import entry_lists
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.memory import MemorySession
from ledger.metadata_store.store import Node as StoredNode
from ledger.replication import AutoRecovery
from tests.simulation.bookies import ROOT, BookieMachine
from tests.simulation.checkers import FINAL_CHECKERS, replica_names
from tests.simulation.clients import ClientProcess, client_config
from tests.simulation.faults import Fault
from tests.simulation.final import look_at_everything
from tests.simulation.healing import rules
from tests.simulation.healing.faults import draw_healing_plan
from tests.simulation.healing.healers import LOCKS, MARKS, HealerProcess, HealerSession, heal_beside
from tests.simulation.healing.injector import HealInjector
from tests.simulation.healing.rules import CookieDeleted, HealedState, Unmarked, WorkerChanged
from tests.simulation.healing.shape import CHECK_S_MAX, HealShape
from tests.simulation.history import Accepted, Event
from tests.simulation.injector import Injector
from tests.simulation.network import Node
from tests.simulation.shape import Shape
from tests.simulation.world import World

QUIET_S = 2 * CHECK_S_MAX  # so long nothing is marked or locked: each check has run once more
REST_S_MAX = 400.0
LOOK_S = 1.0
STUCK_S = 10.0  # a mark that may come again does not stay so long
HEALERS = 2
SILENT_S = 5.0  # until a bookie that gave no list is asked again; an hour in reality


class HealWorld(World):
    """The cluster, its auto-recovery and their history."""

    draw_shape: Callable[..., Shape] = HealShape.draw
    shape: HealShape
    injector: HealInjector

    def _make_clients(self) -> dict[str, ClientProcess]:
        self.acting: HealerSession | None = None  # while its write is carried out
        self.lost_at: dict[str, float] = {}
        self._programs: dict[str, AutoRecovery] = {}  # beside bookies
        self._locked_at: dict[str, float] = {}  # by the path of the lock
        self._unregistered_at: dict[str, float] = {}  # by bookie
        self._nursery: trio.Nursery | None = None
        self._removals = 0
        names = [] if self.shape.is_inside else [f"healer{number}" for number in range(HEALERS)]
        self.healers = {
            name: HealerProcess(self, name, random.Random(f"{name} {self.shape.seed}")) for name in names
        }
        return super()._make_clients()

    def _draw_plan(self, kinds: frozenset[str]) -> tuple[Fault, ...]:
        return draw_healing_plan(
            random.Random(f"healing plan {self.shape.seed}"),
            horizon_s=self.shape.horizon_s,
            bookies=list(self.bookies),
            clients=list(self.clients),
            healers=list(self.healers or self.bookies),
            kinds=sorted(kinds),
        )

    def _make_injector(self) -> Injector:
        return HealInjector(self)

    async def run(self) -> None:
        with patch.object(entry_lists, "SILENT_S", SILENT_S):
            await super().run()

    async def _set_up(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        await super()._set_up(nursery)
        for healer in self.healers.values():
            nursery.start_soon(healer.live)

    # --- called by the parts ---

    @property
    def lost(self) -> set[str]:
        """The bookies that are lost for good."""
        return set(self.lost_at)

    def process_named(self, name: str) -> ClientProcess | None:
        return self.healers.get(name) or super().process_named(name)

    async def run_beside(self, machine: BookieMachine, node: Node) -> None:
        if self.shape.is_inside:
            await heal_beside(
                self, machine, node, lambda program: self._programs.update({machine.name: program})
            )

    def auditor_name(self) -> str | None:
        """The process of the auditor, if one is elected."""
        programs = self._programs | {
            name: healer.program for name, healer in self.healers.items() if healer.program is not None
        }
        return next((name for name, program in sorted(programs.items()) if program.is_auditor), None)

    def reached(self, name: str, step: str) -> None:
        """A worker has reached a step; see ``healers``."""
        self.counts[f"worker {step}"] += 1
        self.injector.reached(name, step)

    def lose(self, machine: BookieMachine) -> None:
        """Lose a bookie for good, and its disk with it."""
        self.lost_at[machine.name] = self.now()
        machine.kill()
        machine.is_given_up = True
        machine.platter.wipe()
        self.damage(machine)
        self.bookie_changed()

    def named_bookies(self) -> set[str]:
        """The bookies that some ledger needs: they hold entries of it, or may get more."""
        names: set[str] = set()
        for ledger_id, metadata in self._metadata.items():
            if ledger_id not in self.deleted:
                names |= _needed_by(metadata)
        return names

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger, as an operator does."""
        self.trace.note("operator", f"deletes ledger {ledger_id}")
        self.deletes(ledger_id)
        self.remove_node(ledger_path(ROOT, Layout.HIERARCHICAL, ledger_id))

    def create_node(self, path: str) -> None:
        """Create a node by hand, if it does not exist."""
        if self.tree.value_now(path) is None:
            MemorySession(self.tree).create(path, b"", ephemeral=False, sequential=False, parents=True)

    def nodes_below(self, prefix: str) -> list[str]:
        """The paths of marks or locks."""
        return sorted(path for path in self.tree._nodes if path.startswith(prefix) and "/urL" in path)

    def decommission(self, bookie: str) -> None:
        """Start ``dlog bookie decommission`` and repeat it until it has succeeded."""
        assert self._nursery is not None
        self._removals += 1
        self._nursery.start_soon(self._decommission, bookie)

    async def _decommission(self, bookie: str) -> None:
        node = self.network.join(f"remover {bookie}")
        while True:
            store = self.new_session(node)
            try:
                async with open_ledger_client(
                    store,
                    lambda address: self.network.dial(node, address),
                    client_config(2),
                    root=ROOT,
                    seams=ClientSeams(
                        rng=random.Random(f"remover {bookie} {self.shape.seed}"), wall_ms=self.wall_ms
                    ),
                ) as client:
                    await decommission_bookie(client.context, store, bookie)
                    break
            except (LedgerError, MetadataError) as exc:
                self.trace.note(node.name, f"{type(exc).__name__}: {exc}"[:300])
            finally:
                store.abandon()
            await trio.sleep(2)
        self.trace.note(node.name, "has removed the bookie")
        self.counts["bookie removed"] += 1
        self._removals -= 1

    def observe(self, event: Event) -> None:
        if isinstance(event, Accepted) and event.is_recovery and self._is_locked(event.place[0]):
            event = attrs.evolve(event, metadata=None)  # a worker's copy of a fragment, during a recovery
            metadata = self._metadata.get(event.place[0])
            if metadata is not None and metadata.state is LedgerState.OPEN:
                rule = rules.only_confirmed_entries_are_copied
                self._judge_event(lambda copy: rule(copy, self.history), event, rule.__name__)
        super().observe(event)

    def _is_locked(self, ledger_id: int) -> bool:
        return f"{LOCKS}urL{ledger_id:010d}" in self._locked_at

    # --- changes of nodes ---

    def _node_changed(self, path: str, before: StoredNode | None, after: StoredNode | None) -> None:
        ledger_id = ledger_id_of(ROOT, path)
        old = None if ledger_id is None else self._metadata.get(ledger_id)
        super()._node_changed(path, before, after)
        session = self.acting
        if path.startswith(LOCKS):
            self._lock_changed(path, after)
        elif path.startswith(f"{ROOT}/{AVAILABLE}/"):
            self._registration_changed(path.rpartition("/")[2], after)
        elif path.startswith(f"{ROOT}/{COOKIES}/") and after is None:
            self._cookie_deleted(path.rpartition("/")[2])
        elif session is not None and path.startswith(MARKS) and after is None:
            marked = underreplicated_id_of(path.rpartition("/")[2])
            if marked is not None:
                self._unmarked(session, marked)
        elif session is not None and ledger_id is not None and old is not None and after is not None:
            self._worker_changed(session, ledger_id, old)

    def _lock_changed(self, path: str, after: StoredNode | None) -> None:
        if after is None:
            self._locked_at.pop(path, None)
        else:
            self._locked_at[path] = self.now()

    def _registration_changed(self, bookie: str, after: StoredNode | None) -> None:
        if after is None:
            self._unregistered_at[bookie] = self.now()
        else:
            self._unregistered_at.pop(bookie, None)  # it is back

    def _cookie_deleted(self, bookie: str) -> None:
        naming = [
            ledger_id
            for ledger_id, metadata in sorted(self._metadata.items())
            if any(bookie in ensemble.bookies for ensemble in metadata.ensembles)
        ]
        self._judge_event(rules.a_cookie_goes_only_without_ledgers, CookieDeleted(bookie, tuple(naming)))

    def _unmarked(self, session: HealerSession, ledger_id: int) -> None:
        metadata = self._metadata.get(ledger_id)
        named = _needed_by(metadata) if metadata is not None and metadata.is_closed else set()
        self.trace.note("store", f"ledger {ledger_id} is no longer marked")
        locked_at = self._locked_at.get(f"{LOCKS}urL{ledger_id:010d}", 0.0)
        gone = frozenset(name for name in self.lost if self._unregistered_at.get(name, math.inf) < locked_at)
        event = Unmarked(self.now(), session._process.name, ledger_id, frozenset(named), gone)
        self._judge_event(rules.a_mark_goes_only_after_the_lost_bookie, event)

    def _worker_changed(self, session: HealerSession, ledger_id: int, before: LedgerMetadata) -> None:
        after = self._metadata[ledger_id]
        if after == before:
            return
        path = f"{LOCKS}urL{ledger_id:010d}"
        lock = self.tree.value_now(path)
        is_owner = lock is not None and lock.stat.ephemeral_owner == session.session_id
        event = WorkerChanged(
            self.now(),
            session._process.name,
            ledger_id,
            before,
            after,
            self._locked_at.get(path) if is_owner else None,
            tuple(self._lacking(ledger_id, before, after)),
            self._spares(before, self._locked_at.get(path, 0.0)),
        )
        self.counts["replicas moved"] += before.ensembles != after.ensembles
        self.counts["ledger closed by a worker"] += before.is_closed < after.is_closed
        for rule in rules.MOVE_RULES:
            self._judge_event(rule, event)
        grace_s = self.shape.grace_s
        self._judge_event(
            lambda changed: rules.an_open_ledger_is_closed_only_after_the_grace(changed, grace_s),
            event,
            rules.an_open_ledger_is_closed_only_after_the_grace.__name__,
        )

    def _spares(self, metadata: LedgerMetadata, since: float) -> frozenset[str]:
        """The bookies outside the last ensemble that were registered at some time since then."""
        return frozenset(
            name
            for name in self.bookies
            if name not in metadata.last_ensemble.bookies
            and self._unregistered_at.get(name, math.inf) >= since
        )

    def _lacking(self, ledger_id: int, before: LedgerMetadata, after: LedgerMetadata) -> list[str]:
        """The replicas of final fragments that are not durable on a bookie that has just got them."""
        found = []
        for number, ensemble in enumerate(after.ensembles):
            if number < len(after.ensembles) - 1:
                last = after.ensembles[number + 1].first_entry_id - 1
            elif before.is_closed:
                last = after.last_entry_id
            else:
                continue
            old = next((e for e in before.ensembles if e.first_entry_id == ensemble.first_entry_id), None)
            new = set(ensemble.bookies) - (set(old.bookies) if old is not None else set())
            for entry_id in range(ensemble.first_entry_id, last + 1) if new else ():
                written = self.history.submitted.get((ledger_id, entry_id))
                for name in new.intersection(replica_names(after, entry_id)):
                    durable = written is not None and self.bookies[name].platter.holds_durably(
                        written.payload
                    )
                    if not durable and name not in self.damaged:
                        found.append(f"entry {entry_id} on {name}")
        return sorted(found)

    def _judge_event(self, rule: Callable[..., str | None], event: object, name: str = "") -> None:
        complaint = rule(event)
        if complaint is not None:
            self.violate(name or rule.__name__, complaint)

    # --- the end ---

    async def _judge(self, unfinished: tuple[str, ...]) -> None:
        if unfinished:
            self.violate("every_operation_has_ended", ", ".join(unfinished))
            return
        await self._close_everything()
        self.trace.note("world", "repair must come to rest")
        if not await self._comes_to_rest():
            return
        self.trace.note("world", "everything is read and compared")
        state = await look_at_everything(self, unfinished)
        healed = HealedState(
            state,
            frozenset(self.lost),
            self._left(self.nodes_below(MARKS)),
            self._left(self.nodes_below(LOCKS)),
        )
        for check in FINAL_CHECKERS:
            complaint = check(state, self.history)
            if complaint is not None:
                self.violate(check.__name__, complaint)
                return
        for rule in rules.HEALED_RULES:
            complaint = rule(healed, self.history)
            if complaint is not None:
                self.violate(rule.__name__, complaint)
                return

    async def _close_everything(self) -> None:
        """Recover each ledger, as its next reader would. One that cannot be closed yet is tried again."""
        node = self.network.join("closer")
        async with open_ledger_client(
            self.new_session(node),
            lambda address: self.network.dial(node, address),
            client_config(2),
            root=ROOT,
            seams=ClientSeams(rng=random.Random(f"closer {self.shape.seed}"), wall_ms=self.wall_ms),
        ) as client:
            deadline = self.now() + REST_S_MAX / 4
            for ledger_id in sorted(self._metadata):
                while ledger_id not in self.deleted and self.now() < deadline:
                    try:
                        async with await client.open(ledger_id, password=self.shape.password):
                            break
                    except (LedgerError, MetadataError):
                        await trio.sleep(1)

    async def _comes_to_rest(self) -> bool:
        """Wait until nothing was marked and locked for ``QUIET_S``; True if that comes to pass."""
        deadline, quiet_since = self.now() + REST_S_MAX, self.now()
        seen_since: dict[str, float] = {}
        while self.now() < deadline:
            now = self.now()
            nodes = self.nodes_below(MARKS) + self.nodes_below(LOCKS)
            seen_since = {path: seen_since.get(path, now) for path in nodes}
            busy = [path for path in nodes if path in self._left(nodes) or now - seen_since[path] > STUCK_S]
            if busy or self._removals:
                quiet_since = now + LOOK_S
            elif now - quiet_since >= QUIET_S:
                return True
            await trio.sleep(LOOK_S)
        self.violate("repair_comes_to_rest", f"after {REST_S_MAX:.0f} s without a fault: {busy}")
        return False

    def _left(self, paths: list[str]) -> tuple[str, ...]:
        """The marks and locks that should not be there.

        A ledger that names a lost bookie only where it has no entries is marked by each audit, and the next
        worker removes the mark.
        """
        found = []
        for path in paths:
            ledger_id = underreplicated_id_of(path.rpartition("/")[2])
            metadata = self._metadata.get(-1 if ledger_id is None else ledger_id)
            named = {name for each in metadata.ensembles for name in each.bookies} if metadata else set()
            if metadata is None or not named & self.lost or _needed_by(metadata) & self.lost:
                found.append(path)
        return tuple(found)


def _needed_by(metadata: LedgerMetadata) -> set[str]:
    """The bookies that hold entries of a closed ledger; all bookies that another one names."""
    if not metadata.is_closed:
        return {name for ensemble in metadata.ensembles for name in ensemble.bookies}
    return {
        name for entry_id in range(metadata.last_entry_id + 1) for name in replica_names(metadata, entry_id)
    }
