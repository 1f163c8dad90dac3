"""Decisions about the permissions of peers: how long they are used, and how many are kept."""

from __future__ import annotations

import gc

import attrs
import pytest

import bookie.requests.permissions as permissions_module
from bookie.requests.permissions import (
    Access,
)
from bookie.requests.session import BookieService
from ledger.codes import Code
from ledger.wire.messages import (
    IncomingRequest,
    ReadReply,
    ReadRequest,
)
from tests.fakes.service_by_hand import HandDisk, add
from tests.unit.bookie.requests.guarded_sessions import ALICE, BOB, LIFETIME_S, Oracle, Peer, filled


async def test_a_decision_is_used_for_its_lifetime_at_most(alice: Peer, oracle: Oracle) -> None:
    await alice.ask(add(1, 0))
    oracle.set("alice", 1, Access.NONE)
    ends_s = oracle.now_s + LIFETIME_S
    while oracle.now_s < ends_s:
        oracle.now_s += 1  # the peer sends all the time, and no background task decides again
        replies = await alice.ask(add(1, int(oracle.now_s)))
    assert [reply.code for reply in replies] == [Code.UNAUTHORIZED]
    assert oracle.asked == [("alice", 1)] * 2


async def test_a_decision_of_an_idle_peer_is_used_for_its_lifetime_at_most(
    alice: Peer, oracle: Oracle
) -> None:
    await alice.ask(add(1, 0))
    oracle.set("alice", 1, Access.NONE)
    oracle.now_s += LIFETIME_S
    assert [reply.code for reply in await alice.ask(add(1, 1))] == [Code.UNAUTHORIZED]


async def test_a_decision_that_is_used_is_made_again_before_it_ends(alice: Peer, oracle: Oracle) -> None:
    await alice.ask(add(1, 0))
    oracle.now_s += LIFETIME_S / 2
    await alice.ask(add(1, 1), add(1, 2))
    assert oracle.refreshes[0] == ("alice", 1)
    assert oracle.asked == [("alice", 1)]  # the requests did not wait
    oracle.permissions.of(ALICE).keep(1, Access.NONE)
    assert [reply.code for reply in await alice.ask(add(1, 3))] == [Code.UNAUTHORIZED]


async def test_a_deleted_ledger_is_decided_again(guarded: BookieService, alice: Peer, oracle: Oracle) -> None:
    """Another log's ledger may get its id."""
    for waits_s in (0.0, LIFETIME_S / 2):  # a recent decision, and an older one
        oracle.set("alice", 1, Access.WRITE)
        await alice.ask(ReadRequest(1, 0))
        oracle.now_s += waits_s
        await alice.ask(ReadRequest(3, 0))
        oracle.set("alice", 1, Access.NONE)
        guarded.ledger_deleted(1, fenced=False)
        assert await alice.ask(ReadRequest(1, 0)) == [ReadReply(Code.UNAUTHORIZED, 1, 0)]
        guarded.ledger_deleted(1, fenced=False)


@pytest.mark.slow
async def test_decisions_are_bounded_and_each_identity_has_some(
    guarded: BookieService, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions_module, "DECISIONS_MAX", 1000)
    greedy, modest = Peer(guarded, ALICE), Peer(guarded, BOB)
    await modest.ask(ReadRequest(1, 0))
    for start in range(0, 5000, 100):
        await greedy.ask(*[ReadRequest(ledger_id, 0) for ledger_id in range(start, start + 100)])
    peer = oracle.permissions.of(ALICE)
    assert len(peer.recent) + len(peer._older) <= 1000
    asked = len(oracle.asked)
    await modest.ask(ReadRequest(1, 0))
    assert len(oracle.asked) == asked


@pytest.mark.slow
async def test_the_decisions_of_an_identity_go_with_its_last_connection(
    guarded: BookieService, oracle: Oracle
) -> None:
    peer = Peer(guarded, ALICE)
    await peer.ask(ReadRequest(1, 0))
    assert len(oracle.permissions._peers) == 1
    del peer
    gc.collect()
    assert len(oracle.permissions._peers) == 0


async def test_a_long_poll_waits_no_longer_than_a_decision_is_used(alice: Peer, disk: HandDisk) -> None:
    filled(disk)
    poll = ReadRequest(1, -1, previous_lac=3, timeout_ms=3_600_000, piggyback_entry=True)
    await alice.ask(poll, version=3)
    (deferred,) = alice.deferred
    assert isinstance(deferred, IncomingRequest)
    assert deferred.request == attrs.evolve(poll, timeout_ms=int(LIFETIME_S / 2 * 1000))
