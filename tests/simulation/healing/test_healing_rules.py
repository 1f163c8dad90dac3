"""The rules of auto-recovery, called with good and bad events."""

from __future__ import annotations

import attrs

from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from tests.simulation.healing import rules
from tests.simulation.healing.rules import CookieDeleted, HealedState, Unmarked, WorkerChanged
from tests.simulation.history import Accepted, FinalState, History, Replica, Submitted

OPEN = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    ensembles=(Ensemble(0, ("a", "b", "c")), Ensemble(2, ("a", "b", "d"))),
)
CLOSED = OPEN.closed(2, 3)
MOVED = CLOSED.with_replicas(0, ["e", "b", "c"])


def changed(before: LedgerMetadata, after: LedgerMetadata, **values: object) -> WorkerChanged:
    event = WorkerChanged(10.0, "w", 7, before, after, 5.0, ())
    return attrs.evolve(event, **values)  # type: ignore[arg-type]  # the fields are of several types


def healed(holders: str, *, payload: bytes = b"x", **values: object) -> tuple[HealedState, History]:
    history = History()
    replicas = {}
    for entry_id in range(3):
        history.note(Submitted(1.0, "w", (7, entry_id), b"x"))
        replicas[7, entry_id] = {name: Replica(payload, 1, -1) for name in holders}
    state = FinalState({7: MOVED}, {}, replicas, {}, frozenset(), {}, ())
    found = HealedState(state, frozenset(), (), ())
    return attrs.evolve(found, **values), history  # type: ignore[arg-type]


def test_a_move_without_all_its_entries_is_a_violation() -> None:
    assert rules.a_fragment_is_copied_before_its_metadata_change(changed(CLOSED, MOVED)) is None
    event = changed(CLOSED, MOVED, lacking=("entry 1 on e",))
    assert "without entry 1 on e" in str(rules.a_fragment_is_copied_before_its_metadata_change(event))


def test_a_move_without_the_lock_is_a_violation() -> None:
    assert rules.metadata_change_only_under_the_lock(changed(CLOSED, MOVED)) is None
    assert rules.metadata_change_only_under_the_lock(changed(CLOSED, MOVED, locked_at=None)) is not None
    recovering = attrs.evolve(OPEN, state=LedgerState.IN_RECOVERY)
    closing = changed(recovering, CLOSED, locked_at=None)  # any reader may recover a ledger
    assert rules.metadata_change_only_under_the_lock(closing) is None


def test_a_changed_open_end_is_a_violation() -> None:
    final = OPEN.with_replicas(0, ["e", "b", "c"])
    end = OPEN.with_replicas(2, ["e", "b", "d"])
    assert rules.the_open_end_is_left_to_its_writer(changed(OPEN, final)) is None
    assert rules.the_open_end_is_left_to_its_writer(changed(OPEN, end)) is not None
    assert rules.the_open_end_is_left_to_its_writer(changed(CLOSED, MOVED)) is None


def test_a_close_without_another_bookie_is_a_violation() -> None:
    recovering = attrs.evolve(OPEN, state=LedgerState.IN_RECOVERY)
    rule = rules.an_open_ledger_is_closed_only_for_a_replacement
    assert rule(changed(OPEN, recovering, spares=frozenset({"e"}))) is None
    assert rule(changed(OPEN, recovering)) is not None
    assert rule(changed(recovering, CLOSED)) is None


def test_a_copy_of_an_entry_that_was_not_confirmed_is_a_violation() -> None:
    history = History()
    history.confirmed_lac[7] = 1
    copy = Accepted(2.0, "a", (7, 1), True, 0, False, False, None)
    assert rules.only_confirmed_entries_are_copied(copy, history) is None
    above = attrs.evolve(copy, place=(7, 2))
    assert rules.only_confirmed_entries_are_copied(above, history) is not None


def test_a_close_before_the_grace_is_over_is_a_violation() -> None:
    recovering = attrs.evolve(OPEN, state=LedgerState.IN_RECOVERY)
    rule, event = rules.an_open_ledger_is_closed_only_after_the_grace, changed(OPEN, recovering)
    assert rule(event, 5.0) is None
    assert rule(event, 6.0) is not None
    assert rule(attrs.evolve(event, locked_at=None), 1.0) is not None
    assert rule(changed(OPEN, OPEN.with_replicas(0, ["e", "b", "c"])), 6.0) is None


def test_a_mark_that_goes_before_the_lost_bookie_is_a_violation() -> None:
    left = Unmarked(10.0, "w", 7, frozenset("abc"), frozenset("a"))
    assert rules.a_mark_goes_only_after_the_lost_bookie(left) is not None
    assert rules.a_mark_goes_only_after_the_lost_bookie(attrs.evolve(left, gone=frozenset("e"))) is None


def test_a_cookie_that_goes_before_its_ledgers_is_a_violation() -> None:
    assert rules.a_cookie_goes_only_without_ledgers(CookieDeleted("a", ())) is None
    assert rules.a_cookie_goes_only_without_ledgers(CookieDeleted("a", (7,))) is not None


def test_the_end_of_a_repair_is_judged_by_replicas_marks_and_locks() -> None:
    def complaints(state: HealedState, history: History) -> list[str]:
        return [rule.__name__ for rule in rules.HEALED_RULES if rule(state, history) is not None]

    assert complaints(*healed("abcde")) == []
    assert complaints(*healed("abcd")) == ["every_replica_is_where_the_metadata_say"]
    assert complaints(*healed("abcde", payload=b"y")) == ["every_replica_is_where_the_metadata_say"]
    assert complaints(*healed("abcde", lost=frozenset("b"))) == ["no_ledger_names_a_lost_bookie"]
    assert complaints(*healed("abcde", marks=("m",))) == ["no_mark_is_left"]
    assert complaints(*healed("abcde", locks=("l",))) == ["no_lock_is_left"]
