"""A crash or a cancellation at every step of a client of a small log, as ``tests.simulation.sweep`` does for
ledgers.

Inside: the small log, the list of sweeps (``SWEEPS``). Not inside: performing the fault (``injector``).
Always: all other faults are off, so that every run is the same up to the step at which the fault strikes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from tests.simulation.faults import KINDS, Fault
from tests.simulation.playing import Outcome, play
from tests.simulation.streams.shape import StreamShape
from tests.simulation.streams.world import StreamWorld
from tests.simulation.sweep import STRUCK, small_world

AT_S = 0.5
HORIZON_S = 3.0

# A writer, a reader, an operator that promotes.
PROMOTING: Mapping[str, Any] = {
    "promotes": True,
    "writers": 1,
    "retention": "",
    "cursors": 0,
    "truncation": 0.0,
}

HEALER = "crash of an operator that heals"
AWAY = Fault(0.1, "read-only bookie", "b1:3181", 3.0, 0)  # so that segments begin on two bookies

# Name of a sweep -> kind and target of its fault, values of the shape.
SWEEPS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "crash of a writer that rolls": ("client crash at any await", "log0-w0", {}),
    "crash of a writer that gives up space": (
        "client crash at any await",
        "log0-w0",
        {"retention": "bytes", "truncation": 1.0},
    ),
    "crash of a writer that stores once": ("client crash at any await", "log0-w0", {"mode": "once"}),
    "cancellation of a writer": ("cancellation", "log0-w0", {"mode": "conditional"}),
    "crash of a reader that commits": ("client crash at any await", "log0-r0", {}),
    "crash of an operator": ("client crash at any await", "log0-o0", {"deletes": True}),
    "cancellation of an operator": ("cancellation", "log0-o0", {"deletes": True}),
    HEALER: ("client crash at any await", "log0-o0", {"heals": True, "horizon_s": 8.0}),
    "crash of a promoter": ("client crash at any await", "log0-o0", PROMOTING),
    "crash of a writer whose log is promoted": ("client crash at any await", "log0-w0", PROMOTING),
    "crash of a writer of large records": ("client crash at any await", "log0-w0", {"is_large": True}),
}


def small_log(seed: int, values: Mapping[str, Any]) -> StreamShape:
    """One log with two writers, a reader with a cursor, an operator; segments of a few records."""
    base = attrs.asdict(small_world(seed), recurse=False) | {"horizon_s": HORIZON_S, "logs": 1}
    small = StreamShape(
        **base, segment_bytes_max=600, segment_age_s_max=0.3, retention="cursors", cursors=1, operators=1
    )
    return attrs.evolve(small, **values)


def sweep(name: str, seed: int, *, first: int = 1, stride: int = 1) -> Iterator[tuple[int, Outcome]]:
    """Play the small log with the fault at step ``first``, then at later ones; yield step and outcome.

    Args:
        stride: From one struck step to the next.
    """
    kind, target, values = SWEEPS[name]
    shape = small_log(seed, values)
    switches = dict.fromkeys(KINDS, False)
    step = first
    while True:
        at_s = AWAY.at_s + AWAY.seconds if shape.heals else AT_S
        plan: tuple[Fault, ...] = (Fault(at_s, kind, target, 0.3, 0, step),)
        if shape.heals:
            plan = (AWAY, *plan)
        outcome = play(seed, shape=shape, switches=switches, plan=plan, world_type=StreamWorld)
        if not outcome.counts.get(STRUCK):
            return
        yield step, outcome
        step += stride
