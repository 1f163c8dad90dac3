"""Applying an ensemble change to each kind of metadata that may be stored."""

from __future__ import annotations

import itertools

import attrs
import pytest

from ledger.errors import LedgerMetadataError
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.write.ensemble_change import EnsembleChange, taken_over

OPEN = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    ensembles=(Ensemble(0, ("a", "b", "c")), Ensemble(10, ("a", "b", "d"))),
)
CHANGE = EnsembleChange(15, {"b": "x"})


def test_the_new_ensemble_begins_after_the_last_confirmed_entry_and_keeps_the_other_bookies() -> None:
    changed = CHANGE.apply(OPEN)
    assert changed is not None
    assert changed.ensembles == (*OPEN.ensembles, Ensemble(15, ("a", "x", "d")))


def test_an_ensemble_without_confirmed_entries_is_replaced() -> None:
    changed = EnsembleChange(10, {"b": "x", "a": "y"}).apply(OPEN)
    assert changed is not None
    assert changed.ensembles == (OPEN.ensembles[0], Ensemble(10, ("y", "x", "d")))


def test_applied_twice_it_changes_the_metadata_once() -> None:
    once = CHANGE.apply(OPEN)
    assert once is not None
    assert CHANGE.apply(once) is None


@pytest.mark.parametrize("taken", [OPEN.in_recovery(), OPEN.closed(14, 3), OPEN.closed(-1, 0)])
def test_a_ledger_that_was_taken_over_is_not_changed(taken: LedgerMetadata) -> None:
    assert CHANGE.apply(taken) is None
    assert taken_over(taken)


def test_the_evidence_names_the_state_or_the_end() -> None:
    assert taken_over(OPEN) is None
    assert "in recovery" in (taken_over(OPEN.in_recovery()) or "")
    assert "at entry 14" in (taken_over(OPEN.closed(14, 3)) or "")


def test_changes_by_other_clients_are_kept() -> None:
    copied = OPEN.with_replicas(0, ("a", "z", "c"))
    changed = CHANGE.apply(attrs.evolve(copied, custom={"by": b"another client"}))
    assert changed is not None
    assert changed.ensembles[0].bookies == ("a", "z", "c")
    assert changed.custom == {"by": b"another client"}


def test_a_bookie_never_gets_two_places() -> None:
    """Another client has put the new bookie into another place: nothing is written, others must be chosen."""
    assert CHANGE.apply(OPEN.with_replicas(10, ("x", "b", "d"))) is None


def test_metadata_that_no_client_writes_are_not_overwritten() -> None:
    CHANGE.check_found(OPEN)
    with pytest.raises(LedgerMetadataError, match="begins at entry 16"):
        CHANGE.check_found(OPEN.with_ensemble(16, ("a", "x", "d")))
    with pytest.raises(LedgerMetadataError, match="bookie 'x' 2 times"):
        OPEN.with_replicas(10, ("x", "b", "x"))
    with pytest.raises(LedgerMetadataError, match="begins at 16 already"):
        CHANGE.apply(OPEN.with_ensemble(16, ("a", "b", "d")))


def test_it_replaces_what_a_loop_over_the_places_replaces() -> None:
    """Every ensemble of three out of five that may be stored, in every state."""
    for bookies in itertools.permutations("abdxy", 3):
        for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
            found = attrs.evolve(OPEN.with_replicas(10, bookies), state=state)
            change = EnsembleChange(15, {"b": "x", "d": "y"})
            by_hand = list(bookies)
            for place, bookie in enumerate(bookies):
                if bookie == "b":
                    by_hand[place] = "x"
                if bookie == "d":
                    by_hand[place] = "y"
            changed = change.apply(found)
            if state is LedgerState.OPEN and tuple(by_hand) != bookies and len(set(by_hand)) == 3:
                assert changed is not None
                assert changed.last_ensemble == Ensemble(15, tuple(by_hand))
            else:
                assert changed is None
