# covers: ledger/metadata.py

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ledger.errors import LedgerMetadataError
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState

OPEN = LedgerMetadata(
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    ensembles=(Ensemble(0, ("b1", "b2", "b3")),),
    password=b"secret",
    ctime_ms=5,
    custom={"application": b"demo"},
    creator_token=77,
    format_version=2,
)


def test_every_change_clears_the_creator_token_and_keeps_the_other_fields() -> None:
    changed = (
        OPEN.in_recovery(),
        OPEN.closed(4, 100),
        OPEN.with_ensemble(5, ("b1", "b4", "b3")),
        OPEN.with_replicas(0, ("b1", "b4", "b3")),
    )
    may_change = {"state", "last_entry_id", "length_bytes", "ensembles"}
    for metadata in changed:
        assert metadata.creator_token == 0
        for name in attrs.fields_dict(LedgerMetadata).keys() - may_change - {"creator_token"}:
            assert getattr(metadata, name) == getattr(OPEN, name)
    assert OPEN.creator_token == 77


def test_a_close_is_final() -> None:
    closed = OPEN.in_recovery().closed(4, 100)
    assert (closed.state, closed.last_entry_id, closed.length_bytes) == (LedgerState.CLOSED, 4, 100)
    assert closed.is_closed
    with pytest.raises(LedgerMetadataError, match="closed at entry 4"):
        closed.in_recovery()
    with pytest.raises(LedgerMetadataError, match="closed at entry 4"):
        closed.closed(5, 100)
    with pytest.raises(LedgerMetadataError, match="closed at entry 4"):
        closed.with_ensemble(5, ("b1", "b4", "b3"))


def test_replicas_may_be_recorded_after_the_close() -> None:
    closed = OPEN.with_ensemble(5, ("b1", "b4", "b3")).closed(9, 100)
    repaired = closed.with_replicas(0, ("b1", "b2", "b5"))
    assert repaired.ensembles == (Ensemble(0, ("b1", "b2", "b5")), Ensemble(5, ("b1", "b4", "b3")))
    assert repaired.is_closed
    with pytest.raises(LedgerMetadataError, match="entry 1"):
        closed.with_replicas(1, ("b1", "b2", "b5"))


def test_an_empty_ledger_may_be_closed() -> None:
    assert OPEN.closed(-1, 0).last_entry_id == -1


@pytest.mark.parametrize(("last_entry_id", "length_bytes"), [(-2, 0), (3, -1)])
def test_an_invalid_end_is_refused(last_entry_id: int, length_bytes: int) -> None:
    with pytest.raises(LedgerMetadataError):
        OPEN.closed(last_entry_id, length_bytes)


def test_an_ensemble_without_entries_is_replaced() -> None:
    first = OPEN.with_ensemble(5, ("b1", "b4", "b3"))
    second = first.with_ensemble(5, ("b1", "b4", "b5"))
    assert second.ensembles == (OPEN.last_ensemble, Ensemble(5, ("b1", "b4", "b5")))
    assert OPEN.with_ensemble(0, ("b4", "b5", "b6")).ensembles == (Ensemble(0, ("b4", "b5", "b6")),)


def test_an_ensemble_never_begins_in_front_of_the_last() -> None:
    with pytest.raises(LedgerMetadataError, match="begins at 5"):
        OPEN.with_ensemble(5, ("b1", "b4", "b3")).with_ensemble(4, ("b1", "b2", "b3"))


def test_an_ensemble_has_the_full_size() -> None:
    with pytest.raises(LedgerMetadataError, match="2 bookies"):
        OPEN.with_ensemble(5, ("b1", "b4"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"ensemble_size": 2},
        {"write_quorum": 4},
        {"ack_quorum": 3},
        {"ack_quorum": 0},
        {"ensembles": ()},
        {"ensembles": (Ensemble(-1, ("b1", "b2", "b3")),)},
        {"ensembles": (Ensemble(5, ("b1", "b2", "b3")), Ensemble(5, ("b1", "b2", "b3")))},
        {"last_entry_id": 3},
        {"length_bytes": 3},
        {"format_version": 4},
        {"state": LedgerState.CLOSED, "last_entry_id": -2},
    ],
)
def test_contradictory_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LedgerMetadataError):
        attrs.evolve(OPEN, **wrong)


def test_a_ledger_without_a_stored_password_accepts_any() -> None:
    assert OPEN.accepts_password(b"secret")
    assert not OPEN.accepts_password(b"guess")
    assert attrs.evolve(OPEN, password=None).accepts_password(b"guess")


def test_the_repr_has_no_password() -> None:
    assert "secret" not in repr(OPEN)


@pytest.mark.parametrize("bookies", [("b1", "b1", "b1"), ("b1", "b2", "b1")])
def test_an_ensemble_that_names_a_bookie_twice_is_refused(bookies: tuple[str, ...]) -> None:
    with pytest.raises(LedgerMetadataError, match=r"names the bookie 'b1' [23] times"):
        attrs.evolve(OPEN, ensembles=(Ensemble(0, bookies),))
    with pytest.raises(LedgerMetadataError, match="different bookies"):
        OPEN.with_ensemble(5, bookies)
    with pytest.raises(LedgerMetadataError, match="different bookies"):
        OPEN.with_replicas(0, bookies)
