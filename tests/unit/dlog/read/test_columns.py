"""Decoding an entry to columns: the records are those of the decoder that makes objects."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given

from dlog.errors import EntryFormatError
from dlog.format.compression import Compression
from dlog.format.envelope import seal_envelope
from dlog.format.record import (
    CONTROL_PAYLOAD,
    END_OF_STREAM_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    POSITION_MAX,
    RECORD_HEADER,
    TXID_MAX,
    Record,
    encode_record,
    encode_records,
)
from dlog.read.columns import RecordRun, plain_run, runs_of
from dlog.read.record_batch import RecordBatch
from dlog.read.segment_reader import SegmentReader
from namespace.dlsn import DLSN
from tests.fakes.record_sets import encode_record_set
from tests.strategies import SEEDS


def entry_of(rng: random.Random, position: int) -> tuple[bytes, int]:
    """An entry of any kind whose records follow a position, and the position after it."""
    kind = rng.choice(["uniform", "mixed", "control last", "only control", "set", "empty", "sealed"])
    count = rng.randrange(1, 12)
    size = rng.choice([0, 1, 7])
    payloads = [rng.randbytes(size if kind == "uniform" else rng.randrange(9)) for _ in range(count)]
    txids = [rng.choice([0, 5, TXID_MAX - 1]) for _ in range(count)]
    body = encode_records(payloads, txids, position + 1)
    match kind:
        case "only control" | "empty":
            body = b"" if kind == "empty" else encode_record(FLAG_CONTROL, position, 5, CONTROL_PAYLOAD)
            count = 0
        case "control last":
            body += encode_record(FLAG_CONTROL, position + count, 5, rng.choice([CONTROL_PAYLOAD, b""]))
        case "set":
            body += encode_record(FLAG_RECORD_SET, position + count + 1, 5, encode_record_set([b"x"] * count))
            count *= 2
        case "sealed":
            body += encode_record(FLAG_END_OF_STREAM, position + count, TXID_MAX, END_OF_STREAM_PAYLOAD)
    return seal_envelope(body, rng.choice(list(Compression)) if body else Compression.NONE), position + count


def damaged(rng: random.Random, entry: bytes) -> bytes:
    at = rng.randrange(len(entry))
    if rng.random() < 0.3:
        return entry[:at]
    return entry[:at] + bytes([entry[at] ^ 1 << rng.randrange(8)]) + entry[at + 1 :]


@given(seed=SEEDS)
def test_columns_hold_the_records_that_the_other_decoder_finds(seed: int) -> None:
    rng = random.Random(seed)
    readers = [SegmentReader(7, 100), SegmentReader(7, 100)]
    records: list[Record] = []
    runs: list[RecordRun] = []
    position = 0
    for entry_id in range(12):
        entry, position = entry_of(rng, position)
        if rng.random() < 0.05:
            entry = damaged(rng, entry)
        outcomes = []
        decodes: list[Callable[[], None]] = [
            lambda entry=entry: readers[0].decode(entry, records),  # type: ignore[misc]
            lambda entry=entry: readers[1].decode_columns(entry, runs),  # type: ignore[misc]
        ]
        for reader, decode in zip(readers, decodes, strict=True):
            reader.confirmed(entry_id, closed=False)
            try:
                decode()
                outcomes.append("")
            except EntryFormatError as exc:
                outcomes.append(str(exc))
        assert outcomes[0] == outcomes[1]
        if outcomes[0]:
            break
    assert list(RecordBatch(runs)) == records
    states = [(r.last_position, r.next_entry_id, r.is_sealed, r.position) for r in readers]
    assert states[0] == states[1]


@pytest.mark.parametrize("count", [1, 4, 5])
def test_records_of_one_size_are_no_run_if_one_header_differs(count: int) -> None:
    def run_of(body: bytes) -> RecordRun | None:
        return plain_run(body, 0, len(body), segment_seqno=1, entry_id=0, position=3, sequence_id=9)

    body = encode_records([b"12345"] * count, list(range(count)), 4)
    whole = run_of(body)
    assert whole is not None
    assert [record.payload for record in whole.records()[0]] == [b"12345"] * count
    for index in range(count):
        at = index * 25
        word, txid, size = RECORD_HEADER.unpack_from(body, at)
        for header in [(word + (1 << 16), txid, size), (word | FLAG_RECORD_SET, txid, size)]:
            changed = body[:at] + RECORD_HEADER.pack(*header) + body[at + 20 :]
            assert run_of(changed) is None, (index, header)
        for wrong in (-1, size + 1, 2**31 - 1):
            changed = body[:at] + RECORD_HEADER.pack(word, txid, wrong) + body[at + 20 :]
            assert run_of(changed) is None, (index, wrong)


@pytest.mark.parametrize("count", [2, 8])
def test_positions_beyond_the_limit_are_left_to_the_decoder_with_all_checks(count: int) -> None:
    position = POSITION_MAX - count + 1
    body = b"".join(encode_record(0, position + at, 1, b"ab") for at in range(1, count))
    body += RECORD_HEADER.pack(position + count << 16, 1, 2) + b"ab"
    assert (
        plain_run(body, 0, len(body), segment_seqno=1, entry_id=0, position=position, sequence_id=0) is None
    )


def test_records_that_exist_become_one_run_for_each_row_of_consecutive_slots() -> None:
    rows = [(1, 0, 0, 0), (1, 0, 1, 1), (1, 0, 3, 2), (1, 1, 0, 3), (1, 1, 1, 5), (2, 0, 0, 6)]
    records = [Record(DLSN(*dlsn), 7, b"%d" % number, number) for *dlsn, number in rows]
    runs = runs_of(records)
    assert [len(run) for run in runs] == [2, 1, 1, 1, 1]
    assert [record for run in runs for record in run.records()[0]] == records
    assert runs_of([]) == []
