"""A fault at each await and each disk step of a small world."""

from __future__ import annotations

import pytest

from tests.simulation.sweep import SWEEPS, sweep

STEPS_MIN = {"crash of a reader": 10, "cancellation of a reader": 10}  # of the others: 30


@pytest.mark.parametrize("name", list(SWEEPS))
def test_a_fault_may_strike_now_and_then(name: str) -> None:
    struck = [outcome.violation for _, outcome in sweep(name, 1, stride=29)]
    assert struck
    assert struck == [None] * len(struck)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SWEEPS))
def test_a_fault_may_strike_at_any_await_and_at_any_step(name: str) -> None:
    last = 0
    for step, outcome in sweep(name, 2):
        assert outcome.violation is None, f"at step {step}: {outcome.violation}"
        last = step
    assert last >= STEPS_MIN.get(name, 30), "hardly anything was struck: the small world is too small"
