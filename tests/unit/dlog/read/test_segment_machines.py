"""The writer's and the reader's machine of one segment, without ledgers."""

# covers: dlog/read/segment_reader.py
# covers: dlog/write/segment_writer.py

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import given

from dlog.errors import RecordOutcome
from dlog.format.compression import Compression
from dlog.format.envelope import seal_envelope
from dlog.format.record import FLAG_CONTROL, Record, encode_record, encode_records
from dlog.read.segment_reader import PositionGapError, SegmentReader, last_record_of, slot_not_before
from dlog.write.batcher import Batch
from dlog.write.segment_writer import SegmentWriter
from namespace.dlsn import DLSN
from tests.strategies import SEEDS


def batch_of(*txids: int) -> Batch:
    batch = Batch()
    for txid in txids:
        batch.payloads.append(b"%d" % txid)
        batch.txids.append(txid)
        batch.size_bytes += 20 + len(b"%d" % txid)
    return batch


def send(writer: SegmentWriter, batch: Batch) -> bytes:
    entry = writer.encode(batch)
    writer.sent(batch, writer.entry_count, len(entry))
    return entry


def test_batches_settle_in_order_when_they_are_acknowledged() -> None:
    writer = SegmentWriter(7, 70, 5, Compression.NONE)
    batches = [batch_of(5, 6), batch_of(6), batch_of(9)]
    for batch in batches:
        send(writer, batch)
    held_bytes = [batch.held_bytes for batch in batches]
    assert writer.confirmed(-1) == 0
    assert writer.confirmed(1) == held_bytes[0] + held_bytes[1]
    assert [batch.outcome.name for batch in batches] == ["DURABLE", "DURABLE", "PENDING"]
    assert (writer.last_dlsn, writer.is_idle) == (DLSN(7, 1, 0), False)
    writer.confirmed(2)
    assert writer.is_idle
    assert (writer.last_txid, writer.position, writer.last_dlsn) == (9, 4, DLSN(7, 2, 0))


def test_an_entry_that_another_writer_has_numbered_counts_for_no_batch() -> None:
    writer, batch = SegmentWriter(7, 70, 5, Compression.NONE), batch_of(5, 6)
    for sent in (partial(writer.sent, batch), writer.sent_part):
        with pytest.raises(AssertionError, match="entry 1 from the ledger, not 0"):
            sent(1, len(writer.encode(batch)))
    assert (writer.entry_count, writer.is_idle, batch.outcome.name) == (0, True, "PENDING")


def test_the_last_user_records_need_a_commit_until_a_later_entry_is_durable() -> None:
    writer = SegmentWriter(1, 0, 0, Compression.NONE)
    assert (writer.needs_commit, writer.user_batches_in_flight) == (False, 0)
    send(writer, batch_of(1))
    assert (writer.needs_commit, writer.user_batches_in_flight) == (True, 1)
    entry = send(writer, Batch())
    assert last_record_of(entry) == (FLAG_CONTROL, 1, 1, 0)
    assert (writer.user_batches_in_flight, writer.is_idle) == (1, False)
    writer.confirmed(0)
    assert (writer.user_batches_in_flight, writer.is_idle) == (0, False)
    writer.confirmed(1)
    assert writer.needs_commit, "the control record was sent before the user's was durable"
    send(writer, Batch())
    assert writer.needs_commit
    writer.confirmed(2)
    assert not writer.needs_commit


@given(seed=SEEDS)
def test_the_visible_entry_is_the_greatest_lac_in_a_durable_entry(seed: int) -> None:
    rng = random.Random(seed)
    writer = SegmentWriter(1, 0, 0, Compression.NONE)
    carried: list[int] = []  # the LAC in each entry
    users: list[int] = []
    lac = -1
    for _ in range(rng.randrange(40)):
        if rng.random() < 0.5:
            is_control = rng.random() < 0.3
            send(writer, Batch() if is_control else batch_of(1))
            users += [] if is_control else [len(carried)]
            carried.append(lac)
        elif lac < len(carried) - 1:
            lac = rng.randint(lac + 1, len(carried) - 1)
            writer.confirmed(lac)
        visible = max(carried[: lac + 1], default=-1)
        assert writer.visible_entry_id == visible
        assert writer.needs_commit == any(entry_id > visible for entry_id in users)


def test_a_recovery_settles_the_batches_it_found_and_returns_the_others() -> None:
    writer = SegmentWriter(1, 0, 0, Compression.NONE)
    kept, lost, control = batch_of(1), batch_of(2), Batch()
    for batch in (kept, lost, control):
        send(writer, batch)
    held_bytes = kept.held_bytes
    freed_bytes, left = writer.resolve(0)
    assert freed_bytes == held_bytes
    assert left == [lost]
    assert kept.outcome is RecordOutcome.DURABLE
    assert (lost.outcome, lost.entry_id) == (RecordOutcome.PENDING, -1)
    assert control.outcome is RecordOutcome.DURABLE, "a closed ledger is visible to its end"
    again = SegmentWriter(2, 1, 2, Compression.NONE)
    assert again.encode(lost) == seal_envelope(encode_records([b"2"], [2], 1)), (
        "its position is the new segment's"
    )


@given(seed=SEEDS)
def test_every_batch_is_either_in_the_ledger_or_returned(seed: int) -> None:
    rng = random.Random(seed)
    writer = SegmentWriter(3, 0, 0, Compression.NONE)
    sent: list[Batch] = []
    lac, txid = -1, 0
    for _ in range(rng.randrange(30)):
        if rng.random() < 0.6:
            txid += rng.randrange(3)
            sent.append(batch_of(txid) if rng.random() < 0.8 else Batch())
            send(writer, sent[-1])
        elif lac < len(sent) - 1:
            lac = rng.randint(lac + 1, len(sent) - 1)
            writer.confirmed(lac)
    end = rng.randint(lac, len(sent) - 1)
    _, left = writer.resolve(end)
    users = [batch for batch in sent if batch.txids or not batch.is_settled or batch.size_bytes]
    durable = [batch for batch in users if batch.is_settled]
    assert [batch for batch in sent if not batch.is_settled] == left
    assert all(batch.entry_id <= end and batch.segment_seqno == 3 for batch in durable)
    assert all(batch.size_bytes for batch in left), "control records are not written again"


def entry(*records: bytes) -> bytes:
    return seal_envelope(b"".join(records))


def reader_at(last: int, **options: object) -> SegmentReader:
    reader = SegmentReader(1, 0, **options)  # type: ignore[arg-type]
    reader.confirmed(last, closed=False)
    return reader


def test_a_gap_in_the_positions_is_an_error_and_the_entry_gives_no_record() -> None:
    reader = reader_at(1)
    reader.decode_all([entry(encode_record(0, 1, 5, b"a"))])
    records: list[Record] = []
    with pytest.raises(
        PositionGapError, match="has position 4 in the segment, but the record before it has 2"
    ):
        reader.decode(entry(encode_record(0, 2, 5, b"b"), encode_record(0, 4, 5, b"d")), records)
    assert records == []
    assert reader.position == DLSN(1, 1, 0)


def test_the_position_check_can_be_disabled() -> None:
    reader = reader_at(0, check_positions=False)
    records = reader.decode_all([entry(encode_record(0, 1, 5, b"a"), encode_record(0, 4, 5, b"d"))])
    assert [record.sequence_id for record in records] == [0, 3]


def test_a_control_record_may_repeat_or_advance_the_position() -> None:
    reader = reader_at(2)
    records = reader.decode_all(
        [
            entry(encode_record(0, 1, 5, b"a")),
            entry(encode_record(FLAG_CONTROL, 1, 5, b"control")),
            entry(encode_record(FLAG_CONTROL, 2, 5, b"mine"), encode_record(0, 3, 6, b"b")),
        ]
    )
    assert [(record.dlsn, record.sequence_id) for record in records] == [
        (DLSN(1, 0, 0), 0),
        (DLSN(1, 2, 1), 2),
    ]


def test_a_start_within_an_entry_drops_the_records_before_it() -> None:
    reader = reader_at(3, start=DLSN(1, 3, 1))
    assert reader.next_entry_id == 3
    assert reader.position == DLSN(1, 3, 1)
    records = reader.decode_all([entry(*(encode_record(0, 7 + i, 5, b"%d" % i) for i in range(3)))])
    assert [record.dlsn.slot_id for record in records] == [1, 2]
    assert reader.position == DLSN(1, 4, 0)


def test_a_segment_is_finished_when_it_is_closed_and_read() -> None:
    reader = SegmentReader(1, 0)
    assert (reader.has_more, reader.is_finished) == (False, False)
    reader.confirmed(0, closed=False)
    assert (reader.has_more, reader.is_finished) == (True, False)
    reader.decode_all([entry(encode_record(0, 1, 1, b""))])
    assert (reader.has_more, reader.is_finished) == (False, False)
    reader.confirmed(0, closed=True)
    assert reader.is_finished


def test_entries_of_old_segments_have_no_envelope() -> None:
    reader = reader_at(0, enveloped=False)
    assert [r.payload for r in reader.decode_all([encode_record(0, 1, 5, b"bare")])] == [b"bare"]
    reader = reader_at(1, enveloped=False)
    data = [
        encode_record(0, 1, 5, b"a"),
        encode_record(0, 2, 5, b"b") + encode_record(FLAG_CONTROL, 2, 5, b"c"),
    ]
    assert [r.payload for r in reader.decode_all(data)] == [b"a", b"b"]


def test_a_transaction_id_is_found_in_an_entry() -> None:
    data = entry(*(encode_record(0, 1 + i, txid, b"") for i, txid in enumerate([10, 20, 20, 30])))
    assert [slot_not_before(data, txid) for txid in (0, 10, 11, 20, 21, 30, 31)] == [0, 0, 1, 1, 3, 3, None]
