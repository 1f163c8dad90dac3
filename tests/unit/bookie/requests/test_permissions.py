"""Permissions at a bookie: each operation of a peer that lacks the right, and the frames that wait."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import attrs
import pytest

from bookie.ledger_record import LedgerRecord
from bookie.requests.permissions import (
    NO_SUCH_LEDGER,
    OUT_OF_REACH,
    Access,
    Decision,
)
from bookie.requests.session import SLOW_FRAMES_MAX, BookieService
from ledger.codes import Code
from ledger.errors import WireError
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddReply,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    IncomingRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    Request,
    StartTlsRequest,
    WriteLacRequest,
)
from tests.fakes.service_by_hand import ENTRIES, KEY, HandDisk, add, fence
from tests.fuzz.port import GOOD, LEDGER, inputs_of
from tests.fuzz.port import KEY as FUZZED_KEY
from tests.unit.bookie.requests.guarded_sessions import ALICE, BOB, Oracle, Peer, filled

LAC = WriteLacRequest(1, 0, KEY, ENTRIES.pack_lac(1, 0))
WRITES: list[tuple[Request, int]] = [
    (add(1, 0), 2),
    (add(1, 0), 3),
    (add(1, 7, recovery=True), 2),
    (add(1, 7, recovery=True), 3),
    (add(1, 0, deferred_sync=True), 3),
    (fence(1), 2),
    (fence(1), 3),
    (BatchReadRequest(1, 0, 5, 1, 100, fence=True, master_key=KEY), 2),
    (LAC, 3),
    (attrs.evolve(LAC, hint=True), 3),
    (ForceLedgerRequest(1), 3),
]
READS: list[tuple[Request, int]] = [
    (ReadRequest(1, 0), 2),
    (ReadRequest(1, 0), 3),
    (ReadRequest(1, -1), 2),
    (ReadRequest(1, -1), 3),
    (ReadRequest(1, 0, previous_lac=3), 3),
    (ReadRequest(1, -1, previous_lac=3, timeout_ms=1000, piggyback_entry=True), 3),
    (BatchReadRequest(1, 0, 5, 1, 100), 2),
    (ReadLacRequest(1), 3),
    (ListEntriesRequest(1), 3),
]


def name_of(case: tuple[Request, int]) -> str:
    return f"{type(case[0]).__name__}-v{case[1]}"


# Each operation


@pytest.mark.slow
@pytest.mark.parametrize("has_ledger", [False, True])
@pytest.mark.parametrize("case", WRITES + READS, ids=name_of)
async def test_without_a_right_each_request_is_refused_and_does_nothing(
    alice: Peer, oracle: Oracle, disk: HandDisk, case: tuple[Request, int], has_ledger: bool
) -> None:
    oracle.set("alice", 1, Access.NONE)
    if has_ledger:
        filled(disk)
    before = dict(disk.entries), dict(disk.ledgers)
    (reply,) = await alice.ask(case[0], version=case[1])
    assert reply.code is Code.UNAUTHORIZED
    assert (disk.entries, disk.ledgers) == before
    assert (disk.batches, disk.staged, alice.deferred) == ([], [], [])


@pytest.mark.parametrize("case", WRITES, ids=name_of)
async def test_with_the_right_to_read_each_write_is_refused_and_does_nothing(
    alice: Peer, oracle: Oracle, disk: HandDisk, case: tuple[Request, int]
) -> None:
    oracle.set("alice", 1, Access.READ)
    filled(disk)
    (reply,) = await alice.ask(case[0], version=case[1])
    assert reply.code is Code.UNAUTHORIZED
    assert not disk.ledgers[1].fenced
    assert (disk.batches, disk.staged, alice.deferred) == ([], [], [])


@pytest.mark.parametrize("case", READS, ids=name_of)
async def test_with_the_right_to_read_each_read_is_served(
    alice: Peer, oracle: Oracle, disk: HandDisk, case: tuple[Request, int]
) -> None:
    oracle.set("alice", 1, Access.READ)
    filled(disk)
    replies = await alice.ask(case[0], version=case[1])
    assert len(replies) + len(alice.deferred) == 1
    assert all(reply.code is Code.OK for reply in replies)


@pytest.mark.parametrize("case", WRITES, ids=name_of)
async def test_with_the_right_to_write_each_write_is_served(
    alice: Peer, disk: HandDisk, case: tuple[Request, int]
) -> None:
    filled(disk)
    assert await alice.ask(case[0], version=case[1]) in ([], [AddReply(Code.OK, 1, 0)])
    assert disk.batches or alice.deferred or disk.ledgers[1].lac == 0  # a hint


async def test_the_ledger_of_an_add_is_the_one_in_its_entry(
    alice: Peer, oracle: Oracle, disk: HandDisk
) -> None:
    """Version 3 names the ledger twice. A peer names its own beside the entry of another one."""
    oracle.set("alice", 1, Access.NONE)
    own = attrs.evolve(add(1, 0), ledger_id=2)
    (reply,) = await alice.ask(own, version=3)
    assert reply.code is Code.BAD_REQUEST
    (reply,) = await alice.ask(attrs.evolve(LAC, ledger_id=2), version=3)
    assert reply.code is Code.BAD_REQUEST
    assert disk.ledgers == {}


async def test_requests_that_name_no_ledger_need_no_right(alice: Peer, oracle: Oracle) -> None:
    assert await alice.ask(BookieInfoRequest(), version=3) == []
    assert len(alice.deferred) == 1
    assert oracle.asked == []


async def test_each_identity_has_its_own_rights_and_its_connections_share_them(
    guarded: BookieService, oracle: Oracle, disk: HandDisk
) -> None:
    oracle.set("bob", 1, Access.READ)
    alice, bob, other = Peer(guarded, ALICE), Peer(guarded, BOB), Peer(guarded, BOB)
    assert await alice.ask(add(1, 0)) == []
    assert len(disk.batches) == 1
    for peer in (bob, other):
        assert await peer.ask(add(1, 1)) == [AddReply(Code.UNAUTHORIZED, 1, 1)]
        assert [reply.code for reply in await peer.ask(ReadRequest(1, 0))] == [Code.OK]
    assert oracle.asked == [("alice", 1), ("bob", 1)]


@pytest.mark.parametrize("case", [*WRITES, *READS, (BookieInfoRequest(), 3)], ids=name_of)
def test_without_an_identity_only_start_tls_passes(
    guarded: BookieService, disk: HandDisk, case: tuple[Request, int]
) -> None:
    stranger = Peer(guarded, None)
    stranger.begin(case[0], version=case[1])
    assert stranger.waiting == 0
    assert [reply.code for reply in stranger.replies()] == [Code.UNAUTHORIZED]
    assert (disk.ledgers, disk.batches, stranger.deferred) == ({}, [], [])
    stranger.session.may_upgrade = True
    stranger.begin(StartTlsRequest(), version=3)
    assert len(stranger.deferred) == 1


def test_without_permissions_sessions_check_nothing(disk: HandDisk) -> None:
    session = Peer(BookieService(disk), ALICE).session  # type: ignore[arg-type]
    assert session.access is None


# Frames that wait


async def test_nothing_happens_before_the_decision_and_everything_in_order_after_it(
    alice: Peer, disk: HandDisk
) -> None:
    alice.begin(add(1, 0), fence(1), add(1, 1), add(2, 0), ReadRequest(2, 0))
    assert alice.waiting == 5
    assert (disk.ledgers, alice.replies(), alice.deferred) == ({}, [], [])
    await alice.go_on()
    names = [name for batch in disk.batches for name in batch.names]
    assert names == [("key", 1, -1), ("entry", 1, 0), ("fence", 1, -1), ("key", 2, -1), ("entry", 2, 0)]
    disk.sync()
    assert AddReply(Code.FENCED, 1, 1) in alice.replies()


async def test_frames_before_the_one_that_waits_are_served(alice: Peer, disk: HandDisk) -> None:
    await alice.ask(add(1, 0))
    alice.begin(add(1, 1), add(2, 0), add(1, 2))
    assert alice.waiting == 2
    disk.sync()
    assert alice.replies() == [AddReply(Code.OK, 1, 0), AddReply(Code.OK, 1, 1)]
    await alice.go_on()
    disk.sync()
    assert alice.replies() == [AddReply(Code.OK, 2, 0), AddReply(Code.OK, 1, 2)]


async def test_the_new_ledgers_of_a_chunk_are_decided_together(alice: Peer, oracle: Oracle) -> None:
    await alice.ask(*[add(ledger_id, 0) for ledger_id in range(40)])
    assert sorted(oracle.asked) == [("alice", ledger_id) for ledger_id in range(40)]
    assert alice.waits == 3


async def test_a_decision_that_is_out_of_reach_refuses_for_now(
    alice: Peer, oracle: Oracle, disk: HandDisk
) -> None:
    oracle.table["alice", 1] = OUT_OF_REACH
    requests: list[Request] = [add(1, 0), ReadRequest(1, 0), fence(1)]
    assert [reply.code for reply in await alice.ask(*requests)] == [Code.TOO_MANY_REQUESTS] * 3
    for request in (ForceLedgerRequest(1), LAC, ReadLacRequest(1), ListEntriesRequest(1)):
        (reply,) = await alice.ask(request, version=3)
        assert reply.code is Code.TOO_MANY_REQUESTS
    assert (disk.ledgers, alice.deferred) == ({}, [])
    del oracle.table["alice", 1]
    assert await alice.ask(add(1, 0)) == []
    disk.sync()
    assert alice.replies() == [AddReply(Code.OK, 1, 0)]


async def test_a_ledger_without_metadata_is_refused_until_it_has_some(
    alice: Peer, oracle: Oracle, disk: HandDisk
) -> None:
    oracle.table["alice", 1] = NO_SUCH_LEDGER
    assert await alice.ask(add(1, 0), add(1, 1)) == [
        AddReply(Code.UNAUTHORIZED, 1, entry_id) for entry_id in (0, 1)
    ]
    assert disk.ledgers == {}
    del oracle.table["alice", 1]
    assert await alice.ask(add(1, 0)) == []
    assert (1, 0) in disk.entries


async def test_refused_frames_among_granted_ones_are_refused_alone_and_leave_one_batch(
    alice: Peer, oracle: Oracle, disk: HandDisk
) -> None:
    oracle.set("alice", 2, Access.NONE)
    await alice.ask(add(1, 0), add(2, 0))
    disk.sync()
    alice.replies()
    chunk = [add(1 + number % 2, 1 + number) for number in range(100)]
    assert [reply.code for reply in await alice.ask(*chunk)] == [Code.UNAUTHORIZED] * 50
    assert [len(batch.names) for batch in disk.batches] == [50]


async def test_masses_of_refused_frames_are_answered_in_slices(alice: Peer, oracle: Oracle) -> None:
    oracle.set("alice", 1, Access.NONE)
    chunk = [ReadRequest(1, entry_id) for entry_id in range(4 * SLOW_FRAMES_MAX)]
    replies = await alice.ask(*chunk)
    assert replies == [ReadReply(Code.UNAUTHORIZED, 1, entry_id) for entry_id in range(len(chunk))]
    assert alice.pauses >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_random_chunks_touch_only_ledgers_that_the_peer_may_use(
    disk: HandDisk, oracle: Oracle, guarded: BookieService, seed: int
) -> None:
    rng = random.Random(seed)
    for ledger_id in range(6):
        oracle.table["alice", ledger_id] = rng.choice(
            [Decision(access) for access in Access] + [NO_SUCH_LEDGER, OUT_OF_REACH]
        )
        disk.create_ledger_by_hand(ledger_id)
        disk.entries[ledger_id, 0] = ENTRIES.pack(ledger_id, 0, -1, 5, b"hello")
    writable = {ledger for (_, ledger), found in oracle.table.items() if found.access is Access.WRITE}
    peer = Peer(guarded, ALICE)
    next_id = 1
    for _ in range(30):
        frames = []
        for _ in range(rng.randrange(1, 20)):
            ledger_id, version = rng.randrange(6), rng.choice([2, 3])
            next_id += 1
            choices: list[Request] = [
                add(ledger_id, next_id),
                add(ledger_id, next_id, recovery=True),
                ReadRequest(ledger_id, 0),
                fence(ledger_id),
            ]
            request = rng.choice(choices)
            frames.append((v2 if version == 2 else v3).encode_request(request))
        if rng.random() < 0.2:
            frames.append(v3.encode_request(ForceLedgerRequest(rng.randrange(6))))
        peer.begin_frames(*frames)
        await peer.go_on()
        for reply in peer.replies():
            if isinstance(reply, ReadReply) and reply.code is Code.OK:
                assert oracle.table["alice", reply.ledger_id].access >= Access.READ
        for batch in disk.batches:
            assert {ledger_id for _, ledger_id, _ in batch.names} <= writable
            assert set(batch.awaited) <= writable
        disk.sync()
        for reply in peer.replies():
            if isinstance(reply, AddReply | ForceLedgerReply) and reply.code is Code.OK:
                assert reply.ledger_id in writable
        oracle.now_s += rng.choice([0, 0, 7])
    assert all(not disk.ledgers[ledger_id].fenced for ledger_id in set(range(6)) - writable)


class RefusesEverybody(Oracle):
    """No peer may do anything."""

    async def decide(self, principal: str, ledger_ids: Sequence[int]) -> Mapping[int, Decision]:
        return dict.fromkeys(ledger_ids, Decision(Access.NONE))


async def test_no_bytes_of_a_peer_without_rights_touch_a_ledger(disk: HandDisk) -> None:
    """The inputs of the fuzzer of the port, some of them with the key of a ledger."""
    guarded = BookieService(disk, permissions=RefusesEverybody().permissions)  # type: ignore[arg-type]
    disk.ledgers[LEDGER] = LedgerRecord(LEDGER, FUZZED_KEY)
    disk.entries[LEDGER, 0] = GOOD.pack(LEDGER, 0, -1, 5, b"hello")
    before = dict(disk.entries)
    answered = 0
    for data in inputs_of(1, 600):
        peer = Peer(guarded, ALICE)
        try:
            peer.begin_frames(data)
            await peer.go_on()
        except WireError:
            pass
        answered += bool(peer._out)
        for deferred in peer.deferred:
            assert isinstance(deferred, IncomingRequest)
            assert isinstance(deferred.request, BookieInfoRequest | StartTlsRequest), deferred
        assert (list(disk.ledgers), disk.entries) == ([LEDGER], before)
        assert (disk.batches, disk.staged, disk.ledgers[LEDGER].fenced) == ([], [], False)
    assert answered > 200  # the others are no frames
