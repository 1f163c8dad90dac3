"""Hints of the LAC at the bookie: they raise it in memory, and do nothing else."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from bookie.ledger_record import LedgerRecord
from bookie.requests.session import BookieService
from ledger.codes import Code
from ledger.wire.messages import WriteLacReply, WriteLacRequest
from tests.fakes.service_by_hand import ENTRIES, KEY, OTHER_KEY, HandDisk, Peer, add, fence


def hint(lac: int, *, ledger_id: int = 1, key: bytes = KEY) -> WriteLacRequest:
    return WriteLacRequest(ledger_id, lac, key, ENTRIES.pack_lac(ledger_id, lac), hint=True)


def test_a_hint_raises_the_lac_without_a_journal_record_or_a_reply(
    peer: Peer, service: BookieService, disk: HandDisk
) -> None:
    peer.ask(add(1, 0))
    disk.sync()
    peer.replies()
    events: list[float] = []

    class Watcher:
        def lac_is(self, ledger_id: int, lac: int, *, now: bool = False) -> None:
            events.append(lac)

        def ledger_changed(self, ledger_id: int) -> None:
            raise AssertionError

    service.watches.watch(1, Watcher())
    batches = len(disk.batches)
    peer.ask(hint(0), version=3)
    assert (disk.ledgers[1].lac, events) == (0, [0])
    assert (peer.replies(), len(disk.batches), disk.staged) == ([], batches, [])


@pytest.mark.parametrize("lac", [-1, 3, 4])
def test_a_hint_never_lowers_the_lac(peer: Peer, disk: HandDisk, lac: int) -> None:
    packet = ENTRIES.pack_lac(1, 4)
    disk.ledgers[1] = LedgerRecord(1, KEY, explicit_lac=packet, lac=4)
    peer.ask(hint(lac), version=3)
    assert (disk.ledgers[1].lac, disk.ledgers[1].explicit_lac) == (4, packet)


@pytest.mark.parametrize("state", [{"fenced": True}, {"limbo": True}, {"master_key": OTHER_KEY}])
def test_a_hint_changes_no_ledger_that_is_fenced_in_limbo_or_of_another_key(
    peer: Peer, disk: HandDisk, state: dict[str, Any]
) -> None:
    """A recovery decides the end of a fenced ledger; its old writer has no more to say."""
    disk.ledgers[1] = LedgerRecord(1, **({"master_key": KEY} | state))
    peer.ask(hint(4), version=3)
    assert (disk.ledgers[1].lac, disk.ledgers[1].explicit_lac, peer.replies()) == (-1, None, [])


def test_a_hint_after_a_fence_of_the_same_chunk_changes_nothing(peer: Peer, disk: HandDisk) -> None:
    peer.ask(add(1, 0))
    peer.ask(fence(1))
    peer.ask(hint(0), version=3)
    assert disk.ledgers[1].lac == -1


def test_a_hint_creates_no_ledger(peer: Peer, service: BookieService, disk: HandDisk) -> None:
    peer.ask(hint(4), version=3)
    service.ledger_deleted(2, fenced=True)
    peer.ask(hint(4, ledger_id=2), version=3)
    assert (disk.ledgers, disk.batches, disk.staged) == ({}, [], [])


@pytest.mark.parametrize("body", [b"", bytes(8), bytes(1000), ENTRIES.pack_lac(2, 4)])
def test_a_malformed_hint_is_refused(peer: Peer, disk: HandDisk, body: bytes) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY)
    peer.ask(attrs.evolve(hint(4), body=body), version=3)
    assert peer.replies() == [WriteLacReply(Code.BAD_REQUEST, 1)]
    assert disk.ledgers[1].lac == -1


def test_a_read_only_bookie_takes_hints(peer: Peer, service: BookieService, disk: HandDisk) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY)
    service.rights.writable = False
    peer.ask(hint(4), version=3)
    assert disk.ledgers[1].lac == 4
