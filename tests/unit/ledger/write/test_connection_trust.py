from __future__ import annotations

from ledger.write.connection_trust import ConnectionTrust


def counts_at_once(trust: ConnectionTrust, bookie: str, losses: int) -> bool:
    """What the handle asks for each group of replies."""
    return losses == trust.losses and bookie in trust.trusted


def make() -> tuple[ConnectionTrust, dict[str, int]]:
    connections: dict[str, int] = {}
    return ConnectionTrust(connections.get), connections


def test_a_connection_older_than_the_metadata_is_trusted() -> None:
    trust, connections = make()
    connections["b1"] = 1
    trust.trust_since(trust.snapshot(["b1", "b2"]))
    assert trust.take_lost(0) == []
    assert counts_at_once(trust, "b1", 0)
    assert not trust.is_first_reply("b1")


def test_a_later_connection_has_one_first_reply_and_is_trusted_after_a_look_at_the_metadata() -> None:
    trust, connections = make()
    trust.trust_since(trust.snapshot(["b1"]))
    connections["b1"] = 1
    trust.take_lost(0)
    assert not counts_at_once(trust, "b1", 0)
    assert trust.is_first_reply("b1")
    assert not trust.is_first_reply("b1")
    assert not counts_at_once(trust, "b1", 0)
    trust.trust("b1")
    assert counts_at_once(trust, "b1", 0)


def test_a_connection_lost_while_no_reply_was_due_is_returned_once() -> None:
    trust, connections = make()
    connections |= {"b1": 1, "b2": 2}
    trust.trust_since(trust.snapshot(["b1", "b2"]))
    trust.take_lost(0)
    connections["b1"] = 3
    assert not counts_at_once(trust, "b2", 1)
    assert trust.take_lost(1) == ["b1"]
    assert trust.take_lost(1) == []
    assert counts_at_once(trust, "b2", 1)
    assert trust.is_first_reply("b1")


def test_trust_does_not_reach_a_connection_that_came_after_the_untrusted_one() -> None:
    trust, connections = make()
    connections["b1"] = 1
    trust.take_lost(0)
    assert trust.is_first_reply("b1")
    connections["b1"] = 2
    assert trust.take_lost(1) == ["b1"]
    trust.trust("b1")
    assert not counts_at_once(trust, "b1", 1)


def test_a_connection_lost_during_the_write_of_the_metadata_is_not_trusted_even_after_a_look_at_losses() -> (
    None
):
    trust, connections = make()
    connections |= {"b1": 1, "spare": 2}
    trust.trust_since(trust.snapshot(["b1"]))
    before = trust.snapshot(["spare"])
    del connections["spare"]
    assert trust.take_lost(1) == []  # the writer sends nothing to the spare bookie yet
    trust.trust_since(before)
    connections["spare"] = 3
    assert not counts_at_once(trust, "spare", 1)
    assert trust.is_first_reply("spare")
