"""Which bookies came back, and which ledgers an absence cannot have touched."""

from __future__ import annotations

from ledger.replication.absences import SETTLE_S, Absences

B1, B2, B3 = "b1", "b2", "b3"
ALL = {B1: 1, B2: 2, B3: 3}  # the sessions in which they are registered


def some(*bookies: str) -> dict[str, int]:
    return {bookie: ALL[bookie] for bookie in bookies}


def test_a_bookie_that_is_back_is_told_once() -> None:
    absences = Absences([B1, B2])
    assert absences.on_bookies(some(B2, B3), 0) == set()
    assert absences.on_bookies(ALL, 1) == {B1}
    assert absences.on_bookies(ALL, 2) == set()
    assert absences.on_bookies(some(B1), 3) == set()
    assert absences.on_bookies(some(B1, B3), 4) == {B3}
    assert absences.on_bookies(ALL, 5) == {B2}


def test_a_ledger_that_was_closed_long_before_the_absence_is_untouched() -> None:
    absences = Absences(ALL)
    absences.on_bookies(ALL, 0)
    absences.on_closed([1, 2], 1, 2)
    assert absences.touched([1, 2, 3]) == [1, 2, 3]
    absences.on_bookies(some(B1, B2), 2 + SETTLE_S)
    assert absences.on_bookies(ALL, 3 + SETTLE_S) == {B3}
    assert absences.touched([1, 2, 3]) == [3]
    assert absences.touched([2, 3]) == [3]
    assert absences.touched([1, 2, 3]) == [1, 3]  # 1 was deleted


def test_a_ledger_that_was_seen_closed_just_before_the_absence_may_be_touched() -> None:
    """Its bookie may have been dead for the time of its session."""
    absences = Absences(ALL)
    absences.on_bookies(ALL, 0)
    absences.on_closed([1], 1, 2)
    absences.on_bookies(some(B1, B2), 1 + SETTLE_S)
    absences.on_bookies(ALL, 2 + SETTLE_S)
    absences.on_bookies(some(B1, B2), 9 * SETTLE_S)
    assert absences.touched([1]) == [1]


def test_what_was_seen_closed_while_a_bookie_was_away_may_be_touched() -> None:
    absences = Absences(ALL)
    absences.on_bookies(some(B1, B2), 0)
    absences.on_closed([1], 1, 2)
    absences.on_bookies(ALL, 5)
    absences.on_closed([2], 0, 6)  # the look began before
    absences.on_bookies(some(B1, B2), 9 * SETTLE_S)
    assert absences.touched([1, 2]) == [1, 2]


def test_what_a_later_look_saw_closed_settles_what_earlier_ones_saw() -> None:
    absences = Absences(ALL)
    absences.on_bookies(ALL, 0)
    absences.on_closed([1], 1, 2)
    absences.on_closed([2], 2 + SETTLE_S, 3 + SETTLE_S)
    absences.on_bookies(some(B1), 4 + SETTLE_S)
    assert absences.touched([1, 2]) == [2]


def test_a_bookie_that_restarted_unseen_was_away() -> None:
    absences = Absences(ALL)
    absences.on_bookies(ALL, 0)
    absences.on_closed([1], 1, 2)
    absences.on_closed([2], 2 + SETTLE_S, 3 + SETTLE_S)
    assert absences.on_bookies(ALL | {B2: 7}, 4 + SETTLE_S) == {B2}
    assert absences.on_bookies(ALL | {B2: 7}, 5 + SETTLE_S) == set()
    assert absences.touched([1, 2]) == [2]


def test_a_bookie_that_returns_in_another_session_returned_once() -> None:
    absences = Absences(ALL)
    absences.on_bookies(ALL, 0)
    absences.on_bookies(some(B1, B2), 1)
    assert absences.on_bookies(some(B1, B2) | {B3: 9}, 2) == {B3}
    assert absences.on_bookies(some(B1, B2) | {B3: 9}, 3) == set()
