"""Making a failing world smaller: fewer faults, fewer clients, less time, the same violation.

Inside: ``minimise``. Not inside: playing (``world``), printing (``__main__``).
Always: the returned world violates the same property as the first one.

Source: Zeller, delta debugging.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tests.simulation.faults import Fault
from tests.simulation.shape import Shape

RUNS_MAX = 150

Fails = Callable[[Shape, tuple[Fault, ...]], bool]


def minimise(shape: Shape, plan: tuple[Fault, ...], fails: Fails) -> tuple[Shape, tuple[Fault, ...]]:
    """Return the smallest shape and plan found that still fail, after at most ``RUNS_MAX`` worlds.

    Args:
        fails: Plays a world; True if it violates the same property as the first one.
    """
    left = RUNS_MAX

    def still(candidate: Shape, faults: tuple[Fault, ...]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate, faults)

    size = max(1, len(plan) // 2)
    while plan and size:
        start = 0
        while start < len(plan):
            fewer = plan[:start] + plan[start + size :]
            if still(shape, fewer):
                plan = fewer
            else:
                start += size
        size //= 2
    for change in (
        {"storm": ""},
        {"has_delays": False},
        {"readers": 0},
        {"writers": 1},
        {"bookies": shape.ensemble_size},
        {"truncation": 0.0},
        {"password": b""},
        {"add_version": 2},
        {"entries_max": 2},
    ):
        smaller = attrs.evolve(shape, **change)
        if smaller != shape and still(smaller, plan):
            shape = smaller
    for share in (0.5, 0.7, 0.85):
        shorter = attrs.evolve(shape, horizon_s=shape.horizon_s * share)
        faults = tuple(fault for fault in plan if fault.at_s < shorter.horizon_s)
        if still(shorter, faults):
            return shorter, faults
    return shape, plan
