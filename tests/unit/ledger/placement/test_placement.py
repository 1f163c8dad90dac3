# covers: ledger/placement/random_policy.py

from __future__ import annotations

import random

import pytest

from ledger.errors import NotEnoughBookiesError
from ledger.placement.random_policy import choose_ensemble, choose_replacements

BOOKIES = {f"b{number}" for number in range(6)}


def test_an_ensemble_has_different_bookies_and_every_bookie_gets_its_turn() -> None:
    rng = random.Random(1)
    seen = [choose_ensemble(BOOKIES, 3, rng) for _ in range(200)]
    assert all(len(set(ensemble)) == 3 and set(ensemble) <= BOOKIES for ensemble in seen)
    assert {bookie for ensemble in seen for bookie in ensemble} == BOOKIES
    assert {ensemble[0] for ensemble in seen} == BOOKIES


def test_the_same_seed_chooses_the_same_bookies() -> None:
    assert choose_ensemble(BOOKIES, 3, random.Random(7)) == choose_ensemble(
        sorted(BOOKIES, reverse=True), 3, random.Random(7)
    )


def test_suspected_bookies_are_chosen_only_if_there_are_too_few_others() -> None:
    rng = random.Random(1)
    for _ in range(50):
        assert not {"b0", "b1"} & set(choose_ensemble(BOOKIES, 4, rng, suspects={"b0", "b1"}))
        assert set(choose_ensemble(BOOKIES, 6, rng, suspects={"b0", "b1"})) == BOOKIES
        assert choose_replacements(("b2", "b3", "b4"), {0}, BOOKIES, rng, suspects={"b0", "b1"}) == {0: "b5"}


def test_too_few_bookies_are_counted_in_the_error() -> None:
    with pytest.raises(NotEnoughBookiesError, match="3 bookies wanted, 2 writable"):
        choose_ensemble({"b0", "b1"}, 3, random.Random(1))


def test_replacements_come_from_outside_the_ensemble_while_there_are_any() -> None:
    rng = random.Random(1)
    chosen = choose_replacements(("b0", "b1", "b2"), {0, 2}, BOOKIES, rng)
    assert chosen.keys() == {0, 2}
    assert set(chosen.values()) <= {"b3", "b4", "b5"}
    assert len(set(chosen.values())) == 2
    assert choose_replacements(("b0", "b1", "b2"), {0, 2}, {"b0", "b1", "b2", "b3"}, rng) == {0: "b3"}
    assert choose_replacements(("b0", "b1", "b2"), {1}, {"b0", "b1", "b2"}, rng) == {}
