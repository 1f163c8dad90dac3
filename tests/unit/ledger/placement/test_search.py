"""The search for an ensemble ends after a limited amount of work, whatever a ledger's metadata name."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ledger.placement.adhering import ENSEMBLE_MAX, choose_adhering
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.search import VACANT_MAX, WORK_MAX, fill_ensemble
from ledger.placement.spread_policy import (
    REPLACED_MAX,
    Candidates,
    choose_spread_replacements,
)
from ledger.placement.topology import Topology
from ledger.quorum import covers, write_set

SIZE = 3000
BOOKIES = tuple(f"b{number}:1" for number in range(SIZE))
SPARE = tuple(f"s{number}:1" for number in range(100))
TOPOLOGY = Topology({name: f"/r{at % 3}/k{at % 20}" for at, name in enumerate((*BOOKIES, *SPARE))})


def test_a_search_without_a_result_gives_up() -> None:
    looked_at = 0

    def refuse(members: Sequence[str]) -> bool:
        nonlocal looked_at
        looked_at += len(members)
        assert looked_at <= WORK_MAX, "the search goes on"
        return False

    found = fill_ensemble(
        [None] * 12,
        [f"{domain}{number}" for number in range(2) for domain in "abcdefghijkl"],
        write_quorum=12,  # no write set is complete before the last place is filled: 12! ways to do so
        accepts=refuse,
        prefers=lambda _index, _candidate, _counts: (0,),
        domain=lambda bookie: bookie[0],
    )
    assert found is None
    assert looked_at


def test_more_vacant_places_than_the_depth_of_a_search_are_not_filled() -> None:
    spare = [f"s{number}" for number in range(2 * VACANT_MAX)]
    for vacant in (VACANT_MAX, VACANT_MAX + 1):
        found = fill_ensemble(
            [None] * vacant,
            spare,
            write_quorum=1,
            accepts=lambda members: True,
            prefers=lambda _index, _candidate, _counts: (0,),
            domain=lambda bookie: "",
        )
        assert (found is not None) == (vacant <= VACANT_MAX)


@pytest.mark.parametrize("policy", list(PlacementPolicy))
@pytest.mark.parametrize("write_quorum", [3, 33])
def test_of_three_thousand_lost_bookies_some_are_replaced_at_a_time(
    policy: PlacementPolicy, write_quorum: int
) -> None:
    chosen, _ = choose_spread_replacements(
        PlacementConfig(policy=policy, racks_min=2),
        Candidates(writable=SPARE, topology=TOPOLOGY),
        BOOKIES,
        range(SIZE),
        write_quorum,
        2,
        random.Random(1),
    )
    assert sorted(chosen) == list(range(REPLACED_MAX))
    assert len(set(chosen.values())) == REPLACED_MAX


def test_a_large_ensemble_is_not_moved_for_its_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []

    def choose(*args: object) -> tuple[dict[int, str], None]:
        tries.append(args)
        return {}, None

    monkeypatch.setattr("ledger.placement.adhering.choose_spread_replacements", choose)
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, racks_min=2)
    for size in (ENSEMBLE_MAX + 1, ENSEMBLE_MAX):
        assert tries == []
        candidates = Candidates(writable=SPARE, topology=TOPOLOGY)
        assert choose_adhering(config, candidates, BOOKIES[:size], 2, 2, random.Random(1)) == {}
    assert tries


@pytest.mark.parametrize("size", range(1, 7))
def test_covering_is_what_its_definition_says(size: int) -> None:
    for write_quorum in range(1, size + 1):
        for ack_quorum in range(1, write_quorum + 1):
            for mask in range(2**size):
                known = {index for index in range(size) if mask >> index & 1}
                expected = all(
                    sum(index not in known for index in write_set(first, size, write_quorum)) < ack_quorum
                    for first in range(size)
                )
                assert covers(known, size, write_quorum, ack_quorum) == expected
