"""The choice of backups to keep."""

from __future__ import annotations

import datetime

import pytest

from dlog.backup.format import ManifestName
from dlog.backup.pruning import check_keep, kept_by, thinned

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS


def names(*ages_ms: int) -> list[ManifestName]:
    return sorted(ManifestName(NOW_MS - each) for each in ages_ms)


def test_a_number_keeps_the_newest() -> None:
    assert kept_by(names(3, 2, 1), 2, NOW_MS) == names(2, 1)
    assert kept_by(names(1), 5, NOW_MS) == names(1)


def test_an_age_keeps_each_moment_of_that_time_and_so_the_one_before_it() -> None:
    keep = datetime.timedelta(hours=2)
    ages = [HOUR_MS * each for each in (9, 3, 1, 0)]
    assert kept_by(names(*ages), keep, NOW_MS) == names(*ages[1:])
    assert kept_by(names(9 * HOUR_MS), keep, NOW_MS) == names(
        9 * HOUR_MS
    )  # the newest stays, whatever its age


@pytest.mark.parametrize("keep", [0, -1, True, datetime.timedelta(0), datetime.timedelta(-1)])
def test_nothing_can_be_kept_by_what_is_not_positive(keep: int | datetime.timedelta) -> None:
    with pytest.raises(ValueError, match="positive"):
        check_keep(keep)


def test_a_replica_keeps_fewer_of_each_hour_the_older_they_are() -> None:
    recent = [1000 * each for each in range(1, 11)]
    minutes = [2 * HOUR_MS + 1000 * each for each in range(120)]
    hours = [30 * HOUR_MS + 60_000 * each for each in range(120)]
    kept = thinned(names(*recent, *minutes, *hours), NOW_MS)
    assert [each for each in kept if NOW_MS - each.cut_ms <= HOUR_MS] == names(*recent)
    assert 2 <= sum(HOUR_MS < NOW_MS - each.cut_ms < 24 * HOUR_MS for each in kept) <= 3
    assert 2 <= sum(NOW_MS - each.cut_ms >= 30 * HOUR_MS for each in kept) <= 3
    assert thinned(kept, NOW_MS) == kept
