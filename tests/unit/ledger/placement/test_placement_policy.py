# covers: ledger/placement/config.py
# covers: ledger/placement/spread_policy.py

from __future__ import annotations

import random
from collections import Counter

import attrs
import pytest

from ledger.errors import LocationError, NotEnoughBookiesError, PlacementError
from ledger.placement.config import FixedLocations, PlacementConfig, PlacementPolicy
from ledger.placement.spread_policy import (
    Adherence,
    Candidates,
    acks_span,
    adherence,
    choose_spread_ensemble,
    choose_spread_replacements,
    spans_racks,
)
from ledger.placement.topology import DEFAULT_RACK, DEFAULT_REGION_RACK, Topology

RACKS = PlacementConfig(policy=PlacementPolicy.RACK_AWARE)
ENFORCED = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, enforce_racks=True)
REGIONS = PlacementConfig(policy=PlacementPolicy.REGION_AWARE)


def racks(**counts: int) -> Candidates:
    locations = {f"{rack}{number}": f"/{rack}" for rack, count in counts.items() for number in range(count)}
    return Candidates(writable=set(locations), topology=Topology(locations))


def regions(local: str | None = None, **counts: int) -> Candidates:
    locations = {
        f"{region}{number}": f"/{region}/r{number % 2}"
        for region, count in counts.items()
        for number in range(count)
    }
    return Candidates(writable=set(locations), topology=Topology(locations, DEFAULT_REGION_RACK, local))


def test_every_write_quorum_spans_two_racks() -> None:
    candidates = racks(a=5, b=5)
    for seed in range(50):
        ensemble = choose_spread_ensemble(ENFORCED, candidates, 4, 2, 2, random.Random(seed))
        assert len({bookie[0] for bookie in ensemble[:2]}) == 2
        assert adherence(ensemble, candidates.topology, ENFORCED, 2, 2) is Adherence.MEETS
    assert adherence(("a0", "a1", "b0", "b1"), candidates.topology, RACKS, 2, 2) is Adherence.FAILS


def test_enforced_racks_that_are_unavailable_are_an_error_with_the_evidence() -> None:
    candidates = racks(a=5)
    with pytest.raises(
        PlacementError,
        match=r"3 bookies wanted, 5 writable: every write quorum of 3 must span 2 racks.*5 in /a",
    ):
        choose_spread_ensemble(ENFORCED, candidates, 3, 3, 2, random.Random(1))
    assert len(choose_spread_ensemble(RACKS, candidates, 3, 3, 2, random.Random(1))) == 3
    with pytest.raises(NotEnoughBookiesError, match="6 bookies wanted, 5 writable"):
        choose_spread_ensemble(ENFORCED, candidates, 6, 3, 2, random.Random(1))


def test_bookies_with_unknown_locations_are_chosen_only_if_racks_are_not_enforced() -> None:
    candidates = Candidates(writable={"a0", "b0", "x", "y"}, topology=Topology({"a0": "/a", "b0": "/b"}))
    for seed in range(20):
        assert set(choose_spread_ensemble(ENFORCED, candidates, 2, 2, 2, random.Random(seed))) == {"a0", "b0"}
    with pytest.raises(PlacementError, match="2 in unknown locations"):
        choose_spread_ensemble(ENFORCED, candidates, 3, 2, 2, random.Random(1))
    assert len(choose_spread_ensemble(RACKS, candidates, 4, 2, 2, random.Random(1))) == 4


def test_the_first_member_is_from_the_writers_rack() -> None:
    locations = {f"{rack}{number}": f"/{rack}" for rack in "abc" for number in range(3)}
    candidates = Candidates(writable=set(locations), topology=Topology(locations, DEFAULT_RACK, "/b"))
    for seed in range(20):
        ensemble = choose_spread_ensemble(RACKS, candidates, 3, 3, 2, random.Random(seed))
        assert ensemble[0][0] == "b"
        assert {bookie[0] for bookie in ensemble} == set("abc")


def test_a_recently_failed_bookie_is_chosen_for_enough_racks_but_not_for_an_even_spread() -> None:
    candidates = racks(a=3, b=1, c=3)
    suspected = Candidates(
        writable=candidates.writable, topology=candidates.topology, suspects={"b0", "c0", "c1", "c2"}
    )
    for seed in range(20):
        ensemble = choose_spread_ensemble(RACKS, suspected, 3, 3, 2, random.Random(seed))
        assert Counter(bookie[0] for bookie in ensemble)["a"] == 2


def test_quarantined_bookies_are_chosen_only_if_there_are_too_few_others() -> None:
    candidates = racks(a=2, b=2)
    with_quarantined = Candidates(
        writable=candidates.writable, topology=candidates.topology, quarantined={"b0", "b1"}
    )
    for config in (RACKS, PlacementConfig()):
        assert set(choose_spread_ensemble(config, with_quarantined, 2, 2, 2, random.Random(1))) == {
            "a0",
            "a1",
        }
        assert len(choose_spread_ensemble(config, with_quarantined, 3, 2, 2, random.Random(1))) == 3
    assert {
        bookie[0] for bookie in choose_spread_ensemble(ENFORCED, with_quarantined, 2, 2, 2, random.Random(1))
    } == set("ab")


def test_a_replacement_is_from_the_rack_of_the_failed_bookie_if_possible() -> None:
    candidates = racks(a=3, b=3, c=3)
    for seed in range(20):
        chosen, reason = choose_spread_replacements(
            RACKS, candidates, ("a0", "b0", "c0"), {1}, 3, 2, random.Random(seed)
        )
        assert reason is None
        assert chosen[1][0] == "b"
        # Also if another rack has no member yet.
        chosen, _ = choose_spread_replacements(
            RACKS, racks(a=3, b=1, c=3), ("a0", "a1", "b0"), {1}, 3, 2, random.Random(seed)
        )
        assert chosen == {1: "a2"}


def test_a_replacement_is_from_any_rack_if_the_rack_of_the_failed_bookie_has_none() -> None:
    chosen, _ = choose_spread_replacements(
        RACKS, racks(a=3, b=1, c=3, d=1), ("a0", "b0", "c0"), {1}, 3, 2, random.Random(1)
    )
    assert chosen == {1: "d0"}
    for config in (RACKS, ENFORCED):
        chosen, reason = choose_spread_replacements(
            config, racks(a=2, b=1, c=1), ("a0", "b0", "c0"), {1}, 3, 2, random.Random(1)
        )
        assert (chosen, reason) == ({1: "a1"}, None)


def test_a_replacement_that_enforced_racks_forbid_is_not_made_and_gives_a_reason() -> None:
    chosen, reason = choose_spread_replacements(
        ENFORCED, racks(a=5, b=1), ("a0", "b0", "a1"), {1}, 3, 2, random.Random(1)
    )
    assert chosen == {}
    assert reason is not None
    assert "no replacement for 1 of its bookies" in reason
    assert "span 2 racks" in reason


def test_two_failures_are_replaced_together_if_one_alone_could_not_be() -> None:
    candidates = racks(a=1, b=3, c=2)
    # In ("b0", "c0") no bookie of c may replace b0 alone, but both can be replaced together.
    chosen, reason = choose_spread_replacements(
        ENFORCED, candidates, ("b0", "c0"), {0, 1}, 2, 2, random.Random(1)
    )
    assert reason is None
    assert len({bookie[0] for bookie in chosen.values()}) == 2


def test_bookies_that_were_tried_come_last_regardless_of_their_rack() -> None:
    candidates = racks(a=3, b=1, c=2)
    ensemble = ("c0", "a0")
    for config in (RACKS, PlacementConfig()):
        for tried, expected in {
            ("a0", "a1", "a2", "c1"): "b0",
            ("b0", "a0", "a1", "a2", "c1"): "b0",
            ("a2", "b0", "c1", "a1"): "a2",
        }.items():
            known = attrs.evolve(candidates, suspects=set(candidates.writable), tried=tried)
            chosen, _ = choose_spread_replacements(config, known, ensemble, {1}, 2, 2, random.Random(1))
            assert chosen == {1: expected}


def test_weights_decide_how_often_a_bookie_is_chosen() -> None:
    config = PlacementConfig(weighted=True)
    rng = random.Random(1)
    candidates = Candidates(writable={"a", "b", "c"}, weights={"a": 8.0, "b": 1.0, "c": 1.0})
    first = Counter(choose_spread_ensemble(config, candidates, 1, 1, 1, rng)[0] for _ in range(1000))
    assert first["a"] > 700
    chosen, _ = choose_spread_replacements(config, candidates, ("a",), {0}, 1, 1, rng)
    assert chosen[0] in "bc"


def test_regions_take_balanced_shares_beginning_with_the_writers() -> None:
    candidates = regions("/us/r0", eu=4, us=4, asia=4)
    ensemble = choose_spread_ensemble(REGIONS, candidates, 6, 3, 2, random.Random(1))
    assert Counter(bookie[:2] for bookie in ensemble) == {"eu": 2, "us": 2, "as": 2}
    assert ensemble[0].startswith("us")
    for region in ("eu", "us", "asia"):
        members = [bookie for bookie in ensemble if bookie.startswith(region)]
        assert len({candidates.topology.rack(bookie) for bookie in members}) == 2


def test_regions_take_turns_to_be_first() -> None:
    candidates = regions(eu=3, us=3, asia=3)
    first = [
        choose_spread_ensemble(REGIONS, candidates, 2, 2, 2, random.Random(1), turn=turn)[0][:2]
        for turn in range(6)
    ]
    assert Counter(first) == {"eu": 2, "us": 2, "as": 2}


def test_members_that_a_region_cannot_provide_come_from_the_others() -> None:
    ensemble = choose_spread_ensemble(REGIONS, regions(eu=1, us=5), 5, 3, 2, random.Random(1))
    assert Counter(bookie[:2] for bookie in ensemble) == {"eu": 1, "us": 4}


def test_durability_over_regions_holds_in_choice_and_replacement() -> None:
    config = PlacementConfig(policy=PlacementPolicy.REGION_AWARE, regions=("eu", "us"))
    with pytest.raises(ValueError, match="ack_quorum=1 can never span"):
        choose_spread_ensemble(config, regions(eu=3, us=3), 4, 4, 1, random.Random(1))
    with pytest.raises(PlacementError, match=r"have any 2 of its bookies in 2 regions.*2 in /eu/r0"):
        choose_spread_ensemble(config, regions(eu=3, us=3), 4, 4, 2, random.Random(1))
    ensemble = choose_spread_ensemble(config, regions(eu=3, us=3), 4, 4, 3, random.Random(1))
    assert Counter(bookie[:2] for bookie in ensemble) == {"eu": 2, "us": 2}
    with pytest.raises(PlacementError, match="have any 3 of its bookies in 2 regions"):
        choose_spread_ensemble(config, regions(eu=5), 4, 4, 3, random.Random(1))
    chosen, reason = choose_spread_replacements(
        config, regions(eu=5, us=2), ("eu0", "us0", "eu1", "us1"), {1}, 4, 3, random.Random(1)
    )
    assert chosen == {}
    assert reason is not None
    relaxed = PlacementConfig(
        policy=PlacementPolicy.REGION_AWARE, regions=("eu", "us"), enforce_regions_in_replace=False
    )
    chosen, _ = choose_spread_replacements(
        relaxed, regions(eu=5, us=2), ("eu0", "us0", "eu1", "us1"), {1}, 4, 3, random.Random(1)
    )
    assert chosen.keys() == {1}


def test_nothing_is_placed_in_a_disallowed_region() -> None:
    config = PlacementConfig(policy=PlacementPolicy.REGION_AWARE, regions_disallowed={"eu"})
    for seed in range(10):
        ensemble = choose_spread_ensemble(config, regions(eu=5, us=5), 3, 3, 2, random.Random(seed))
        assert all(bookie.startswith("us") for bookie in ensemble)
    with pytest.raises(PlacementError, match="avoid eu"):
        choose_spread_ensemble(config, regions(eu=5, us=2), 3, 3, 2, random.Random(1))


def test_acknowledgements_must_span_the_racks_and_the_regions() -> None:
    topology = Topology({"a0": "/a", "a1": "/a", "b0": "/b"})
    assert not acks_span(["a0", "a1"], topology, RACKS, 3)
    assert acks_span(["a0", "b0"], topology, RACKS, 3)
    assert acks_span(["a0", "unknown"], topology, RACKS, 3)
    assert acks_span(["a0"], topology, RACKS, 1)
    two = PlacementConfig(policy=PlacementPolicy.REGION_AWARE, regions=("eu", "us"))
    locations = regions(eu=4, us=2).topology
    assert not acks_span(["eu0", "eu1"], locations, two, 3)
    assert acks_span(["eu0", "us0"], locations, two, 3)


def test_no_ensemble_is_chosen_on_which_no_entry_could_ever_be_confirmed() -> None:
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, enforce_fault_domains=True)
    with pytest.raises(
        PlacementError, match="every write quorum of 3 must span 2 racks; to choose from: 4 in /a"
    ):
        choose_spread_ensemble(config, racks(a=4), 3, 3, 2, random.Random(1))
    candidates = racks(a=3, b=1)
    ensemble = ("a0", "a1", "b0")
    chosen, reason = choose_spread_replacements(config, candidates, ensemble, {2}, 3, 2, random.Random(1))
    assert chosen == {}
    assert reason is not None
    assert "must span 2 racks; to choose from: 1 in /a" in reason
    assert choose_spread_replacements(config, candidates, ensemble, {0}, 3, 2, random.Random(1)) == (
        {0: "a2"},
        None,
    )
    # A quarantined bookie of the second rack is better than an ensemble that can confirm nothing.
    candidates = attrs.evolve(racks(a=3, b=2), quarantined={"b1"})
    assert choose_spread_replacements(config, candidates, ensemble, {2}, 3, 2, random.Random(1)) == (
        {2: "b1"},
        None,
    )
    # Bookies with unknown locations may turn out to span enough racks.
    unknown = Candidates(writable={"x", "y", "z"})
    assert len(choose_spread_ensemble(config, unknown, 3, 3, 2, random.Random(1))) == 3


def test_a_replacement_keeps_a_second_region_if_acknowledgements_must_span_two() -> None:
    config = PlacementConfig(
        policy=PlacementPolicy.REGION_AWARE,
        regions=("eu", "us"),
        enforce_regions_in_replace=False,
        enforce_fault_domains=True,
        racks_min=1,
    )
    candidates = regions(eu=3, us=1)
    chosen, reason = choose_spread_replacements(
        config, candidates, ("eu0", "eu1", "us0"), {2}, 3, 2, random.Random(1)
    )
    assert chosen == {}
    assert reason is not None
    assert "must span 2 regions" in reason


def test_contradicting_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="REGION_AWARE"):
        PlacementConfig(regions=("eu", "us"))
    with pytest.raises(ValueError, match="regions names 1 only"):
        PlacementConfig(policy=PlacementPolicy.REGION_AWARE, regions=("eu",))
    with pytest.raises(ValueError, match="regions_min=2 has no effect without regions"):
        PlacementConfig(policy=PlacementPolicy.REGION_AWARE, regions_min=2)
    with pytest.raises(ValueError, match="RANDOM"):
        PlacementConfig(enforce_racks=True)
    with pytest.raises(LocationError):
        PlacementConfig(local_location="r1")
    with pytest.raises(LocationError):
        FixedLocations({"b1": "nowhere"})


def test_unknown_locations_in_an_ensemble_adhere_only_if_racks_are_not_enforced() -> None:
    topology = Topology({"a0": "/a", "b0": "/b", "a1": "/a"})
    ensemble = ("a0", "b0", "unknown")  # two racks without it
    assert adherence(ensemble, topology, RACKS, 3, 2) is Adherence.MEETS
    assert adherence(ensemble, topology, ENFORCED, 3, 2) is Adherence.FAILS
    # An unknown location is no second rack: the write set that wraps around has only /a for certain.
    assert adherence(("a0", "b0", "unknown"), topology, RACKS, 2, 2) is Adherence.FAILS
    assert adherence(("a0", "b0", "a1"), topology, ENFORCED, 3, 2) is Adherence.MEETS


def test_bookies_with_unknown_locations_are_no_second_rack() -> None:
    topology = Topology({"a": "/r1", "b": "/r1", "c": "/r2"})
    assert not spans_racks(["a", "b", "unknown"], topology, 2)
    assert spans_racks(["a", "c", "unknown"], topology, 2)


def test_a_replacement_is_from_the_region_of_the_failed_bookie_though_another_has_fewer() -> None:
    candidates = regions(eu=2, us=3, asia=1)
    for seed in range(20):
        chosen, _ = choose_spread_replacements(
            REGIONS, candidates, ("eu0", "us0", "us1"), {2}, 3, 2, random.Random(seed)
        )
        assert chosen == {2: "us2"}


def test_random_replacements_are_quarantined_only_if_there_are_no_others() -> None:
    candidates = Candidates(writable=set("abcxyz"), quarantined={"x", "y"})
    for seed in range(20):
        rng = random.Random(seed)
        one, _ = choose_spread_replacements(PlacementConfig(), candidates, list("abc"), {1}, 3, 2, rng)
        assert one == {1: "z"}
        two, _ = choose_spread_replacements(PlacementConfig(), candidates, list("abc"), {0, 2}, 3, 2, rng)
        assert "z" in two.values()
        assert len(set(two.values())) == 2
