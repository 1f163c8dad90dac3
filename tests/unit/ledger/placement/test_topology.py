from __future__ import annotations

import pytest

from ledger.errors import LocationError
from ledger.placement.topology import DEFAULT_REGION_RACK, Topology, parse_location, region_of


@pytest.mark.parametrize(
    ("text", "location"), [("/r1", "/r1"), (" /eu/r1/ ", "/eu/r1"), ("/a/b/c", "/a/b/c")]
)
def test_locations_are_paths(text: str, location: str) -> None:
    assert parse_location(text) == location


@pytest.mark.parametrize("text", ["", "/", "r1", "//r1", "/eu//r1", "/eu r1", "r1/r2"])
def test_a_location_that_is_no_path_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(LocationError, match="is no network location"):
        parse_location(text)


def test_bookies_without_a_location_have_the_default_one() -> None:
    topology = Topology({"b1": "/eu/r1"}, DEFAULT_REGION_RACK, "/eu/r1")
    assert (topology.rack("b1"), topology.region("b1"), topology.is_known("b1")) == ("/eu/r1", "eu", True)
    assert (topology.region("b2"), topology.is_known("b2")) == ("default-region", False)
    assert topology.racks(["b1", "b2", "b3"]) == {"/eu/r1", DEFAULT_REGION_RACK}
    assert region_of("/eu/r1") == "eu"


def test_distance_is_measured_from_the_location_of_the_program() -> None:
    locations = {"same": "/eu/r1", "near": "/eu/r2", "far": "/us/r1"}
    topology = Topology(locations, DEFAULT_REGION_RACK, "/eu/r1")
    assert [topology.distance(bookie) for bookie in ("same", "near", "far", "unknown")] == [0, 1, 2, 2]
    assert Topology(locations).distance("same") == 2
    assert Topology({"b": "/r1", "c": "/r2"}, local="/r1").distance("c") == 2
