"""When the loop syncs a group itself: lone small groups of a fast disk, and no other."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from bookie.journal.loop_syncs import (
    FAST_GROUPS_FIRST,
    FAST_GROUPS_MAX,
    FAST_GROUPS_PER_MS,
    FAST_S,
    LONE_BYTES_MAX,
    LoopSyncs,
)


def trusted() -> LoopSyncs:
    """A rule that has seen enough fast groups."""
    rule = LoopSyncs()
    for _ in range(FAST_GROUPS_FIRST):
        rule.synced(1, 1000, FAST_S)
    assert rule.may_sync
    return rule


def fast_groups_until_trusted(rule: LoopSyncs) -> int:
    count = 0
    while not rule.may_sync:
        rule.synced(1, 1000, 0.0)
        count += 1
    return count


def test_a_disk_is_known_before_the_loop_waits_for_it() -> None:
    assert fast_groups_until_trusted(LoopSyncs()) == FAST_GROUPS_FIRST


def test_only_one_small_batch_is_a_lone_group() -> None:
    assert LoopSyncs.is_lone(1, LONE_BYTES_MAX)
    assert not LoopSyncs.is_lone(2, 100)
    assert not LoopSyncs.is_lone(1, LONE_BYTES_MAX + 1)


def test_after_a_group_that_was_not_alone_the_next_one_is_left_to_the_thread() -> None:
    rule = trusted()
    rule.synced(2, 1000, 0.0)
    assert not rule.may_sync
    rule.synced(1, 1000, 0.0)
    assert rule.may_sync


def test_a_stall_holds_the_loop_once_and_the_longer_it_was_the_longer_the_loop_stays_away() -> None:
    for took_ms in (2, 10, 100):
        rule = trusted()
        rule.synced(1, 1000, took_ms / 1000)
        assert fast_groups_until_trusted(rule) == FAST_GROUPS_PER_MS * took_ms
    rule = trusted()
    rule.synced(1, 1000, 60.0)
    assert fast_groups_until_trusted(rule) == FAST_GROUPS_MAX


@given(st.lists(st.one_of(st.just(0.0002), st.floats(0, 0.2)), max_size=400))
def test_the_loop_waits_too_long_at_most_once_for_many_groups_of_the_thread(durations: list[float]) -> None:
    rule = trusted()
    owed = 0  # groups that the thread must sync before the loop may sync one
    for took_s in durations:
        if rule.may_sync:
            assert owed == 0
        elif took_s <= FAST_S:
            owed = max(0, owed - 1)
        if took_s > FAST_S:
            owed = max(owed, min(FAST_GROUPS_MAX, FAST_GROUPS_PER_MS * math.ceil(took_s * 1000)))
        rule.synced(1, 1000, took_s)
        assert rule.may_sync is (owed == 0)
