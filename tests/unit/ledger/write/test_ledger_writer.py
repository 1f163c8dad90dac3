"""The writer machine, called directly."""

# covers: ledger/write/writer.py

from __future__ import annotations

import struct

import pytest

from ledger.write.writer import LedgerWriter

B1, B2, B3, B4 = "b1", "b2", "b3", "b4"
FRAME = struct.Struct(">qqq")


def pack(entry_id: int, lac: int, length_bytes: int, payload: bytes) -> bytes:
    return FRAME.pack(entry_id, lac, length_bytes) + payload


def make(
    ensemble: tuple[str, ...] = (B1, B2, B3), write_quorum: int = 3, ack_quorum: int = 2
) -> LedgerWriter:
    return LedgerWriter(ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, pack=pack)


def push(writer: LedgerWriter, count: int) -> None:
    for _ in range(count):
        writer.append(b"12345")
    writer.take_outgoing()
    writer.check()


def test_the_lac_waits_for_the_oldest_entry() -> None:
    writer = make()
    push(writer, 2)
    assert not writer.adds_answered(B1, [1])
    assert not writer.adds_answered(B2, [1])  # durable, but entry 0 is not yet
    assert not writer.adds_answered(B1, [0])
    assert writer.adds_answered(B3, [0])
    assert writer.lac == 1
    writer.check()


def test_all_bookies_get_the_same_frame_objects() -> None:
    writer = make()
    writer.append(b"a")
    writer.append(b"b")
    sends = writer.take_outgoing()
    assert [send.bookie for send in sends] == [B1, B2, B3]
    assert all(send.frames is sends[0].frames and list(send.entry_ids) == [0, 1] for send in sends)
    assert writer.take_outgoing() == []


def test_with_striping_each_bookie_gets_the_entries_of_its_write_sets() -> None:
    writer = make(write_quorum=2, ack_quorum=2)
    for number in range(6):
        writer.append(b"%d" % number)
    shares = {
        send.bookie: (list(send.entry_ids), [frame[-1:] for frame in send.frames])
        for send in writer.take_outgoing()
    }
    assert shares == {
        B1: ([0, 2, 3, 5], [b"0", b"2", b"3", b"5"]),
        B2: ([0, 1, 3, 4], [b"0", b"1", b"3", b"4"]),
        B3: ([1, 2, 4, 5], [b"1", b"2", b"4", b"5"]),
    }
    writer.adds_answered(B3, [0])  # it was not sent there: the reply does not count
    assert not writer.adds_answered(B1, [0])
    assert writer.adds_answered(B2, [0])


def test_two_replies_of_one_bookie_are_no_quorum() -> None:
    writer = make()
    push(writer, 1)
    assert not writer.adds_answered(B1, [0, 0])
    assert not writer.adds_answered(B1, [0])
    assert writer.lac == -1


def test_an_entry_carries_the_lac_of_the_moment_when_it_was_packed() -> None:
    writer = make()
    push(writer, 3)
    writer.adds_answered(B1, [0, 1])
    writer.adds_answered(B2, [0, 1])
    writer.append(b"xyz")
    frame = writer.take_outgoing()[0].frames[0]
    assert FRAME.unpack_from(frame) == (3, 1, 18)
    assert (writer.length_bytes, writer.lac_length_bytes) == (18, 10)


def test_bytes_are_in_flight_until_the_last_replica_has_replied_or_is_lost() -> None:
    writer = make()
    push(writer, 4)
    size = writer.bytes_in_flight
    writer.adds_answered(B1, range(4))
    writer.adds_answered(B2, range(4))
    assert (writer.lac, writer.bytes_in_flight) == (3, size)
    writer.adds_answered(B3, [0])
    assert writer.bytes_in_flight == size * 3 // 4
    writer.failed(B3, OSError(), lost=True)
    assert writer.bytes_in_flight == 0
    writer.check()


def test_nothing_is_confirmed_while_an_ensemble_change_is_under_way() -> None:
    writer = make()
    push(writer, 2)
    writer.failed(B3, OSError(), lost=True)
    writer.begin_change()
    assert not writer.adds_answered(B1, [0, 1])
    assert not writer.adds_answered(B2, [0, 1])
    assert writer.lac == -1
    (send,) = writer.finish_change((B1, B2, B4))
    assert (send.bookie, list(send.entry_ids)) == (B4, [0, 1])
    assert writer.advance()
    assert writer.lac == 1
    writer.check()


def test_after_a_change_even_entries_with_their_quorum_need_the_new_bookies() -> None:
    writer = make(ack_quorum=3)
    push(writer, 2)
    writer.adds_answered(B1, [0, 1])
    writer.adds_answered(B2, [1])
    writer.failed(B1, OSError(), lost=False)
    writer.begin_change()
    (send,) = writer.finish_change((B4, B2, B3))
    assert list(send.entry_ids) == [0, 1]
    assert not writer.adds_answered(B1, [0, 1])  # no longer of the ensemble
    writer.adds_answered(B2, [0])
    writer.adds_answered(B3, [0, 1])
    assert writer.lac == -1
    assert writer.adds_answered(B4, [0, 1])
    assert writer.lac == 1


def test_the_same_bytes_are_sent_again() -> None:
    writer = make()
    writer.append(b"first")
    sent = writer.take_outgoing()[0].frames
    writer.failed(B2, OSError(), lost=True)
    again = writer.revive(1)
    assert again is not None
    assert again.frames == sent
    assert again.frames[0] is sent[0]


def test_an_acknowledgement_counts_only_for_the_connection_it_came_over() -> None:
    writer = make(ack_quorum=3)
    push(writer, 2)
    writer.adds_answered(B1, [0, 1])
    writer.adds_answered(B2, [0, 1])
    writer.failed(B1, OSError(), lost=True)  # perhaps wiped: its acknowledgements no longer count
    writer.adds_answered(B3, [0, 1])
    assert writer.lac == -1
    send = writer.revive(0)
    assert send is not None
    assert list(send.entry_ids) == [0, 1]
    writer.adds_answered(B1, [0, 1])
    assert writer.lac == -1  # held until the metadata have been read
    assert writer.untrusted == [(0, 1)]
    assert not writer.trust(0, 0)  # a read from before the last loss
    assert writer.trust(0, 1)
    assert writer.lac == 1
    writer.check()


def test_a_failing_bookie_gets_nothing_and_no_entry_waits_for_it() -> None:
    writer = make()
    writer.failed(B3, OSError(), lost=True)
    writer.append(b"x")
    assert [send.bookie for send in writer.take_outgoing()] == [B1, B2]
    writer.adds_answered(B1, [0])
    writer.adds_answered(B2, [0])
    assert (writer.lac, writer.bytes_in_flight) == (0, 0)
    writer.append(b"y")
    writer.take_outgoing()
    send = writer.revive(2)
    assert send is not None
    assert list(send.entry_ids) == [1]  # entry 0 was confirmed without it
    writer.check()


def test_a_writer_is_blocked_if_the_oldest_entry_cannot_get_its_quorum() -> None:
    writer = make()
    assert not writer.blocked
    push(writer, 1)
    writer.failed(B1, OSError(), lost=True)
    assert not writer.blocked
    writer.adds_answered(B2, [0])
    writer.failed(B2, OSError(), lost=False)  # it refused another entry: its acknowledgement still counts
    assert not writer.blocked
    writer.failed(B3, OSError(), lost=True)
    assert writer.blocked


def test_a_payload_that_cannot_be_packed_changes_nothing() -> None:
    writer = make()
    with pytest.raises(TypeError):
        writer.append("text")  # type: ignore[arg-type]
    assert (writer.last_pushed, writer.length_bytes, writer.bytes_in_flight) == (-1, 0, 0)
    writer.check()


def test_acknowledgements_over_a_connection_that_was_replaced_unnoticed_no_longer_count() -> None:
    writer = make()
    push(writer, 2)
    writer.adds_answered(B1, [0, 1])
    send = writer.reconnected(B1)
    assert send is not None
    assert (send.bookie, list(send.entry_ids)) == (B1, [0, 1])
    assert not writer.adds_answered(B2, [0, 1])  # the only bookie that counts
    assert writer.lac == -1
    assert not writer.adds_answered(B1, [0])  # over the new connection: held
    assert writer.untrusted == [(0, 1)]
    again = writer.reconnected(B1)  # the held acknowledgements are lost with their connection
    assert again is not None
    assert list(again.entry_ids) == [0]
    writer.adds_answered(B1, [0, 1])
    assert not writer.trust(0, 1)
    assert writer.trust(0, 2)
    assert writer.lac == 1
    writer.check()
    assert writer.reconnected(B1) is None  # nothing unconfirmed: nothing to send
    assert writer.reconnected("b9") is None
    writer.check()


def test_a_failing_bookie_that_reconnects_gets_nothing_before_it_is_revived() -> None:
    writer = make()
    push(writer, 1)
    writer.adds_answered(B1, [0])
    writer.failed(B1, OSError(), lost=False)
    assert writer.reconnected(B1) is None
    send = writer.revive(0)
    assert send is not None
    assert list(send.entry_ids) == [0]
    writer.check()


def test_an_ack_quorum_in_one_fault_domain_does_not_confirm() -> None:
    writer = LedgerWriter(
        (B1, B2, B3), write_quorum=3, ack_quorum=2, pack=pack, ack_rule=lambda bookies: B3 in bookies
    )
    push(writer, 3)
    writer.adds_answered(B1, [0, 1, 2])
    assert not writer.adds_answered(B2, [0, 1, 2])
    assert writer.lac == -1
    assert writer.adds_answered(B3, [0, 2])
    assert writer.lac == 0  # entry 1 has an ack quorum, but in one domain
    writer.failed(B3, OSError(), lost=True)
    assert writer.blocked
    writer.begin_change()
    writer.finish_change((B1, B2, B4))
    assert writer.blocked  # the new bookie is not in the other domain either
    writer.check()


def test_the_ack_rule_is_asked_again_when_locations_change() -> None:
    second_domain = {B4}
    writer = LedgerWriter(
        (B1, B2, B3),
        write_quorum=3,
        ack_quorum=2,
        pack=pack,
        ack_rule=lambda bookies: bool(second_domain & {*bookies}),
    )
    push(writer, 2)
    writer.adds_answered(B1, [0, 1])
    writer.adds_answered(B2, [0])
    assert (writer.blocked, writer.lac) == (True, -1)
    second_domain.add(B2)
    assert writer.reevaluate()
    assert (writer.blocked, writer.lac) == (False, 0)
    second_domain.clear()
    assert not writer.reevaluate()
    assert not writer.adds_answered(B2, [1])
    second_domain.add(B1)
    writer.failed(B3, OSError(), lost=True)
    writer.begin_change()
    assert not writer.reevaluate()  # nothing is confirmed before its outcome is known
    writer.finish_change((B1, B2, B4))
    assert writer.advance()
    writer.check()
