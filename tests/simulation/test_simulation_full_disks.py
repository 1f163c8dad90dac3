"""Worlds whose disks become full at some write, and are freed in small steps, with a start after each.

Acknowledged entries are there afterwards, and a bookie's entry logs are no larger than those of a new one.
"""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest

from bookie.journal import replay
from tests.effort import sampled
from tests.simulation.faults import KINDS
from tests.simulation.playing import Outcome, play

SEEDS = range(24)
FULL = "disk freed in small steps"
SWITCHES = {name: name == FULL for name in KINDS}
PIECE_BYTES = 2000  # else these journals were one piece, and no start would flush in pieces


def play_full(seed: int, *, beside: bool = False) -> Outcome:
    """``beside``: with all other faults."""
    with mock.patch.object(replay, "PIECE_BYTES", PIECE_BYTES):
        return play(seed, switches={FULL: True} if beside else SWITCHES)


@pytest.mark.slow
def test_disks_that_fill_at_any_write_and_are_freed_in_small_steps_lose_and_leave_nothing() -> None:
    counts: Counter[str] = Counter()
    for seed in sampled(SEEDS, 4):
        outcome = play_full(seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
        counts.update(outcome.counts)
    for what in (FULL, "disk full", "start on a full disk", "space given back", "space again"):
        assert counts[what], f"no world has: {what}"


_FRAMES = 500  # of a sweep's count, for one world


def sweep(seed: int, count: int) -> list[str]:
    """Worlds with this fault, and every second one with all others beside it; the reports of what failed."""
    reports = []
    worlds = max(1, count // _FRAMES)
    for number in range(seed * worlds, (seed + 1) * worlds):
        outcome = play_full(number, beside=number % 2 == 1)
        if outcome.violation is not None:
            call = f"play_full({number}, beside={number % 2 == 1})"
            reports.append(f"{__name__}.{call}: {outcome.violation}")
    return reports
