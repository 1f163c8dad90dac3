from __future__ import annotations

from ledger.continuity import Continuity


def make() -> tuple[Continuity, dict[str, int]]:
    connections: dict[str, int] = {}
    return Continuity(connections.get), connections


def test_a_connection_older_than_the_metadata_is_trusted() -> None:
    continuity, connections = make()
    connections["b1"] = 1
    continuity.begin(continuity.snapshot(["b1", "b2"]))
    assert continuity.gone(0) == []
    assert continuity.is_settled("b1", 0)
    assert not continuity.is_new("b1")


def test_a_connection_made_later_is_new_once_and_trusted_when_the_metadata_vouches() -> None:
    continuity, connections = make()
    continuity.begin(continuity.snapshot(["b1"]))
    connections["b1"] = 1
    continuity.gone(0)
    assert not continuity.is_settled("b1", 0)
    assert continuity.is_new("b1")
    assert not continuity.is_new("b1")
    assert not continuity.is_settled("b1", 0)
    continuity.vouched("b1")
    assert continuity.is_settled("b1", 0)


def test_a_connection_lost_in_silence_is_noticed_and_told_once() -> None:
    continuity, connections = make()
    connections |= {"b1": 1, "b2": 2}
    continuity.begin(continuity.snapshot(["b1", "b2"]))
    continuity.gone(0)
    connections["b1"] = 3
    assert not continuity.is_settled("b2", 1)
    assert continuity.gone(1) == ["b1"]
    assert continuity.gone(1) == []
    assert continuity.is_settled("b2", 1)
    assert continuity.is_new("b1")


def test_vouching_does_not_reach_a_connection_that_came_after_the_doubted_one() -> None:
    continuity, connections = make()
    connections["b1"] = 1
    continuity.gone(0)
    assert continuity.is_new("b1")
    connections["b1"] = 2
    assert continuity.gone(1) == ["b1"]
    continuity.vouched("b1")
    assert not continuity.is_settled("b1", 1)


def test_a_connection_lost_while_the_metadata_was_written_is_not_trusted_though_the_loss_was_looked_at() -> (
    None
):
    continuity, connections = make()
    connections |= {"b1": 1, "spare": 2}
    continuity.begin(continuity.snapshot(["b1"]))
    before = continuity.snapshot(["spare"])
    del connections["spare"]
    assert continuity.gone(1) == []  # nobody waits for the spare yet
    continuity.begin(before)
    connections["spare"] = 3
    assert not continuity.is_settled("spare", 1)
    assert continuity.is_new("spare")
