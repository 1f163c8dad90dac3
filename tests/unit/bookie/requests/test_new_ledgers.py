"""The budget of ledgers that no metadata have confirmed: beyond it a stranger begins no more of them."""

from __future__ import annotations

import logging

import pytest

from bookie.ledger_record import LedgerRecord
from bookie.requests.new_ledgers import NewLedgers, NewLedgersConfig
from bookie.requests.session import BookieService
from ledger.codes import Code
from ledger.wire import v2, v3
from ledger.wire.messages import AddReply, ReadReply, WriteLacReply, WriteLacRequest
from tests.fakes.service_by_hand import ENTRIES, KEY, HandDisk, Peer, add, fence

STRANGE_LEDGERS = 20_000


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def budget(service: BookieService, clock: Clock, **limits: float) -> NewLedgers:
    service.new_ledgers = NewLedgers(NewLedgersConfig(**limits), clock)  # type: ignore[arg-type]
    return service.new_ledgers


@pytest.mark.slow
def test_adds_to_random_ledgers_begin_as_many_as_the_limit_allows(
    peer: Peer, disk: HandDisk, service: BookieService, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    disk.ledgers[7] = LedgerRecord(7, KEY)  # a ledger that this bookie has
    new = budget(service, clock, unconfirmed_max=1000, per_second_max=400)
    with caplog.at_level(logging.WARNING):
        for start in range(1000, 1000 + STRANGE_LEDGERS, 1000):
            frames = [v2.encode_request(add(ledger_id, 0)) for ledger_id in range(start, start + 1000)]
            peer.send_frames(*frames)
            clock.now_s += 1
    disk.sync()
    codes = [reply.code for reply in peer.replies()]
    assert (codes.count(Code.OK), codes.count(Code.TOO_MANY_REQUESTS)) == (1000, STRANGE_LEDGERS - 1000)
    assert len(disk.ledgers) == 1001
    assert len(new) == 1000
    assert new.refused == STRANGE_LEDGERS - 1000
    assert len(caplog.records) == 1, "one line a minute"
    peer.ask(add(7, 0))
    peer.ask(add(1000, 1))
    disk.sync()
    assert peer.replies() == [AddReply(Code.OK, 7, 0), AddReply(Code.OK, 1000, 1)], "known ledgers go on"


def test_fences_and_lac_packets_count_as_well(
    peer: Peer, disk: HandDisk, service: BookieService, clock: Clock
) -> None:
    budget(service, clock, unconfirmed_max=2)
    peer.ask(fence(1))
    peer.ask(WriteLacRequest(2, 5, KEY, ENTRIES.pack_lac(2, 5)), version=3)
    disk.sync()
    peer.raw()
    peer.deferred.clear()
    peer.ask(fence(3))
    peer.ask(WriteLacRequest(4, 5, KEY, ENTRIES.pack_lac(4, 5)), version=3)
    assert peer.replies() == [
        ReadReply(Code.TOO_MANY_REQUESTS, 3, -1),
        WriteLacReply(Code.TOO_MANY_REQUESTS, 4),
    ]
    assert set(disk.ledgers) == {1, 2}
    assert peer.deferred == [], "a fence that was not stored is not answered as if it were"
    peer.ask(fence(1))
    assert len(peer.deferred) == 1, "a ledger that is here can be fenced at any time"


def test_the_rate_allows_a_burst_and_then_so_many_a_second(
    peer: Peer, disk: HandDisk, service: BookieService, clock: Clock
) -> None:
    budget(service, clock, per_second_max=10)
    created = 0
    for second, more in ((0, 10), (0.5, 5), (1, 10), (60, 10)):
        clock.now_s += second
        for _ in range(50):
            peer.ask(add(1000 + 50 * len(disk.ledgers) + created, 0), version=3)
        created += more
        assert len(disk.ledgers) == created


def test_a_confirmed_or_deleted_ledger_leaves_the_budget(
    peer: Peer, disk: HandDisk, service: BookieService, clock: Clock
) -> None:
    new = budget(service, clock, unconfirmed_max=2)
    for ledger_id in (1, 2):
        peer.ask(add(ledger_id, 0))
    new.forget([1])
    peer.ask(add(3, 0))
    del disk.ledgers[2]
    service.ledger_deleted(2, fenced=False)
    peer.ask(add(4, 0))
    assert set(disk.ledgers) == {1, 3, 4}
    assert list(new.oldest(9)) == [3, 4]
    peer.ask(add(5, 0))
    assert 5 not in disk.ledgers


@pytest.mark.slow
def test_without_metadata_there_is_no_budget(peer: Peer, disk: HandDisk) -> None:
    peer.send_frames(*[v3.encode_request(add(ledger_id, 0)) for ledger_id in range(20_000)])
    assert len(disk.ledgers) == 20_000


@pytest.mark.parametrize("version", [2, 3])
def test_a_ledger_that_the_metadata_cannot_hold_is_refused_and_not_created(
    peer: Peer, disk: HandDisk, service: BookieService, version: int
) -> None:
    service.may_exist = lambda ledger_id: ledger_id < 100
    peer.ask(add(100, 0), version=version)
    peer.ask(fence(100), version=version)
    peer.ask(WriteLacRequest(100, 5, KEY, ENTRIES.pack_lac(100, 5)), version=3)
    disk.sync()
    assert [reply.code for reply in peer.replies()] == [Code.BAD_REQUEST] * 3
    assert disk.ledgers == {}
    peer.ask(add(99, 0), version=version)
    disk.sync()
    assert peer.replies() == [AddReply(Code.OK, 99, 0)]
