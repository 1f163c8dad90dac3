"""The service machine, called directly: frames in, frames out, the disk played by hand."""

# covers: bookie/requests/replies.py

from __future__ import annotations

import struct

import pytest

from bookie.ledger_record import LedgerRecord
from bookie.requests.deferred import PlainReads
from bookie.requests.session import BookieService
from ledger.codes import Code, Operation
from ledger.digest import master_key
from ledger.errors import WireError
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddReply,
    AddRequest,
    AuthReply,
    AuthRequest,
    BookieInfoRequest,
    ForceLedgerReply,
    ForceLedgerRequest,
    IncomingRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    StartTlsRequest,
    WriteLacReply,
    WriteLacRequest,
)
from tests.fakes.service_by_hand import ENTRIES, KEY, OTHER_KEY, HandDisk, Peer, add, entry, fence

# Adds


@pytest.mark.parametrize("version", [2, 3])
def test_an_add_is_acknowledged_only_when_its_run_is_durable(
    peer: Peer, disk: HandDisk, version: int
) -> None:
    peer.ask(add(1, 0), version=version, txn=7)
    assert peer.incoming_replies() == []
    assert disk.batches[0].names == [("key", 1, -1), ("entry", 1, 0)]
    assert disk.batches[0].sync, "an ordinary add is synced"
    disk.sync()
    (answer,) = peer.incoming_replies()
    assert answer.reply == AddReply(Code.OK, 1, 0)
    assert (answer.version, answer.transaction_id) == ((2, 0) if version == 2 else (3, 7))


def test_one_chunk_makes_one_run_and_its_answers_keep_their_bytes(peer: Peer, disk: HandDisk) -> None:
    peer.ask(add(1, 0))
    disk.sync()
    peer.raw()
    peer.send_frames(*[v2.encode_request(add(1, entry_id)) for entry_id in range(1, 100)])
    assert [len(batch.names) for batch in disk.batches] == [99]
    disk.sync()
    assert peer.raw() == b"".join(v2.add_reply(Code.OK, 1, entry_id) for entry_id in range(1, 100))


def test_entries_of_many_ledgers_in_one_chunk_find_their_own_ledger(peer: Peer, disk: HandDisk) -> None:
    for ledger_id in (1, 2, 3):
        disk.ledgers[ledger_id] = LedgerRecord(ledger_id, master_key(b"%d" % ledger_id))
    adds = [
        add(ledger_id, 5 * turn + place, key=master_key(b"%d" % ledger_id))
        for turn in range(5)
        for place, ledger_id in enumerate((1, 2, 3, 3, 1))
    ]
    peer.send_frames(*map(v2.encode_request, adds))
    disk.sync()
    assert peer.replies() == [AddReply(Code.OK, one.ledger_id, one.entry_id) for one in adds]


@pytest.mark.parametrize("version", [2, 3])
def test_the_first_add_binds_the_key(peer: Peer, disk: HandDisk, version: int) -> None:
    peer.ask(add(1, 0), version=version)
    peer.ask(add(1, 1, key=OTHER_KEY), version=version)
    assert peer.replies() == [AddReply(Code.UNAUTHORIZED, 1, 1)]
    assert (1, 1) not in disk.entries


def test_a_wrong_key_in_a_chunk_of_right_ones_is_refused_alone(peer: Peer, disk: HandDisk) -> None:
    peer.ask(add(1, 0))
    disk.sync()
    peer.raw()
    peer.send_frames(*[v2.encode_request(add(1, n, key=OTHER_KEY if n == 5 else KEY)) for n in range(1, 9)])
    assert peer.replies() == [AddReply(Code.UNAUTHORIZED, 1, 5)]
    disk.sync()
    assert [reply.entry_id for reply in peer.replies()] == [1, 2, 3, 4, 6, 7, 8]  # type: ignore[union-attr]
    assert (1, 5) not in disk.entries


def test_an_entry_may_come_again_and_out_of_order(peer: Peer, disk: HandDisk) -> None:
    for entry_id in (0, 0, 2, 1):
        peer.ask(add(1, entry_id))
    disk.sync()
    assert peer.replies() == [AddReply(Code.OK, 1, entry_id) for entry_id in (0, 0, 2, 1)]
    assert disk.ledgers[1].last_entry_id == 2


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("ledger_id", "entry_id"), [(1, -5), (1, -0x1000), (-1, 0)])
def test_negative_ids_are_refused_since_the_journal_uses_them(
    peer: Peer, disk: HandDisk, version: int, ledger_id: int, entry_id: int
) -> None:
    # Java stores them (captured: entry -5 answered with EOK); rejected (docs/protocol.md 9.2).
    disk.ledgers[1] = LedgerRecord(1, KEY)
    peer.ask(add(ledger_id, entry_id), version=version)
    assert peer.replies() == [AddReply(Code.BAD_REQUEST, ledger_id, entry_id)]
    assert disk.batches == []


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(1, 5), (2, 3)])
def test_ids_beside_the_body_must_be_those_in_it(
    peer: Peer, disk: HandDisk, ledger_id: int, entry_id: int
) -> None:
    # Java only echoes them (captured: EOK); rejected (docs/protocol.md 13).
    peer.ask(AddRequest(ledger_id, entry_id, KEY, entry(1, 3)), version=3)
    assert peer.replies() == [AddReply(Code.BAD_REQUEST, ledger_id, entry_id)]
    assert disk.entries == {}


@pytest.mark.parametrize("size", [0, 8, 23, 31])
def test_a_body_too_short_for_an_entry_is_a_bad_request(peer: Peer, disk: HandDisk, size: int) -> None:
    peer.ask(AddRequest(0, 0, KEY, bytes(size)), version=3)
    assert peer.replies() == [AddReply(Code.BAD_REQUEST, 0, 0)]
    assert disk.batches == []


@pytest.mark.parametrize("size", [16, 24, 31])
def test_a_short_body_in_version_2_is_answered_as_long_as_it_has_its_ids(
    peer: Peer, disk: HandDisk, size: int
) -> None:
    payload = struct.pack(">I20s", v2.ADD_HEADER, KEY) + entry(9, 4)[:size]
    peer.send_frames(struct.pack(">I", len(payload)) + payload)
    assert peer.replies() == [AddReply(Code.BAD_REQUEST, 9, 4)]
    assert disk.batches == []


def test_a_deferred_add_asks_for_no_sync_unless_somebody_in_its_run_does(peer: Peer, disk: HandDisk) -> None:
    deferred = v3.encode_request(add(1, 0, deferred_sync=True))
    peer.send_frames(deferred)
    assert [batch.sync for batch in disk.batches] == [False]
    peer.send_frames(v3.encode_request(add(1, 1, deferred_sync=True)), v3.encode_request(add(1, 2)))
    assert [batch.sync for batch in disk.batches] == [False, True]
    peer.ask(add(1, 3, deferred_sync=True, recovery=True), version=3)
    assert disk.batches[-1].sync, "recovery ignores the wish"


def test_force_waits_for_a_sync_of_all_before_it_even_without_a_ledger(peer: Peer, disk: HandDisk) -> None:
    peer.ask(ForceLedgerRequest(77), version=3, txn=4)
    assert peer.incoming_replies() == []
    assert disk.batches[0].names == []
    assert disk.batches[0].sync
    assert disk.batches[0].awaited == [77], "its adds may be in another journal than the rest of the chunk"
    disk.sync()
    assert peer.replies() == [ForceLedgerReply(Code.OK, 77)]


def test_a_fencing_read_behind_somebody_elses_fence_waits_for_the_ledgers_journal(
    peer: Peer, disk: HandDisk
) -> None:
    peer.ask(fence(1))
    peer.ask(fence(1, 5))
    assert disk.batches[1].names == [], "the fence is on its way already"
    assert [batch.awaited for batch in disk.batches] == [[1], [1]]


def test_force_syncs_even_where_adds_are_not(disk: HandDisk) -> None:
    service = BookieService(disk, sync_adds=False)  # type: ignore[arg-type]
    peer = Peer(service)
    peer.ask(add(1, 0))
    peer.ask(add(1, 1))
    peer.ask(ForceLedgerRequest(1), version=3)
    peer.ask(fence(1))
    assert [batch.sync for batch in disk.batches] == [False, False, True, True]


@pytest.mark.parametrize("version", [2, 3])
def test_a_failed_journal_is_told_to_every_request_of_the_run(
    peer: Peer, disk: HandDisk, version: int
) -> None:
    codec = v2 if version == 2 else v3
    peer.send_frames(*[codec.encode_request(add(1, n), transaction_id=n + 10) for n in range(3)])
    disk.sync(OSError("no more"))
    answers = peer.incoming_replies()
    assert [answer.reply for answer in answers] == [AddReply(Code.IO_ERROR, 1, n) for n in range(3)]
    if version == 3:
        assert [answer.transaction_id for answer in answers] == [10, 11, 12]


# Read-only


@pytest.mark.parametrize("version", [2, 3])
def test_a_read_only_bookie_takes_only_high_priority_adds_and_fences(
    peer: Peer, service: BookieService, disk: HandDisk, version: int
) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY)
    service.rights.writable = False
    peer.ask(add(1, 0), version=version)
    peer.ask(add(1, 0, recovery=True), version=version)
    assert peer.replies() == [AddReply(Code.READ_ONLY, 1, 0)] * 2
    peer.ask(add(1, 0, recovery=True), version=version, high_priority=True)
    disk.sync()
    assert peer.replies() == [AddReply(Code.OK, 1, 0)]
    peer.ask(fence(1), version=version)
    assert disk.ledgers[1].fenced
    service.rights.high_priority_writable = False
    peer.ask(add(1, 1, recovery=True), version=version, high_priority=True)
    assert peer.replies() == [AddReply(Code.READ_ONLY, 1, 1)]


def test_without_space_in_the_journal_a_fence_is_refused_and_not_in_force(
    peer: Peer, service: BookieService, disk: HandDisk
) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY)
    service.rights.hold(takes_records=False)
    peer.ask(fence(1), version=3)
    (reply,) = peer.replies()
    assert isinstance(reply, ReadReply)
    assert reply.code is Code.READ_ONLY
    assert not disk.ledgers[1].fenced
    peer.ask(add(1, 0, recovery=True), version=3, high_priority=True)
    assert peer.replies() == [AddReply(Code.READ_ONLY, 1, 0)]


def test_a_read_only_bookie_takes_no_explicit_lac_but_a_force(
    peer: Peer, service: BookieService, disk: HandDisk
) -> None:
    service.rights.writable = False
    peer.ask(WriteLacRequest(1, 0, KEY, ENTRIES.pack_lac(1, 0)), version=3)
    assert peer.replies() == [WriteLacReply(Code.READ_ONLY, 1)]
    peer.ask(ForceLedgerRequest(1), version=3)
    disk.sync()
    assert peer.replies() == [ForceLedgerReply(Code.OK, 1)]


# Explicit LAC


def test_an_explicit_lac_is_answered_when_durable_also_on_a_fenced_ledger(peer: Peer, disk: HandDisk) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY, fenced=True)
    packet = ENTRIES.pack_lac(1, 4)
    peer.ask(WriteLacRequest(1, 4, KEY, packet), version=3)
    assert peer.replies() == []
    disk.sync()
    assert peer.replies() == [WriteLacReply(Code.OK, 1)]
    assert disk.ledgers[1].explicit_lac == packet
    assert disk.ledgers[1].lac == 4


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (WriteLacRequest(1, 0, OTHER_KEY, ENTRIES.pack_lac(1, 0)), Code.UNAUTHORIZED),
        (WriteLacRequest(1, 0, KEY, bytes(8)), Code.BAD_REQUEST),
        (WriteLacRequest(1, 0, KEY, ENTRIES.pack_lac(2, 0)), Code.BAD_REQUEST),
    ],
)
def test_a_wrong_explicit_lac_is_refused(
    peer: Peer, disk: HandDisk, request_: WriteLacRequest, code: Code
) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY)
    peer.ask(request_, version=3)
    assert peer.replies() == [WriteLacReply(code, 1)]
    assert disk.ledgers[1].explicit_lac is None


# Reads


@pytest.mark.parametrize("version", [2, 3])
def test_a_recent_entry_is_answered_at_once(peer: Peer, disk: HandDisk, version: int) -> None:
    peer.ask(add(1, 0))
    peer.ask(add(1, 1))
    disk.sync()
    peer.raw()
    peer.ask(ReadRequest(1, 0), version=version)
    peer.ask(ReadRequest(1, -1), version=version)
    lac = None if version == 2 else 0
    assert peer.replies() == [
        ReadReply(Code.OK, 1, 0, entry(1, 0), max_lac=lac),
        ReadReply(Code.OK, 1, -1, entry(1, 1), max_lac=lac),
    ]


@pytest.mark.parametrize("version", [2, 3])
def test_unknown_ledgers_and_empty_ones_are_told_apart(peer: Peer, disk: HandDisk, version: int) -> None:
    disk.ledgers[2] = LedgerRecord(2, KEY)
    peer.ask(ReadRequest(1, 0), version=version)
    peer.ask(ReadRequest(1, -1), version=version)
    peer.ask(ReadRequest(2, -1), version=version)
    assert peer.replies() == [
        ReadReply(Code.NO_LEDGER, 1, 0),
        ReadReply(Code.NO_LEDGER, 1, -1),
        ReadReply(Code.NO_ENTRY, 2, -1),
    ]


def test_reads_not_in_memory_leave_the_chunk_as_one_piece_of_work(peer: Peer, disk: HandDisk) -> None:
    disk.ledgers[1] = LedgerRecord(1, KEY, last_entry_id=9)
    peer.send_frames(*[v2.encode_request(ReadRequest(1, n)) for n in range(5)])
    assert peer.deferred == [PlainReads.of(*((1, n) for n in range(5)))]


def test_one_chunk_of_reads_cannot_fill_the_memory(peer: Peer, disk: HandDisk) -> None:
    big = ENTRIES.pack(1, 0, -1, 1, bytes(600_000))
    disk.ledgers[1] = LedgerRecord(1, KEY, last_entry_id=0)
    disk.entries[1, 0] = big
    peer.send_frames(*[v2.encode_request(ReadRequest(1, 0)) for _ in range(1000)])
    assert len(peer.raw()) < 2_000_000
    assert peer.deferred == [PlainReads.of(*[(1, 0)] * 998)]


# Envelopes


def test_authentication_is_answered_as_disabled(peer: Peer) -> None:
    for version in (2, 3):
        peer.ask(AuthRequest("foo", b"x"), version=version)
    assert peer.replies() == [AuthReply(Code.OK, "AuthDisabledPlugin", b"")] * 2


def test_start_tls_without_tls_is_a_bad_request(peer: Peer) -> None:
    peer.ask(StartTlsRequest(), version=3)
    (answer,) = peer.incoming_replies()
    assert answer.operation is Operation.START_TLS
    assert answer.reply == RefusedReply(Code.BAD_REQUEST, Operation.START_TLS)


def test_start_tls_with_tls_is_work_for_the_shell(disk: HandDisk) -> None:
    peer = Peer(BookieService(disk, has_tls=True))  # type: ignore[arg-type]
    peer.ask(StartTlsRequest(), version=3)
    assert [work.request for work in peer.deferred if isinstance(work, IncomingRequest)] == [
        StartTlsRequest()
    ]
    assert peer.raw() == b""


@pytest.mark.parametrize("operation", [2, 1, 6, 7, 8, 9, 10, 11, 12, 3, 4])
def test_a_version_3_request_without_its_body_is_a_bad_request(
    peer: Peer, disk: HandDisk, operation: int
) -> None:
    # 4.18.0 closes the connection, 4.17.3 takes it for ledger 0; EBADREQ (docs/protocol.md 9.1).
    payload = bytes((0x0A, 6, 8, 3, 0x10, operation, 0x18, 5))
    peer.send_frames(struct.pack(">I", len(payload)) + payload)
    (answer,) = peer.incoming_replies()
    assert answer.reply.code is Code.BAD_REQUEST
    assert answer.transaction_id == 5
    assert disk.batches == []
    assert peer.deferred == []


def test_an_unknown_operation_closes_after_what_came_before_it_is_staged(peer: Peer, disk: HandDisk) -> None:
    payload = bytes((0x0A, 6, 8, 3, 0x10, 77, 0x18, 5))
    with pytest.raises(WireError):
        peer.send_frames(v2.encode_request(add(1, 0)), struct.pack(">I", len(payload)) + payload)
    assert disk.batches[0].names == [("key", 1, -1), ("entry", 1, 0)]
    assert disk.staged == []


@pytest.mark.parametrize("version", [3, 7, 8, 10])
def test_an_unknown_version_2_header_is_echoed_with_bad_version(peer: Peer, version: int) -> None:
    payload = struct.pack(">Iqq", version << 24 | 2 << 16, 1, 0)
    peer.send_frames(struct.pack(">I", len(payload)) + payload)
    assert peer.raw() == struct.pack(">IIIqq", 24, version << 24 | 2 << 16, 103, 1, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_a_version_3_frame_of_another_version_is_a_bad_version(peer: Peer, version: int) -> None:
    frame = bytearray(v3.encode_request(ReadRequest(1, 0), transaction_id=9))
    assert frame[7] == 3
    frame[7] = version
    peer.send_frames(bytes(frame))
    (answer,) = peer.incoming_replies()
    assert answer.reply == ReadReply(Code.BAD_VERSION, 1, 0)
    assert answer.transaction_id == 9


def test_limbo_is_told_to_version_2_as_an_io_error(service: BookieService) -> None:
    # Java's version 2 client drops the connection at 107; deviation 13.6.
    session = service.open_session(lambda frames: None, lambda work: None)
    reply = ReadReply(Code.UNKNOWN_LEDGER_STATE, 1, 0)
    frame = session.encode(IncomingRequest(2, Operation.READ_ENTRY, ReadRequest(1, 0)), reply)
    assert v2.decode_reply(frame, 4, len(frame)).reply.code is Code.IO_ERROR
    frame = session.encode(IncomingRequest(3, Operation.READ_ENTRY, ReadRequest(1, 0)), reply)
    assert v3.decode_reply(frame, 4, len(frame)).reply.code is Code.UNKNOWN_LEDGER_STATE


def test_bookie_info_is_work_for_the_shell(peer: Peer) -> None:
    peer.ask(BookieInfoRequest(), version=3)
    assert len(peer.deferred) == 1
