from __future__ import annotations

import random

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
from ledger.placement.bookie_health import BookieHealth, counts_as_error
from ledger.placement.config import PlacementConfig


def make(**settings: float) -> BookieHealth:
    config = PlacementConfig(quarantine_errors_min=10, quarantine_interval_s=60, quarantine_s=100, **settings)  # type: ignore[arg-type]
    return BookieHealth(config, random.Random(1))


def test_failures_and_slowness_are_forgotten_after_a_minute() -> None:
    health = make()
    health.report_failure("b1", 0)
    health.report_slow("b2", 30)
    assert (set(health.suspects(59)), set(health.slow(59))) == ({"b1"}, {"b2"})
    assert (set(health.suspects(60)), set(health.slow(60))) == (set(), {"b2"})
    assert set(health.slow(90)) == set()


def test_many_errors_in_one_interval_quarantine_for_a_while() -> None:
    health = make()
    assert not health.report_errors("b1", 9, 0)
    assert not health.report_errors("b2", 9, 59)
    assert health.report_errors("b1", 1, 59)
    assert set(health.quarantined(100)) == {"b1"}
    assert not health.report_errors("b1", 1000, 100)
    assert set(health.quarantined(159)) == set()


def test_errors_of_an_earlier_interval_do_not_count() -> None:
    health = make()
    health.report_errors("b1", 9, 59)
    assert not health.report_errors("b1", 9, 60)
    assert set(health.quarantined(60)) == set()


def test_a_ratio_below_one_quarantines_only_a_part() -> None:
    health = make(quarantine_ratio=0.5)
    quarantined = [health.report_errors(f"b{number}", 10, 0) for number in range(1000)]
    assert 400 < sum(quarantined) < 600
    assert not any(make(quarantine_ratio=0.0).report_errors("b1", 1000, at) for at in range(100))


def test_quarantine_can_be_turned_off() -> None:
    health = BookieHealth(PlacementConfig(quarantine_errors_min=None), random.Random(1))
    assert not health.report_errors("b1", 10**6, 0)


def test_correct_replies_and_unavailability_are_no_errors() -> None:
    correct = [
        NoEntryRefusal("b", 1),
        NoLedgerRefusal("b", 1),
        ReadOnlyRefusal("b", 1),
        BookieUnavailableError("b", ""),
    ]
    errors = [
        BookieTimeoutError("b", ""),
        IoErrorRefusal("b", 1),
        TooManyRequestsRefusal("b", 1),
        CorruptEntryError(1, 1, "digest"),
    ]
    assert [counts_as_error(error) for error in [*correct, *errors]] == [False] * 4 + [True] * 4
