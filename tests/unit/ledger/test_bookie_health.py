from __future__ import annotations

import random

from ledger.bookie_health import BookieHealth, counts_as_error
from ledger.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    CorruptEntryError,
    IoErrorRefusal,
    NoEntryRefusal,
    NoLedgerRefusal,
    ReadOnlyRefusal,
    TooManyRequestsRefusal,
)
from ledger.placement_config import PlacementConfig


def make(**settings: float) -> BookieHealth:
    config = PlacementConfig(quarantine_errors_min=10, quarantine_interval_s=60, quarantine_s=100, **settings)  # type: ignore[arg-type]
    return BookieHealth(config, random.Random(1))


def test_failures_and_slowness_are_forgotten_after_a_minute() -> None:
    health = make()
    health.failed("b1", 0)
    health.was_slow("b2", 30)
    assert (set(health.suspects(59)), set(health.slow(59))) == ({"b1"}, {"b2"})
    assert (set(health.suspects(60)), set(health.slow(60))) == (set(), {"b2"})
    assert set(health.slow(90)) == set()


def test_many_errors_in_one_interval_quarantine_for_a_while() -> None:
    health = make()
    assert not health.count_errors("b1", 9, 0)
    assert not health.count_errors("b2", 9, 59)
    assert health.count_errors("b1", 1, 59)
    assert set(health.quarantined(100)) == {"b1"}
    assert not health.count_errors("b1", 1000, 100)
    assert set(health.quarantined(159)) == set()


def test_errors_of_an_interval_that_is_over_count_no_more() -> None:
    health = make()
    health.count_errors("b1", 9, 59)
    assert not health.count_errors("b1", 9, 60)
    assert set(health.quarantined(60)) == set()


def test_a_ratio_below_one_lets_some_through() -> None:
    health = make(quarantine_ratio=0.5)
    told = [health.count_errors(f"b{number}", 10, 0) for number in range(1000)]
    assert 400 < sum(told) < 600
    assert not any(make(quarantine_ratio=0.0).count_errors("b1", 1000, at) for at in range(100))


def test_quarantine_can_be_left_out() -> None:
    health = BookieHealth(PlacementConfig(quarantine_errors_min=None), random.Random(1))
    assert not health.count_errors("b1", 10**6, 0)


def test_right_answers_and_absence_are_no_errors() -> None:
    right = [
        NoEntryRefusal("b", 1),
        NoLedgerRefusal("b", 1),
        ReadOnlyRefusal("b", 1),
        BookieUnavailableError("b", ""),
    ]
    wrong = [
        BookieTimeoutError("b", ""),
        IoErrorRefusal("b", 1),
        TooManyRequestsRefusal("b", 1),
        CorruptEntryError(1, 1, "digest"),
    ]
    assert [counts_as_error(error) for error in [*right, *wrong]] == [False] * 4 + [True] * 4
