"""The service machine: fences, and long polls that wait for something to happen."""

from __future__ import annotations

import pytest

from bookie.ledger_record import LedgerRecord
from bookie.requests.session import BookieService
from ledger.codes import Code
from ledger.wire import v2
from ledger.wire.messages import (
    AddReply,
    BatchReadReply,
    BatchReadRequest,
    IncomingRequest,
    ReadReply,
    WriteLacReply,
    WriteLacRequest,
)
from tests.fakes.service_by_hand import ENTRIES, KEY, OTHER_KEY, HandDisk, Peer, add, fence

# Fences


def test_a_fence_is_answered_after_its_record_is_durable_and_refuses_adds_at_once(
    peer: Peer, disk: HandDisk
) -> None:
    peer.ask(add(1, 0))
    disk.sync()
    peer.raw()
    peer.ask(fence(1))
    peer.ask(add(1, 1))
    assert peer.replies() == [AddReply(Code.FENCED, 1, 1)]
    assert peer.deferred == []
    assert (1, 1) not in disk.entries
    disk.sync()
    assert [work.request for work in peer.deferred if isinstance(work, IncomingRequest)] == [fence(1)]


def test_a_fence_between_two_adds_of_one_chunk_stops_the_second(peer: Peer, disk: HandDisk) -> None:
    peer.ask(add(1, 0))
    disk.sync()
    peer.raw()
    peer.send_frames(*[v2.encode_request(request) for request in (add(1, 1), fence(1), add(1, 2))])
    assert disk.batches[0].names == [("entry", 1, 1), ("fence", 1, -1)]
    assert peer.replies() == [AddReply(Code.FENCED, 1, 2)]
    disk.sync()
    assert peer.replies() == [AddReply(Code.OK, 1, 1)]


@pytest.mark.parametrize("version", [2, 3])
def test_a_fence_on_an_unknown_ledger_journals_key_and_fence(
    peer: Peer, disk: HandDisk, version: int
) -> None:
    # Java journals the fence alone and loses it in a restart; deviation 13.4.
    peer.ask(fence(5), version=version)
    assert disk.batches[0].names == [("key", 5, -1), ("fence", 5, -1)]
    assert peer.deferred == [], "not even ENOENTRY may be said before the fence is durable"
    disk.sync()
    assert len(peer.deferred) == 1
    peer.ask(add(5, 0), version=version)
    assert peer.replies() == [AddReply(Code.FENCED, 5, 0)]


def test_a_second_fence_waits_for_the_first_ones_record(service: BookieService, disk: HandDisk) -> None:
    first, second = Peer(service), Peer(service)
    first.ask(fence(5))
    second.ask(fence(5, 3))
    assert [batch.names for batch in disk.batches] == [[("key", 5, -1), ("fence", 5, -1)], []]
    assert second.deferred == []
    disk.sync()
    assert len(second.deferred) == 1
    second.ask(fence(5, 4))
    assert disk.batches == [], "durable for good: nothing to wait for"
    assert len(second.deferred) == 2


def test_a_fence_whose_record_failed_is_an_io_error_and_never_counts_as_durable(
    peer: Peer, disk: HandDisk
) -> None:
    peer.ask(fence(5))
    disk.sync(OSError("dead"))
    assert peer.replies() == [ReadReply(Code.IO_ERROR, 5, -1)]
    peer.ask(fence(5))
    assert peer.deferred == []
    assert len(disk.batches) == 1


@pytest.mark.parametrize("recovery", [True, False])
def test_only_recovery_adds_get_through_a_fence(peer: Peer, disk: HandDisk, recovery: bool) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY, fenced=True)
    peer.ask(add(1, 0, recovery=recovery))
    disk.sync()
    assert peer.replies() == [AddReply(Code.OK if recovery else Code.FENCED, 1, 0)]


@pytest.mark.parametrize("key", [None, OTHER_KEY])
def test_a_fence_needs_the_ledgers_key(peer: Peer, disk: HandDisk, key: bytes | None) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY)
    peer.ask(fence(1, key=key), version=3)
    assert peer.replies() == [ReadReply(Code.UNAUTHORIZED, 1, -1)]
    assert not disk.ledgers[1].fenced


def test_fencing_without_a_key_creates_no_ledger(peer: Peer, disk: HandDisk) -> None:
    peer.ask(fence(1, key=None), version=3)
    assert peer.replies() == [ReadReply(Code.UNAUTHORIZED, 1, -1)]
    assert disk.ledgers == {}


def test_a_batch_read_fences_like_a_read(peer: Peer, disk: HandDisk) -> None:
    peer.ask(BatchReadRequest(1, 0, 9, 10, 1000, fence=True, master_key=KEY))
    assert peer.deferred == []
    assert disk.ledgers[1].fenced
    disk.sync(OSError("dead"))
    assert peer.replies() == [BatchReadReply(Code.IO_ERROR, 1, 0, 9)]


def test_a_ledger_fenced_and_deleted_stays_closed_to_its_old_writer(
    peer: Peer, service: BookieService, disk: HandDisk
) -> None:
    service.ledger_deleted(1, fenced=True)
    peer.ask(add(1, 0))
    peer.ask(add(1, 0, recovery=True))
    peer.ask(fence(1))
    packet = ENTRIES.pack_lac(1, 0)
    peer.ask(WriteLacRequest(1, 0, KEY, packet), version=3)
    assert peer.replies() == [
        AddReply(Code.FENCED, 1, 0),
        AddReply(Code.FENCED, 1, 0),
        ReadReply(Code.NO_LEDGER, 1, -1),
        WriteLacReply(Code.NO_LEDGER, 1),
    ]
    assert disk.ledgers == {}


# Long polls


def test_adds_lacs_fences_and_deletion_wake_watchers(
    peer: Peer, service: BookieService, disk: HandDisk
) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY)
    events: list[tuple[str, float]] = []

    class Watcher:
        def lac_is(self, ledger_id: int, lac: int, *, now: bool = False) -> None:
            events.append(("lac", lac))

        def ledger_changed(self, ledger_id: int) -> None:
            events.append(("changed", ledger_id))

    watcher = Watcher()
    service.watches.watch(1, watcher)
    peer.ask(add(1, 1, lac=0))
    peer.ask(add(1, 2, lac=1), version=3)
    peer.ask(WriteLacRequest(1, 6, KEY, ENTRIES.pack_lac(1, 6)), version=3)
    assert events == [("lac", 0), ("lac", 1), ("lac", 6)]
    peer.ask(fence(1))
    service.ledger_deleted(1, fenced=True)
    assert events[3:] == [("changed", 1), ("changed", 1)]
    service.watches.forget(1, watcher)
    service.watches.forget(1, watcher)  # no error
    assert not service.watches
