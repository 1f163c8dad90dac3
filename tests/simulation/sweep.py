"""A fault at every await and every disk step of a small world.

The fault strikes at the first step, in the next run at the second, and so on, until the world ends before the
fault strikes.

Inside: the small world, the list of sweeps (``SWEEPS``), one sweep. Not inside: performing the fault
(``injector``).
Always: all other faults are off, so that every run is the same up to the step at which the fault strikes.

Source: SQLite's tests of I/O errors and power cuts; httpcore's of cancellation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from dlog.testing.platter import LOSSES
from ledger.digest import DigestType
from tests.simulation.faults import KINDS, Fault, enabled
from tests.simulation.playing import Outcome, play
from tests.simulation.shape import Shape

STRUCK = "struck at a step"  # counted by the injector
AT_S = 0.05
HORIZON_S = 2.5

RESTARTING = " that starts"  # the bookie is killed first; the fault strikes its next process

# Name of a sweep -> kind and target of its fault.
SWEEPS: Mapping[str, tuple[str, str]] = {
    "crash of a bookie": ("crash at any await", "b1:3181"),
    "crash of a writer": ("client crash at any await", "log0-w0"),
    "crash of a reader": ("client crash at any await", "log0-r0"),
    "cancellation of a writer": ("cancellation", "log0-w0"),
    "cancellation of a reader": ("cancellation", "log0-r0"),
    "power cut": ("power cut at a disk step", "b1:3181"),
    "kill between disk steps": ("kill at a disk step", "b1:3181"),
    "crash of a bookie" + RESTARTING: ("crash at any await", "b1:3181"),
    "power cut of a bookie" + RESTARTING: ("power cut at a disk step", "b1:3181"),
}


def small_world(seed: int) -> Shape:
    """Three bookies, two writers that take a log over from each other, one reader, a few seconds."""
    shape = Shape.draw(seed, enabled({}), bookies=3)
    return attrs.evolve(
        shape,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        writers=2,
        readers=1,
        horizon_s=HORIZON_S,
        entries_max=2,
        pause_s=0.02,
        truncation=0.0,
        digest_type=DigestType.CRC32C,
        flush_interval_s=0.7,
        gc_interval_s=1.0,
        losses=LOSSES,
        has_delays=False,
        storm="",
    )


def sweep(name: str, seed: int, *, first: int = 1, stride: int = 1) -> Iterator[tuple[int, Outcome]]:
    """Play the small world with the fault at step ``first``, then at later ones; yield step and outcome.

    Args:
        stride: From one struck step to the next.
    """
    kind, target = SWEEPS[name]
    shape = small_world(seed)
    switches = dict.fromkeys(KINDS, False)
    step = first
    while True:
        plan: tuple[Fault, ...] = (Fault(AT_S, kind, target, 0.3, 0, step),)
        if name.endswith(RESTARTING):
            death_s = HORIZON_S / 2
            plan = (
                Fault(death_s, "power cut", target, 0.3, 0),
                Fault(death_s + 0.1, kind, target, 0.3, 0, step),
            )
        outcome = play(seed, shape=shape, switches=switches, plan=plan)
        if not outcome.counts.get(STRUCK):
            return
        yield step, outcome
        step += stride
