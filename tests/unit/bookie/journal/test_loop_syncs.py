"""When the loop syncs a group itself: lone small groups of a fast disk, and no other."""

from __future__ import annotations

from bookie.journal.journal import LONE_BYTES_MAX, LoopSyncs
from ledger.runtime.loop_calls import CALLS_FIRST, CALLS_PER_MS


def trusted() -> LoopSyncs:
    """A rule that has seen enough fast groups."""
    rule = LoopSyncs()
    for _ in range(CALLS_FIRST):
        assert not rule.may_sync, "a disk is known before the loop waits for it"
        rule.synced(1, 1000, 0.0)
    assert rule.may_sync
    return rule


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


def test_groups_of_the_thread_tell_of_the_disk_too() -> None:
    rule = trusted()
    rule.synced(2, 1000, 0.1)
    for _ in range(100 * CALLS_PER_MS):
        assert not rule.may_sync
        rule.synced(1, 1000, 0.0)
    assert rule.may_sync
