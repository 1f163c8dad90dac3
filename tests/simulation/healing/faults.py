"""The faults of worlds with auto-recovery, and the promise: the losses that a repair survives.

Inside: drawing a plan (``draw_healing_plan``), the promise (``LossPromise``). Not inside: the kinds
(``tests.simulation.faults``), performing them (``injector``).

**The promise.** Each machine may be lost for good, with its disk. At most Qa - 1 machines are lost at a time:
another one only after no ledger names the one before. A loss that comes too early waits until it is allowed,
so that it strikes as soon as a repair seems to be done.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from tests.simulation.faults import DATA_LOSING, KINDS, Fault, draw_plan
from tests.simulation.healing.shape import SMALL

if TYPE_CHECKING:
    from tests.simulation.healing.world import HealWorld

LOSSES_MAX = 2
FIRST_LOSS_S = (2.5, 6.0)
STEPS = ("locked", "copied", "changed", "unmarked", "unlocking")  # of a worker, see ``healers``
STEP_FAULTS = (
    "worker killed at a step",
    "worker paused at a step",
    "worker expires at a step",
    "worker cut off at a step",
)
LOSSES = ("bookie lost for good", "bookie decommissioned")
DISTURBANCES = (
    "bookie away",
    "auditor killed",
    "metadata store away",
    "auto-recovery switched off",
    "ledger deleted during its repair",
    "session expiry",
    "client crash at any await",
    "sleeping writer",
    "lost watches",
)
EXCLUDED = DATA_LOSING | {"old copy"}  # losses come from ``LOSSES`` only


def draw_healing_plan(
    rng: random.Random,
    *,
    horizon_s: float,
    bookies: Sequence[str],
    clients: Sequence[str],
    healers: Sequence[str],
    kinds: Collection[str],
) -> tuple[Fault, ...]:
    """Draw the loss of a bookie or two, and what disturbs their repair; also a few faults of all worlds."""
    faults: list[Fault] = []

    def add(at_s: float, kind: str, target: str, step: int = 0) -> None:
        if kind in kinds:
            seconds = round(rng.uniform(*KINDS[kind].seconds), 3)
            faults.append(Fault(round(at_s, 4), kind, target, seconds, rng.randrange(1 << 32), step))

    first_s = rng.uniform(*FIRST_LOSS_S)
    victims = rng.sample(list(bookies), LOSSES_MAX)
    add(
        first_s,
        rng.choice(["bookie lost for good"] * 4 + ["bookie decommissioned", "bookie away"]),
        victims[0],
    )
    if rng.random() < 0.6:
        add(first_s + rng.uniform(0.5, 10), rng.choice(LOSSES[:1] * 3 + LOSSES), victims[1])
    if len(bookies) <= SMALL:
        for number, victim in enumerate(bookies):  # none can be lost: each is away in turn, as in a restart
            add(first_s + 7 * number, "bookie away", victim)
    if rng.random() < 0.4:
        add(first_s + rng.uniform(-0.5, 4), "writers dead", "")
    for _ in range(rng.randint(1, 5)):
        at_s = first_s + rng.uniform(-1, 9)
        add(at_s, rng.choice(STEP_FAULTS), rng.choice(list(healers)), rng.randint(1, len(STEPS)))
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(DISTURBANCES)
        targets = {"bookie": bookies, "client": clients, "any": [*healers, *bookies]}.get(KINDS[kind].targets)
        add(first_s + rng.uniform(0, 10), kind, rng.choice(list(targets)) if targets else "")
    others = [name for name in kinds if KINDS[name].group != "healing" and name not in EXCLUDED]
    if rng.random() < 0.5:
        faults += draw_plan(
            rng,
            horizon_s=horizon_s,
            bookies=bookies,
            clients=[*clients, *(name for name in healers if name not in bookies)],
            kinds=others,
            is_light=True,
        )
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind, fault.number)))


class LossPromise:
    """Limits the machines that are lost at a time to ``ack_quorum - 1``."""

    def __init__(self, world: HealWorld) -> None:
        self._world = world

    def allows(self, damaged: Collection[str], name: str) -> bool:
        """Whether this machine may be lost now."""
        world = self._world
        if name in world.lost or len(world.lost) >= LOSSES_MAX:
            return False
        if len(world.bookies) - len(world.lost) <= world.shape.ensemble_size:
            return False
        return len(world.lost & world.named_bookies()) < world.shape.ack_quorum - 1
