"""The rules of placement against simple twins that try every ensemble."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import NotEnoughBookiesError, PlacementError
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.search import fill_ensemble
from ledger.placement.spread_policy import (
    Adherence,
    Candidates,
    acks_span,
    adherence,
    choose_spread_ensemble,
    choose_spread_replacements,
    spans_racks,
    spans_regions,
)
from ledger.placement.topology import DEFAULT_RACK, DEFAULT_REGION_RACK, Topology
from tests.strategies import quorum_sizes

LOCATIONS = ("/eu/r1", "/eu/r2", "/us/r1", "/us/r2", "/asia/r1", None)


@attrs.frozen
class Case:
    topology: Topology
    size: int
    write_quorum: int
    ack_quorum: int
    racks_min: int
    rng: random.Random

    @property
    def bookies(self) -> list[str]:
        return sorted(self.names)

    names: tuple[str, ...] = ()


@st.composite
def cases(draw: st.DrawFn, *, default: str = DEFAULT_RACK) -> Case:
    places = draw(st.lists(st.sampled_from(LOCATIONS), min_size=1, max_size=6))
    names = tuple(f"b{number}" for number in range(len(places)))
    size, write_quorum, ack_quorum = draw(quorum_sizes(min(4, len(names))))
    return Case(
        Topology(
            {name: place for name, place in zip(names, places, strict=True) if place is not None}, default
        ),
        size,
        write_quorum,
        ack_quorum,
        draw(st.integers(1, 3)),
        random.Random(draw(st.integers(0, 1000))),
        names,
    )


def windows(ensemble: Sequence[str], write_quorum: int) -> list[list[str]]:
    twice = [*ensemble, *ensemble]
    return [twice[first : first + write_quorum] for first in range(len(ensemble))]


def racks_of(members: Sequence[str], topology: Topology) -> int:
    return len({topology.locations[member] for member in members if member in topology.locations})


@given(cases())
def test_enforced_racks_are_found_exactly_if_some_ensemble_has_them(case: Case) -> None:
    wanted = min(case.racks_min, case.write_quorum)
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, racks_min=case.racks_min, enforce_racks=True)
    candidates = Candidates(writable=case.bookies, topology=case.topology)
    exists = any(
        all(racks_of(window, case.topology) >= wanted for window in windows(ensemble, case.write_quorum))
        for ensemble in itertools.permutations(sorted(case.topology.locations), case.size)
    )
    try:
        ensemble = choose_spread_ensemble(
            config, candidates, case.size, case.write_quorum, case.ack_quorum, case.rng
        )
    except PlacementError:
        assert not exists
        return
    assert exists
    assert len(set(ensemble)) == case.size
    assert set(ensemble) <= set(case.topology.locations)
    assert all(racks_of(window, case.topology) >= wanted for window in windows(ensemble, case.write_quorum))
    assert adherence(ensemble, case.topology, config, case.write_quorum, case.ack_quorum) is Adherence.MEETS


@given(cases(), st.sampled_from(PlacementPolicy), st.data())
def test_without_enforcement_only_too_few_bookies_are_an_error(
    case: Case, policy: PlacementPolicy, data: st.DataObject
) -> None:
    config = PlacementConfig(policy=policy, racks_min=case.racks_min, weighted=True)
    candidates = Candidates(
        writable=case.bookies,
        topology=case.topology,
        suspects=data.draw(st.sets(st.sampled_from(case.bookies))),
        quarantined=data.draw(st.sets(st.sampled_from(case.bookies))),
        weights=data.draw(st.dictionaries(st.sampled_from(case.bookies), st.floats(1, 100))),
    )
    arguments = (case.write_quorum, case.ack_quorum, case.rng)
    ensemble = choose_spread_ensemble(config, candidates, case.size, *arguments)
    assert len(set(ensemble)) == case.size
    assert set(ensemble) <= set(case.bookies)
    good = set(case.bookies) - set(candidates.quarantined)
    if len(good) >= case.size:
        assert set(ensemble) <= good
    with pytest.raises(NotEnoughBookiesError):
        choose_spread_ensemble(config, candidates, len(case.bookies) + 1, *arguments)


@given(cases())
def test_as_many_racks_as_possible_are_spanned(case: Case) -> None:
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, racks_min=case.racks_min)
    candidates = Candidates(writable=case.bookies, topology=case.topology)

    def worst(ensemble: Sequence[str]) -> int:
        racks = min(racks_of(window, case.topology) for window in windows(ensemble, case.write_quorum))
        return min(racks, case.racks_min)

    best = max(map(worst, itertools.permutations(case.bookies, case.size)))
    ensemble = choose_spread_ensemble(
        config, candidates, case.size, case.write_quorum, case.ack_quorum, case.rng
    )
    assert max(1, worst(ensemble)) == max(1, best)


@given(cases(), st.data())
def test_with_enforced_fault_domains_the_choice_can_be_confirmed_if_possible(
    case: Case, data: st.DataObject
) -> None:
    config = PlacementConfig(
        policy=PlacementPolicy.RACK_AWARE, racks_min=case.racks_min, enforce_fault_domains=True
    )
    quarantined = data.draw(st.sets(st.sampled_from(case.bookies)))
    candidates = Candidates(writable=case.bookies, topology=case.topology, quarantined=quarantined)
    arguments = (case.write_quorum, case.ack_quorum, case.rng)

    def can_be_confirmed(ensemble: Sequence[str]) -> bool:
        # Each bookie with an unknown location gets a rack of its own, the most favourable case.
        apart = attrs.evolve(
            case.topology,
            locations={name: f"/only-{name}" for name in case.bookies} | dict(case.topology.locations),
        )
        return all(
            acks_span(window, apart, config, case.write_quorum)
            for window in windows(ensemble, case.write_quorum)
        )

    exists = any(map(can_be_confirmed, itertools.permutations(case.bookies, case.size)))
    try:
        ensemble = choose_spread_ensemble(config, candidates, case.size, *arguments)
    except PlacementError:
        assert not exists
        return
    assert can_be_confirmed(ensemble)
    failed = data.draw(st.integers(0, case.size - 1))
    chosen, _ = choose_spread_replacements(config, candidates, ensemble, {failed}, *arguments)
    replaced = [
        [spare if index == failed else bookie for index, bookie in enumerate(ensemble)]
        for spare in case.bookies
        if spare not in ensemble
    ]
    assert bool(chosen) == any(map(can_be_confirmed, replaced))
    if chosen:
        assert can_be_confirmed([chosen.get(index, bookie) for index, bookie in enumerate(ensemble)])


@given(cases(), st.data())
def test_replacements_keep_enforced_racks_and_are_outside_the_ensemble(
    case: Case, data: st.DataObject
) -> None:
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, racks_min=case.racks_min, enforce_racks=True)
    ensemble = tuple(data.draw(st.permutations(case.bookies))[: case.size])
    failed = data.draw(st.sets(st.integers(0, case.size - 1), min_size=1))
    wanted = min(case.racks_min, case.write_quorum)
    chosen, reason = choose_spread_replacements(
        config,
        Candidates(writable=case.bookies, topology=case.topology),
        ensemble,
        failed,
        case.write_quorum,
        case.ack_quorum,
        case.rng,
    )
    assert chosen.keys() <= failed
    assert not set(chosen.values()) & set(ensemble)
    assert len(set(chosen.values())) == len(chosen)
    new = [chosen.get(index, bookie) for index, bookie in enumerate(ensemble)]
    for window in windows(new, case.write_quorum):
        if set(window) & set(chosen.values()):
            assert racks_of(window, case.topology) >= wanted
    spare = set(case.bookies) - set(ensemble)
    possible = any(
        all(
            racks_of(window, case.topology) >= wanted
            for window in windows(filled, case.write_quorum)
            if set(window) - set(ensemble)
        )
        for replacements in itertools.permutations(sorted(spare & set(case.topology.locations)), len(failed))
        for filled in [
            [
                dict(zip(sorted(failed), replacements, strict=True)).get(index, bookie)
                for index, bookie in enumerate(ensemble)
            ]
        ]
    )
    if possible:
        assert chosen.keys() == failed
        assert reason is None
    if len(chosen) < len(failed) and len(spare) > len(chosen):
        assert reason is not None


@given(cases(default=DEFAULT_REGION_RACK))
def test_any_ack_quorum_spans_the_enforced_regions(case: Case) -> None:
    config = PlacementConfig(
        policy=PlacementPolicy.REGION_AWARE, regions=("eu", "us"), regions_min=2, racks_min=1
    )
    candidates = Candidates(writable=case.bookies, topology=case.topology)

    def keeps(ensemble: Sequence[str]) -> bool:
        return all(
            len({case.topology.region(bookie) for bookie in quorum}) >= 2
            for window in windows(ensemble, case.write_quorum)
            for quorum in itertools.combinations(window, case.ack_quorum)
        )

    exists = any(map(keeps, itertools.permutations(case.bookies, case.size)))
    try:
        ensemble = choose_spread_ensemble(
            config, candidates, case.size, case.write_quorum, case.ack_quorum, case.rng
        )
    except (PlacementError, ValueError):
        assert not exists
    else:
        assert keeps(ensemble)


@given(st.lists(st.sampled_from("abcd"), max_size=6), st.integers(1, 6), st.integers(1, 4))
def test_the_span_equals_that_of_trying_all_subsets(places: list[str], ack_quorum: int, least: int) -> None:
    members = [f"b{number}" for number in range(len(places))]
    topology = Topology({member: f"/{place}/r" for member, place in zip(members, places, strict=True)})
    assert spans_racks(members, topology, least) == (least <= 1 or len(set(places)) >= least)
    if ack_quorum <= len(members):
        assert spans_regions(members, topology, ack_quorum, least) == all(
            len(set(quorum)) >= least for quorum in itertools.combinations(places, ack_quorum)
        )


@given(st.data())
def test_the_search_finds_an_ensemble_exactly_if_there_is_one(data: st.DataObject) -> None:
    size, write_quorum, _ = data.draw(quorum_sizes())
    domains = data.draw(st.lists(st.sampled_from("xyz"), min_size=size, max_size=6))
    names = [f"{domain}{number}" for number, domain in enumerate(domains)]
    bad = data.draw(st.sets(st.text("xyz", min_size=1, max_size=write_quorum), max_size=4))
    fixed = data.draw(st.dictionaries(st.integers(0, size - 1), st.sampled_from(["x9", "y9"]), max_size=1))
    partial = [fixed.get(index) for index in range(size)]

    def accepts(members: Sequence[str]) -> bool:
        return "".join(sorted(member[0] for member in members)) not in bad

    found = fill_ensemble(
        partial,
        names,
        write_quorum=write_quorum,
        accepts=accepts,
        prefers=lambda index, candidate, ensemble: (0,),
        domain=lambda candidate: candidate[0],
    )
    vacant = [index for index in range(size) if index not in fixed]

    def ensembles() -> list[list[str]]:
        return [
            [dict(zip(vacant, chosen, strict=True)).get(index, fixed.get(index, "")) for index in range(size)]
            for chosen in itertools.permutations(names, len(vacant))
        ]

    def fits(ensemble: Sequence[str]) -> bool:
        return all(accepts(window) for window in windows(ensemble, write_quorum) if set(window) & set(names))

    assert (found is not None) == any(map(fits, ensembles()))
    if found is not None:
        assert fits(found)
        assert len(set(found)) == size
