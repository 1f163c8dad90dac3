"""The rules of compaction, compared with dumb twins."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.gc.compaction_rules import (
    CompactionConfig,
    CompactionLevel,
    LogUsage,
    choose_bundles,
    due_level,
    usage_share,
)


def log(log_id: int, live: int, total: int = 100) -> LogUsage:
    return LogUsage(log_id, total, live)


def chosen(
    *logs: LogUsage, threshold: float = 0.8, free: int = 10_000, target: int = 0
) -> list[tuple[int, ...]]:
    return choose_bundles(logs, threshold=threshold, log_bytes_max=100, free_bytes=free, target_bytes=target)


def test_the_emptiest_log_comes_first_and_a_full_one_stays() -> None:
    assert chosen(log(1, 79), log(2, 30), log(3, 80), log(4, 0)) == [(4, 2), (1,)]


def test_the_logs_of_a_bundle_fit_into_one_log() -> None:
    assert chosen(log(1, 40), log(2, 40), log(3, 40)) == [(1, 2), (3,)]


def test_a_bundle_fits_on_the_disk() -> None:
    assert chosen(log(1, 50), log(2, 20), log(3, 10), free=20) == [(3,), (2,)]
    assert chosen(log(1, 5), free=0) == []
    assert chosen(log(1, 0), free=0) == [(1,)], "an empty log costs nothing"


def test_small_full_logs_are_merged_if_sizes_count_and_the_result_doubles() -> None:
    small = [log(1, 10, 10), log(2, 10, 10)]
    assert chosen(*small) == []
    assert chosen(*small, target=100) == [(1, 2)]
    assert chosen(log(1, 10, 10), target=100) == [], "rewriting one log saves nothing"
    assert chosen(log(1, 50, 50), log(2, 3, 3), target=100) == [], (
        "the result is less than twice the greatest"
    )


@st.composite
def usages(draw: st.DrawFn) -> list[LogUsage]:
    found = []
    for log_id in range(draw(st.integers(0, 8))):
        total = draw(st.integers(0, 100))
        found.append(LogUsage(log_id, total, draw(st.integers(0, total))))
    return found


@given(usages(), st.sampled_from([0.2, 0.5, 0.8, 1.0]), st.integers(0, 150), st.sampled_from([0, 100]))
def test_chosen_bundles_equal_those_of_the_twin(
    logs: list[LogUsage], threshold: float, free: int, target: int
) -> None:
    bundles = choose_bundles(
        logs, threshold=threshold, log_bytes_max=100, free_bytes=free, target_bytes=target
    )
    by_id = {one.log_id: one for one in logs}
    picked = list(itertools.chain(*bundles))
    assert len(set(picked)) == len(picked)
    assert sorted(picked, key=lambda i: (usage_share(by_id[i], target), i)) == picked, "emptiest first"
    # The twin: take the logs in order, and add them to a bundle until one does not fit.
    twin: list[tuple[int, ...]] = []
    waiting = [one for one in logs if one.live_bytes / max(one.total_bytes, target, 1) < threshold]
    waiting = [one for one in waiting if one.live_bytes <= 100 and one.live_bytes <= free]
    waiting.sort(key=lambda one: (one.live_bytes / max(one.total_bytes, target, 1), one.log_id))
    while waiting:
        count = max(n for n in range(1, len(waiting) + 1) if n == 1 or _live(waiting[:n]) <= min(100, free))
        bundle, waiting = waiting[:count], waiting[count:]
        saves = _live(bundle) < threshold * sum(one.total_bytes for one in bundle)
        merges = count > 1 and all(2 * one.live_bytes <= _live(bundle) for one in bundle)
        if saves or merges:
            twin.append(tuple(one.log_id for one in bundle))
    assert bundles == twin


def _live(logs: list[LogUsage]) -> int:
    return sum(one.live_bytes for one in logs)


CONFIG = CompactionConfig()


def due(
    config: CompactionConfig = CONFIG, *, minor: float = 0, major: float = 0, **flags: bool
) -> CompactionLevel | None:
    return due_level(config, since_minor_s=minor, since_major_s=major, **flags)


def test_major_compaction_comes_first_when_both_are_due() -> None:
    assert due() is None
    assert due(minor=3600) is CompactionLevel.MINOR
    assert due(minor=3600, major=86400) is CompactionLevel.MAJOR
    assert due(minor=3600, major=86400, is_major_suspended=True) is CompactionLevel.MINOR
    assert due(minor=3600, major=86400, is_major_suspended=True, is_minor_suspended=True) is None


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_threshold_or_interval_of_0_or_less_disables_a_level(value: float) -> None:
    for level, other in (("minor", CompactionLevel.MAJOR), ("major", CompactionLevel.MINOR)):
        for key in ("threshold", "interval_s"):
            config = attrs.evolve(CONFIG, **{f"{level}_{key}": value})  # type: ignore[arg-type]
            assert due(config, minor=1e9, major=1e9) is other
            assert due(config, is_major_forced=level == "major", is_minor_forced=level == "minor") is None
    off = CompactionConfig(minor_interval_s=value, major_interval_s=value, may_force_disabled=True)
    assert due(off, minor=1e9, major=1e9) is None
    assert due(off, is_major_forced=True) is CompactionLevel.MAJOR


def test_a_forced_level_is_due_even_if_suspended() -> None:
    assert due(is_major_forced=True) is CompactionLevel.MAJOR
    assert due(is_minor_forced=True) is CompactionLevel.MINOR
    assert due(is_major_forced=True, is_major_suspended=True) is CompactionLevel.MAJOR
