"""The list of damaged entries: its bound, and when entries leave it."""

from __future__ import annotations

from bookie.damage.damaged_entries import DamagedEntries, DamagedEntry


def test_the_list_is_bounded_and_a_ledger_can_be_dropped() -> None:
    damaged = DamagedEntries(3)
    for location in range(5):
        damaged.add(DamagedEntry(location % 2, 7, location, f"evidence {location}"))
    assert [damaged.evidence(location) for location in (1, 2, 4)] == [None, "evidence 2", "evidence 4"]
    damaged.drop_ledger(1)
    assert len(damaged) == 2
    damaged.keep_only({4, 9})
    assert damaged.evidence(2) is None
    assert "1" in repr(damaged)
    damaged.drop_ledger(0)
    assert not damaged


def test_damage_of_a_ledger_that_was_not_fully_checked_is_kept() -> None:
    damaged = DamagedEntries()
    for location in range(6):
        damaged.add(DamagedEntry(location % 3, 7, location, f"evidence {location}"))
    damaged.keep_only({4}, {2})
    assert [location for location in range(6) if damaged.evidence(location) is not None] == [2, 4, 5]
