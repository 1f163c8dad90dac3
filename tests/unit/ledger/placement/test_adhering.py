"""Moving as few replicas as possible until an ensemble is spread as the policy prescribes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ledger.placement.adhering import choose_adhering
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.spread_policy import Adherence, Candidates, adherence
from ledger.placement.topology import Topology

RACKS = PlacementConfig(policy=PlacementPolicy.RACK_AWARE)


def candidates(*bookies: str, unknown: tuple[str, ...] = ()) -> Candidates:
    """Bookies whose rack is their first letter."""
    locations = {one: f"/{one[0]}" for one in bookies if one not in unknown}
    return Candidates(writable=bookies, topology=Topology(locations))


def choose(found: Candidates, ensemble: tuple[str, ...], write_quorum: int = 2) -> dict[int, str]:
    return choose_adhering(RACKS, found, ensemble, write_quorum, 2, random.Random(1))


def test_one_replica_moves_where_one_suffices() -> None:
    assert choose(candidates("a1", "a2", "b1"), ("a1", "a2")) in ({0: "b1"}, {1: "b1"})


def test_as_many_replicas_move_as_are_necessary() -> None:
    # Each pair of neighbours must span two racks, so two of four replicas move.
    found = candidates("a1", "a2", "a3", "a4", "b1", "b2")
    assert sorted(choose(found, ("a1", "a2", "a3", "a4")).values()) == ["b1", "b2"]


def test_nothing_moves_if_no_bookie_of_another_rack_is_writable() -> None:
    assert choose(candidates("a1", "a2", "a3"), ("a1", "a2")) == {}


def test_a_bookie_without_a_known_location_is_not_chosen() -> None:
    assert choose(candidates("a1", "a2", "b1", unknown=("b1",)), ("a1", "a2")) == {}


@given(
    st.integers(2, 4).flatmap(
        lambda size: st.tuples(
            st.lists(st.sampled_from("abc"), min_size=size, max_size=size), st.integers(2, size)
        )
    ),
    st.lists(st.sampled_from("abc"), max_size=4),
)
def test_a_choice_makes_the_ensemble_adhere_with_new_bookies_only(
    case: tuple[list[str], int], spare: list[str]
) -> None:
    racks, write_quorum = case
    ensemble = tuple(f"{rack}{number}" for number, rack in enumerate(racks))
    others = tuple(f"{rack}{number}" for number, rack in enumerate(spare, 10))
    found = candidates(*ensemble, *others)
    chosen = choose(found, ensemble, write_quorum)
    if chosen:
        changed = [chosen.get(index, bookie) for index, bookie in enumerate(ensemble)]
        assert set(chosen.values()) <= set(others)
        assert len(set(changed)) == len(changed)
        assert adherence(changed, found.topology, RACKS, write_quorum, 2) is Adherence.MEETS
