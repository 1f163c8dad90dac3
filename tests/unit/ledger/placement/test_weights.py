from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ledger.placement.weights import draw_order, weights_of_free_bytes

GIB = 1 << 30


def test_weights_are_free_bytes_up_to_a_multiple_of_the_median() -> None:
    assert weights_of_free_bytes({"a": GIB, "b": 2 * GIB, "c": 100 * GIB}, 3) == {
        "a": GIB,
        "b": 2 * GIB,
        "c": 6 * GIB,
    }


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle() -> None:
    free = {"b1": 40, "b2": 10, "b3": 1000, "b4": 20}
    assert weights_of_free_bytes(free, multiple_max=2.0) == {"b1": 40.0, "b2": 10.0, "b3": 60.0, "b4": 20.0}
    assert weights_of_free_bytes({"b1": 7}, multiple_max=1.0) == {"b1": 7.0}


def test_a_full_bookie_counts_as_the_smallest() -> None:
    assert weights_of_free_bytes({"a": 0, "b": 5, "c": 7}, 3)["a"] == 5
    assert set(weights_of_free_bytes({"a": 0, "b": 0}, 3).values()) == {1.0}


def test_probabilities_follow_the_weights() -> None:
    rng = random.Random(1)
    first = Counter(draw_order({"a", "b", "c"}, {"a": 1.0, "b": 2.0, "c": 5.0}, rng)[0] for _ in range(8000))
    assert abs(first["a"] - 1000) < 150
    assert abs(first["b"] - 2000) < 200
    assert abs(first["c"] - 5000) < 250


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10**15), min_size=1), st.integers(0, 99))
def test_each_bookie_is_drawn_once_and_a_seed_repeats_the_order(
    free_bytes: dict[str, int], seed: int
) -> None:
    weights = weights_of_free_bytes(free_bytes, 3)
    assert all(weight > 0 for weight in weights.values())
    bookies = {*free_bytes, "new"}
    order = draw_order(bookies, weights, random.Random(seed))
    assert sorted(order) == sorted(bookies)
    assert order == draw_order(sorted(bookies, reverse=True), weights, random.Random(seed))
