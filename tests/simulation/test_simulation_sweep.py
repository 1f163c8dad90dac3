"""A fault at each await and each disk step of a small world."""

from __future__ import annotations

import pytest

from tests.effort import sampled
from tests.simulation.sweep import SWEEPS, sweep

STEPS_MIN = {"crash of a reader": 10, "cancellation of a reader": 10}  # of the other sweeps: 30


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(list(SWEEPS), 3))
def test_a_fault_may_strike_at_every_29th_step(name: str) -> None:
    struck = [outcome.violation for _, outcome in sweep(name, 1, stride=29)]
    assert struck
    assert struck == [None] * len(struck)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SWEEPS))
def test_a_fault_may_strike_at_every_await_and_disk_step(name: str) -> None:
    last = 0
    for step, outcome in sweep(name, 2):
        assert outcome.violation is None, f"at step {step}: {outcome.violation}"
        last = step
    assert last >= STEPS_MIN.get(name, 30), "too few steps were struck: the small world is too small"
