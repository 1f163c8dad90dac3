"""Permissions at a bookie: each operation of a peer that lacks the right, and the frames that wait."""

from __future__ import annotations

import gc
import random
from collections.abc import Mapping, Sequence

import attrs
import pytest

import bookie.requests.permissions as permissions_module
from bookie.auth.authentication import PeerIdentity
from bookie.ledger_record import LedgerRecord
from bookie.requests.deferred import DeferredRequest
from bookie.requests.permissions import (
    NO_SUCH_LEDGER,
    OUT_OF_REACH,
    Access,
    Decision,
    GuardedService,
    GuardedSession,
    PeerPermissions,
    Permissions,
)
from bookie.requests.service import SLOW_FRAMES_MAX, BookieService, ClientSession
from ledger.codes import Code
from ledger.errors import WireError
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
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
    Reply,
    Request,
    StartTlsRequest,
    WriteLacRequest,
)
from tests.fakes.service_by_hand import ENTRIES, KEY, HandDisk, add, fence
from tests.fuzz.port import GOOD, LEDGER, inputs_of
from tests.fuzz.port import KEY as FUZZED_KEY

ALICE, BOB = PeerIdentity("alice", "sasl"), PeerIdentity("bob", "sasl")
LIFETIME_S = 60.0
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


class Oracle:
    """Decides by a table; everything is granted that is not in it."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, int], Decision] = {}
        self.asked: list[tuple[str, int]] = []
        self.now_s = 0.0
        self.refreshes: list[tuple[str, int]] = []
        self.permissions = Permissions(
            self.decide, lifetime_s=LIFETIME_S, now_s=lambda: self.now_s, refresh=self.refresh
        )

    def set(self, name: str, ledger_id: int, access: Access) -> None:
        self.table[name, ledger_id] = Decision(access)

    async def decide(self, principal: str, ledger_ids: Sequence[int]) -> Mapping[int, Decision]:
        self.asked += [(principal, ledger_id) for ledger_id in ledger_ids]
        return {one: self.table.get((principal, one), Decision(Access.WRITE)) for one in ledger_ids}

    def refresh(self, peer: PeerPermissions, ledger_id: int) -> None:
        self.refreshes.append((peer.name, ledger_id))


class Peer:
    """A connection that awaits decisions as ``Connection`` does, or stops at the first one."""

    def __init__(self, service: BookieService, identity: PeerIdentity | None) -> None:
        self.deferred: list[DeferredRequest] = []
        self._out = bytearray()
        self.session = service.open_session(self._out.extend, self.deferred.append)
        self.session.identity = identity
        self.waits = 0
        self.pauses = 0
        self._rest: tuple[bytes, Sequence[tuple[int, int]]] = b"", ()

    def begin(self, *requests: Request, version: int = 2) -> None:
        """Send all requests in one chunk; stop at the first that waits for a decision."""
        codec = v2 if version == 2 else v3
        self.begin_frames(*map(codec.encode_request, requests))

    def begin_frames(self, *frames: bytes) -> None:
        data, spans = FrameBuffer().feed(b"".join(frames))
        self._rest = data, self.session.handle(data, spans)

    @property
    def waiting(self) -> int:
        """How many frames wait."""
        return len(self._rest[1])

    async def go_on(self) -> None:
        """Await the decisions, and handle the frames that wait."""
        data, spans = self._rest
        while spans:
            if self.session.wait_decision is None:
                self.pauses += 1
            else:
                self.waits += 1
                await self.session.wait_decision()
            spans = self.session.handle(data, spans)
        self._rest = data, ()

    async def ask(self, *requests: Request, version: int = 2) -> list[Reply]:
        """The replies that come at once."""
        self.begin(*requests, version=version)
        await self.go_on()
        return self.replies()

    def replies(self) -> list[Reply]:
        data, spans = FrameBuffer().feed(bytes(self._out))
        self._out.clear()
        return [(v2 if data[start] <= 7 else v3).decode_reply(data, start, end).reply for start, end in spans]


@pytest.fixture
def disk() -> HandDisk:
    return HandDisk()


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def service(disk: HandDisk, oracle: Oracle) -> GuardedService:
    return GuardedService(disk, oracle.permissions)  # type: ignore[arg-type]


@pytest.fixture
def alice(service: GuardedService) -> Peer:
    return Peer(service, ALICE)


def filled(disk: HandDisk) -> None:
    """Ledger 1 has an entry."""
    ledger = disk.create_ledger_by_hand(1)
    disk.entries[1, 0] = ENTRIES.pack(1, 0, -1, 5, b"hello")
    ledger.last_entry_id = 0


def name_of(case: tuple[Request, int]) -> str:
    return f"{type(case[0]).__name__}-v{case[1]}"


# Each operation


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
    assert disk.batches or alice.deferred


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
    service: GuardedService, oracle: Oracle, disk: HandDisk
) -> None:
    oracle.set("bob", 1, Access.READ)
    alice, bob, other = Peer(service, ALICE), Peer(service, BOB), Peer(service, BOB)
    assert await alice.ask(add(1, 0)) == []
    assert len(disk.batches) == 1
    for peer in (bob, other):
        assert await peer.ask(add(1, 1)) == [AddReply(Code.UNAUTHORIZED, 1, 1)]
        assert [reply.code for reply in await peer.ask(ReadRequest(1, 0))] == [Code.OK]
    assert oracle.asked == [("alice", 1), ("bob", 1)]


@pytest.mark.parametrize("case", [*WRITES, *READS, (BookieInfoRequest(), 3)], ids=name_of)
def test_without_an_identity_only_start_tls_passes(
    service: GuardedService, disk: HandDisk, case: tuple[Request, int]
) -> None:
    stranger = Peer(service, None)
    stranger.begin(case[0], version=case[1])
    assert stranger.waiting == 0
    assert [reply.code for reply in stranger.replies()] == [Code.UNAUTHORIZED]
    assert (disk.ledgers, disk.batches, stranger.deferred) == ({}, [], [])
    stranger.session.may_upgrade = True
    stranger.begin(StartTlsRequest(), version=3)
    assert len(stranger.deferred) == 1


def test_without_permissions_sessions_check_nothing(disk: HandDisk) -> None:
    session = Peer(BookieService(disk), ALICE).session  # type: ignore[arg-type]
    assert type(session) is ClientSession
    assert not isinstance(session, GuardedSession)


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


# Decisions that are kept


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


async def test_a_deleted_ledger_is_decided_again(
    service: GuardedService, alice: Peer, oracle: Oracle
) -> None:
    """Another log's ledger may get its id."""
    for waits_s in (0.0, LIFETIME_S / 2):  # a recent decision, and an older one
        oracle.set("alice", 1, Access.WRITE)
        await alice.ask(ReadRequest(1, 0))
        oracle.now_s += waits_s
        await alice.ask(ReadRequest(3, 0))
        oracle.set("alice", 1, Access.NONE)
        service.ledger_deleted(1, fenced=False)
        assert await alice.ask(ReadRequest(1, 0)) == [ReadReply(Code.UNAUTHORIZED, 1, 0)]
        service.ledger_deleted(1, fenced=False)


async def test_decisions_are_bounded_and_each_identity_has_some(
    service: GuardedService, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions_module, "DECISIONS_MAX", 1000)
    greedy, modest = Peer(service, ALICE), Peer(service, BOB)
    await modest.ask(ReadRequest(1, 0))
    for start in range(0, 5000, 100):
        await greedy.ask(*[ReadRequest(ledger_id, 0) for ledger_id in range(start, start + 100)])
    peer = oracle.permissions.of(ALICE)
    assert len(peer.recent) + len(peer._older) <= 1000
    asked = len(oracle.asked)
    await modest.ask(ReadRequest(1, 0))
    assert len(oracle.asked) == asked


async def test_the_decisions_of_an_identity_go_with_its_last_connection(
    service: GuardedService, oracle: Oracle
) -> None:
    peer = Peer(service, ALICE)
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


@pytest.mark.parametrize("seed", range(20))
async def test_random_chunks_touch_only_ledgers_that_the_peer_may_use(
    disk: HandDisk, oracle: Oracle, service: GuardedService, seed: int
) -> None:
    rng = random.Random(seed)
    for ledger_id in range(6):
        oracle.table["alice", ledger_id] = rng.choice(
            [Decision(access) for access in Access] + [NO_SUCH_LEDGER, OUT_OF_REACH]
        )
        disk.create_ledger_by_hand(ledger_id)
        disk.entries[ledger_id, 0] = ENTRIES.pack(ledger_id, 0, -1, 5, b"hello")
    writable = {ledger for (_, ledger), found in oracle.table.items() if found.access is Access.WRITE}
    peer = Peer(service, ALICE)
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
    service = GuardedService(disk, RefusesEverybody().permissions)  # type: ignore[arg-type]
    disk.ledgers[LEDGER] = LedgerRecord(LEDGER, FUZZED_KEY)
    disk.entries[LEDGER, 0] = GOOD.pack(LEDGER, 0, -1, 5, b"hello")
    before = dict(disk.entries)
    answered = 0
    for data in inputs_of(1, 600):
        peer = Peer(service, ALICE)
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
