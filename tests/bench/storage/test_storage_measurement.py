"""Bars of measurements, free disk space, memory growth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.storage.disk_space import NoSpaceError, check_space
from tests.bench.storage.measurement import Bar, Measurement
from tests.bench.storage.soak import Sample, memory_growth_bytes


def measured(value: float, bar: Bar, floor: float | None = None) -> Measurement:
    return Measurement(part="reads", value=value, unit="reads/s", bar=bar, floor=floor)


@pytest.mark.parametrize(("value", "met"), [(99_999.0, False), (100_000.0, True)])
def test_a_rate_must_reach_its_bar(value: float, met: bool) -> None:
    assert measured(value, Bar(least=100_000)).is_met is met


@pytest.mark.parametrize(("value", "met"), [(10.0, True), (10.1, False)])
def test_a_time_must_stay_below_its_bar(value: float, met: bool) -> None:
    assert measured(value, Bar(most=10)).is_met is met


@pytest.mark.parametrize(("floor", "met"), [(20.0, True), (20.1, False), (None, False)])
def test_a_bar_of_a_ratio_needs_a_floor(floor: float | None, met: bool) -> None:
    assert measured(10.0, Bar(least=0.5, of_ratio=True), floor).is_met is met


def test_the_document_names_value_floor_ratio_and_bar() -> None:
    document = measured(10.0, Bar(least=0.5, of_ratio=True), 16.0).document()
    assert document["ratio_to_floor"] == 0.625
    assert document["bar"] == "at least 0.5 of the floor"
    assert document["met"] is True


def test_a_disk_without_space_is_reported_before_anything_is_written(tmp_path: Path) -> None:
    check_space(tmp_path, 0)
    with pytest.raises(NoSpaceError, match="XDG_CACHE_HOME"):
        check_space(tmp_path, 1 << 60)


def samples(*rss_mib: int) -> list[Sample]:
    return [Sample(number, mib << 20, 0) for number, mib in enumerate(rss_mib)]


def test_memory_that_fills_early_and_then_stays_does_not_grow() -> None:
    assert memory_growth_bytes(samples(50, 200, 200, 190, 199, 180)) == 0


def test_growth_of_memory_after_the_first_third_is_measured() -> None:
    assert memory_growth_bytes(samples(50, 200, 210, 220, 230, 250)) == 50 << 20
    assert memory_growth_bytes(samples(50)) == 0
