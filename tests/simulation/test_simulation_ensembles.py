"""Failures during ensemble changes: several bookies fail at once, and the store replies late."""

from __future__ import annotations

import random
from itertools import pairwise

import attrs
import pytest

from ledger.metadata import LedgerMetadata
from tests.simulation.faults import Fault, enabled
from tests.simulation.history import Event, MetadataWritten
from tests.simulation.known_bugs import KNOWN_BUGS
from tests.simulation.playing import Outcome, play
from tests.simulation.shape import Shape
from tests.simulation.world import World

SEEDS = range(12)
BOOKIES = 6
CLOSE_S = 0.5  # the duration of a change with a slow store


def failing_together(seed: int) -> tuple[Shape, tuple[Fault, ...]]:
    """A storm of refused adds and a slow store; two or three bookies fail together again and again."""
    rng = random.Random(f"ensembles {seed}")
    # Mostly quorums without a spare replica: an entry that a change forgets to send again is then missed at
    # once.
    sizes = rng.choice([(3, 3, 2), (3, 2, 2), (4, 2, 2), (3, 3, 3), (4, 3, 3)])
    shape = attrs.evolve(
        Shape.draw(seed, enabled({}), bookies=BOOKIES),
        ensemble_size=sizes[0],
        write_quorum=sizes[1],
        ack_quorum=sizes[2],
        writers=1,
        readers=1,
        horizon_s=8.0,
        entries_max=20,
        pause_s=0.02,
        storm="ensemble",
    )
    faults = []
    for at_s in (1.5, 2.5, 3.5, 4.5, 5.5, 6.5):
        kind = rng.choice(
            ["read-only bookie", "crash at any await", "broken connection", "two-way partition"]
        )
        for number in rng.sample(range(BOOKIES), rng.randint(2, 3)):
            late_s = round(rng.random() * 0.1, 3)
            faults.append(Fault(at_s + late_s, kind, f"b{number}:3181", 0.6, rng.randrange(1 << 32)))
    faults += [Fault(at_s, "slow store", "", 1.0, number) for number, at_s in enumerate((1.4, 3.4, 5.4))]
    return shape, tuple(sorted(faults, key=lambda fault: fault.at_s))


def play_failing_together(seed: int) -> tuple[Outcome, list[float]]:
    """The outcome, and the times of the ensemble changes."""
    shape, plan = failing_together(seed)
    changed_at: list[float] = []

    def watch(world: World) -> None:
        observe = world.observe

        def note(event: Event) -> None:
            match event:
                case MetadataWritten(before=LedgerMetadata() as old, after=new):
                    if old.last_ensemble.bookies != new.last_ensemble.bookies:
                        changed_at.append(event.at)
                case _:
                    pass
            observe(event)

        world.observe = note  # type: ignore[method-assign]  # of this world only

    return play(seed, shape=shape, plan=plan, prepare=watch), changed_at


@pytest.mark.slow
def test_several_bookies_may_fail_while_the_ensemble_changes() -> None:
    changes = close_together = 0
    for seed in SEEDS:
        outcome, changed_at = play_failing_together(seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
        assert outcome.confirmed > 0
        changes += len(changed_at)
        close_together += sum(later - earlier < CLOSE_S for earlier, later in pairwise(changed_at))
    # With fewer changes these worlds would prove nothing.
    assert changes >= 3 * len(SEEDS)
    assert close_together >= len(SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["overlapping ensemble changes", "ensemble change confirmed early"])
def test_without_the_guard_entries_are_lost(name: str) -> None:
    bug = KNOWN_BUGS[name]
    with bug.patched():
        # Stops at the first seed that finds the bug; far fewer seeds than 300 should be needed.
        violations = (play_failing_together(seed)[0].violation or "" for seed in range(300))
        assert any(text.partition(":")[0] in bug.seen_by for text in violations)
