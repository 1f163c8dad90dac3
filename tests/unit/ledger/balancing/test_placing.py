"""A move keeps to the policy of placement: it never makes an ensemble worse."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.balancing.placing import may_replace
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.spread_policy import Adherence, adherence
from ledger.placement.topology import Topology

RACKS = {"a1": "/a", "a2": "/a", "b1": "/b", "b2": "/b", "c1": "/c"}
AWARE = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, racks_min=2)


def may(before: str, after: str, config: PlacementConfig = AWARE) -> bool:
    return may_replace(config, Topology(RACKS), before.split(), after.split(), 3, 2)


def test_a_replica_stays_if_its_move_would_leave_one_rack() -> None:
    assert not may("a1 b1 x1", "a1 a2 x1")
    assert may("a1 a2 b1", "a1 a2 c1")
    assert may("a1 a2 b1", "a1 a2 b2")


def test_an_ensemble_that_violates_the_policy_may_move_and_gets_no_worse() -> None:
    three = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, racks_min=3)
    assert may("a1 a2 b1", "a1 a2 c1", three)
    assert may("a1 a2 b1", "a1 c1 b1", three)
    assert not may("a1 b1 x1", "a1 a2 x1", three)
    assert may("x1 x2 x3", "x1 x2 x4")  # no rack is known, before and after


def test_a_bookie_without_a_known_rack_takes_no_place_of_one_with_a_rack() -> None:
    assert not may("a1 b1 c1", "a1 b1 x1")
    assert may("a1 b1 c1", "a1 b1 x1", PlacementConfig())  # the policy knows no racks


def test_a_bookie_of_a_disallowed_region_gets_nothing() -> None:
    config = PlacementConfig(
        policy=PlacementPolicy.REGION_AWARE, racks_min=1, regions_disallowed=frozenset({"east"})
    )
    topology = Topology({"a": "/west/1", "b": "/west/2", "c": "/east/1", "d": "/west/3"})
    assert not may_replace(config, topology, ["a", "b"], ["a", "c"], 2, 1)
    assert may_replace(config, topology, ["a", "b"], ["a", "d"], 2, 1)


@given(seed=st.integers(0, 2**32), racks_min=st.integers(1, 3), enforce=st.booleans())
def test_an_ensemble_that_adheres_still_does(seed: int, racks_min: int, enforce: bool) -> None:
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(8)]
    topology = Topology({name: f"/r{rng.randrange(4)}" for name in names[:-2]})
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, racks_min=racks_min, enforce_racks=enforce)
    before = rng.sample(names, 4)
    after = before.copy()
    after[rng.randrange(4)] = rng.choice([name for name in names if name not in before])
    if may_replace(config, topology, before, after, 3, 2):
        was = adherence(before, topology, config, 3, 2)
        assert was is Adherence.FAILS or adherence(after, topology, config, 3, 2) is Adherence.MEETS


@pytest.mark.parametrize("policy", list(PlacementPolicy))
def test_a_move_that_changes_no_rack_is_allowed(policy: PlacementPolicy) -> None:
    config = PlacementConfig(policy=policy)
    topology = Topology({name: f"/r/{name[0]}" for name in ("a1", "a2", "b1", "b2")})
    assert may_replace(config, topology, ["a1", "b1"], ["a2", "b1"], 2, 2)
