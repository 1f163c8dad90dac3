"""Performing the faults of worlds with auto-recovery.

Inside: the loss of a bookie, a bookie that is away, faults at a worker's step, the switch, the store.
Not inside: all other faults (``tests.simulation.injector``), drawing (``faults``).
Always: a loss happens only when the promise allows it; a fault at a step strikes once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ledger.catalog.paths import UNDERREPLICATION_DISABLE, underreplicated_id_of
from tests.simulation.bookies import ROOT, BookieMachine
from tests.simulation.clients import WriterProcess
from tests.simulation.faults import KINDS, Fault
from tests.simulation.healing.faults import STEP_FAULTS, STEPS, LossPromise
from tests.simulation.healing.healers import LOCKS
from tests.simulation.injector import Injector
from tests.simulation.metadata import SESSION_TIMEOUT_S, STORE

if TYPE_CHECKING:
    from tests.simulation.healing.world import HealWorld

RETRY_S = 0.5  # of a loss that the promise does not allow yet
LOOK_S = 0.02  # until the next look for a lock: a worker holds one only while it copies
LOOKS_MAX = 500
ZOMBIE_S = 2.0  # a paused worker sleeps longer than its session lives


class HealInjector(Injector):
    """Performs faults until ``stop``."""

    _world: HealWorld

    def __init__(self, world: HealWorld) -> None:
        super().__init__(world)
        self._losses = LossPromise(world)
        self._armed: dict[tuple[str, str], list[Fault]] = {}  # by process and step

    def stop(self) -> None:
        super().stop()
        self._armed.clear()
        self._world.remove_node(f"{ROOT}/{UNDERREPLICATION_DISABLE}")

    def _perform(self, fault: Fault) -> None:
        if KINDS[fault.kind].group != "healing":
            super()._perform(fault)
            return
        if self.is_over:
            return
        world = self._world
        if fault.kind in ("bookie lost for good", "bookie decommissioned"):
            if fault.target in world.lost:
                return
            if not self._losses.allows(world.damaged, fault.target):
                world.timeline.after(RETRY_S, self._perform, fault)
                return
        world.trace.note("fault", str(fault))
        world.counts[fault.kind] += 1
        match fault.kind:
            case "bookie lost for good":
                world.lose(world.bookies[fault.target])
            case "bookie decommissioned":
                world.lose(world.bookies[fault.target])
                world.decommission(fault.target)
            case "bookie away":
                self._kill(world.bookies[fault.target], fault.seconds)
            case kind if kind in STEP_FAULTS:
                step = STEPS[fault.step - 1] if fault.step else random.Random(fault.number).choice(STEPS)
                self._armed.setdefault((fault.target, step), []).append(fault)
            case "auditor killed":
                self._kill_healer(world.auditor_name(), fault.seconds)
            case "writers dead":
                for client in world.clients.values():
                    if isinstance(client, WriterProcess):
                        client.kill()
                        client.away_s = fault.seconds
            case "metadata store away":
                for name in sorted(world.network.nodes):
                    self._block(name, STORE, fault.seconds)
                    self._block(STORE, name, fault.seconds)
                    world.suspend_sessions(name, fault.seconds)
            case "auto-recovery switched off":
                path = f"{ROOT}/{UNDERREPLICATION_DISABLE}"
                world.create_node(path)
                self._for(fault.seconds, lambda: world.remove_node(path))
            case "ledger deleted during its repair":
                self._delete_a_ledger(random.Random(fault.number))
            case _:
                raise AssertionError(f"no code performs {fault.kind!r}")

    def reached(self, name: str, step: str) -> None:
        """A worker has reached a step."""
        faults = self._armed.get((name, step))
        if not faults or self.is_over:
            return
        fault, world = faults.pop(), self._world
        world.counts["struck at a worker's step"] += 1
        world.trace.note("fault", f"{fault.kind}: {name} at {step!r}")
        match fault.kind:
            case "worker killed at a step":
                self._kill_healer(name, fault.seconds)
            case "worker paused at a step":
                self._pause(name, SESSION_TIMEOUT_S + ZOMBIE_S)
            case "worker expires at a step":
                world.expire_sessions(name)
            case "worker cut off at a step":
                # A request that has begun may arrive, and its reply does not.
                self._block(STORE, name, fault.seconds)

    def _kill_healer(self, name: str | None, seconds: float) -> None:
        machine = self._world.bookies.get(name or "")
        if isinstance(machine, BookieMachine):
            self._kill(machine, seconds)
        elif name is not None:
            self._world.healers[name].kill()

    def _delete_a_ledger(self, rng: random.Random, looks: int = LOOKS_MAX) -> None:
        world = self._world
        locked = [underreplicated_id_of(path.removeprefix(LOCKS)) for path in world.nodes_below(LOCKS)]
        metadata = [(one, world.metadata_of(one)) for one in locked if one is not None]
        # A writer deletes the ledgers of a log from the oldest on, and never its last one.
        closed = [one for one, found in metadata if found is not None and found.is_closed]
        if closed:
            world.counts["ledger deleted under its lock"] += 1
            world.delete_ledger(rng.choice(sorted(closed)))
        elif looks > 0 and not self.is_over:
            world.timeline.after(LOOK_S, self._delete_a_ledger, rng, looks - 1)
