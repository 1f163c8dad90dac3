"""Choosing bookies and ordering replicas, against twins that compute the result from all past events."""

from __future__ import annotations

import itertools
import random
import statistics

from hypothesis import given
from hypothesis import strategies as st

from ledger.placement.bookie_health import SUSPECT_S, BookieHealth
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.random_policy import choose_ensemble, choose_replacements
from ledger.placement.spread_policy import acks_span
from ledger.placement.topology import DEFAULT_REGION_RACK, Topology
from ledger.placement.weights import draw_order, weights_of_free_bytes
from ledger.read.replica_rules import reading_order

NAMES = "abcdef"
some = st.sets(st.sampled_from(NAMES))


@given(some, some, st.integers(1, 6), st.integers(0, 1000))
def test_a_random_ensemble_takes_suspects_only_to_fill_up(
    writable: set[str], suspects: set[str], size: int, seed: int
) -> None:
    if len(writable) < size:
        return
    chosen = choose_ensemble(writable, size, random.Random(seed), suspects=suspects)
    assert len(set(chosen)) == size
    assert set(chosen) <= writable
    assert len(set(chosen) - suspects) == min(size, len(writable - suspects))


@given(some, some, st.permutations(NAMES), st.sets(st.integers(0, 2)), st.integers(0, 1000))
def test_random_replacements_are_new_and_unsuspected_and_as_many_as_possible(
    writable: set[str], suspects: set[str], order: list[str], failed: set[int], seed: int
) -> None:
    ensemble = order[:3]
    chosen = choose_replacements(ensemble, failed, writable, random.Random(seed), suspects=suspects)
    spare = writable - set(ensemble)
    assert chosen.keys() <= failed
    assert len(chosen) == len(set(chosen.values())) == min(len(failed), len(spare))
    assert set(chosen.values()) <= spare
    assert len(set(chosen.values()) - suspects) == min(len(chosen), len(spare - suspects))


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1000)), st.floats(1, 5), st.integers(0, 1000))
def test_weights_are_free_bytes_between_the_smallest_and_a_multiple_of_the_median(
    free: dict[str, int], multiple: float, seed: int
) -> None:
    weights = weights_of_free_bytes(free, multiple)
    assert weights.keys() == free.keys()
    smallest = min((size for size in free.values() if size), default=None)
    for bookie, size in free.items():
        if smallest is None:
            assert weights[bookie] == 1
        else:
            ceiling = multiple * statistics.median([each or smallest for each in free.values()])
            assert weights[bookie] == min(size or smallest, ceiling) > 0
    assert sorted(draw_order(free, weights, random.Random(seed))) == sorted(free)


def test_the_first_of_a_weighted_order_is_drawn_in_proportion_to_the_weights() -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}  # "d" is unknown and counts as the median, 2
    lots = [name for name, weight in {**weights, "d": 2.0}.items() for _ in range(int(weight))]
    rng = random.Random(7)
    first = [draw_order("abcd", weights, rng)[0] for _ in range(20_000)]
    for name in "abcd":
        assert abs(first.count(name) / 20_000 - lots.count(name) / len(lots)) < 0.015


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["failed", "slow", "errors"]),
            st.sampled_from("ab"),
            st.integers(1, 6),
            st.integers(0, 50),
        ),
        max_size=30,
    )
)
def test_health_equals_that_computed_from_all_past_events(events: list[tuple[str, str, int, int]]) -> None:
    config = PlacementConfig(quarantine_errors_min=10, quarantine_interval_s=60, quarantine_s=100)
    health = BookieHealth(config, random.Random(1))
    past: list[tuple[str, str, int, int]] = []
    quarantined: dict[str, int] = {}  # the start of each quarantine
    errors: list[tuple[str, int]] = []  # since the last quarantine: bookie, interval
    now = 0
    for kind, bookie, count, pause in events:
        now += pause
        past.append((kind, bookie, count, now))
        if kind == "failed":
            health.report_failure(bookie, now)
        elif kind == "slow":
            health.report_slow(bookie, now)
        else:
            is_quarantined = health.report_errors(bookie, count, now)
            expected = False
            if bookie not in quarantined or now >= quarantined[bookie] + 100:
                errors += [(bookie, now // 60)] * count
                expected = errors.count((bookie, now // 60)) >= 10
            if expected:
                quarantined[bookie] = now
                errors = [each for each in errors if each[0] != bookie]
            assert is_quarantined == expected
        for which, seen in (("failed", health.suspects(now)), ("slow", health.slow(now))):
            assert set(seen) == {each for done, each, _, at in past if done == which and now < at + SUSPECT_S}
        assert set(health.quarantined(now)) == {
            each for each, since in quarantined.items() if now < since + 100
        }


@given(st.permutations(NAMES), st.integers(-20, 20), some, some, some, some, st.sets(st.sampled_from(NAMES)))
def test_the_reading_order_is_the_circle_sorted_by_group(
    bookies: list[str],
    start: int,
    suspects: set[str],
    readonly: set[str],
    slow: set[str],
    writable: set[str],
    far: set[str],
) -> None:
    order = reading_order(
        bookies,
        start=start,
        suspects=suspects,
        readonly=readonly,
        slow=slow,
        writable=writable,
        distance=lambda bookie: int(bookie in far),
    )
    circle = [bookies[(start + i) % len(bookies)] for i in range(len(bookies))]
    by_hand: list[str] = []
    for away, unreliable, read_only, distant in itertools.product([False, True], repeat=4):
        by_hand += [
            bookie
            for bookie in circle
            if (bookie not in writable | readonly) == away
            and (bookie in suspects | slow) == unreliable
            and (bookie in readonly) == read_only
            and (bookie in far) == distant
        ]
    assert order == by_hand


@given(
    st.lists(st.sampled_from(["/eu/1", "/eu/2", "/us/1", None]), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 5),
    st.booleans(),
)
def test_acks_span_as_many_places_as_counted(
    places: list[str | None], racks_min: int, write_quorum: int, by_region: bool
) -> None:
    names = [f"b{number}" for number in range(len(places))]
    topology = Topology(
        {name: place for name, place in zip(names, places, strict=True) if place}, DEFAULT_REGION_RACK
    )
    config = PlacementConfig(
        policy=PlacementPolicy.REGION_AWARE,
        racks_min=racks_min,
        regions=("eu", "us") if by_region else (),
    )
    found = {place or DEFAULT_REGION_RACK for place in places}
    enough = len(found) >= min(racks_min, write_quorum)
    if by_region:
        enough = enough and len({place.split("/")[1] for place in found}) >= 2
    assert acks_span(names, topology, config, write_quorum) == enough
