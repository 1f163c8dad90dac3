"""Records, record sets, envelopes and codecs: examples, limits, and refused bytes."""

# covers: dlog/format/compression.py
# covers: dlog/format/envelope.py
# covers: dlog/format/record.py

from __future__ import annotations

import copy
import pickle

import pytest

from dlog.errors import EntryFormatError
from dlog.format.compression import Compression, compress, expand
from dlog.format.envelope import ENTRY_BYTES_MAX, open_envelope, seal_envelope
from dlog.format.record import (
    CONTROL_PAYLOAD,
    END_OF_STREAM_PAYLOAD,
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    KEEP_ALIVE_PAYLOAD,
    PAYLOAD_BYTES_MAX,
    TXID_MAX,
    Record,
    RecordWithAttributes,
    RecordWithSealedAttributes,
    decode_records,
    encode_record,
    encode_records,
    make_records,
)
from dlog.format.record_set import SetBudget, decode_record_set
from dlog.read.segment_reader import SegmentReader
from namespace.dlsn import DLSN
from tests.fakes.record_sets import encode_record_set


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", "").replace("\n", ""))


def test_two_records_have_the_bytes_of_the_example() -> None:
    assert seal_envelope(encode_records([b"hello", b"world"], [10, 11], 1)) == hexed(
        """01 00000000 00000032 00000032
           0000000000010000 000000000000000a 00000005 68656c6c6f
           0000000000020000 000000000000000b 00000005 776f726c64"""
    )


@pytest.mark.parametrize(
    ("flags", "txid", "payload", "text"),
    [
        (FLAG_CONTROL, 11, CONTROL_PAYLOAD, "0000000000020001 000000000000000b 00000007 636f6e74726f6c"),
        (
            FLAG_CONTROL,
            11,
            KEEP_ALIVE_PAYLOAD,
            "0000000000020001 000000000000000b 00000009 6b656570616c697665",
        ),
        (
            FLAG_END_OF_STREAM,
            TXID_MAX,
            END_OF_STREAM_PAYLOAD,
            "0000000000020002 7fffffffffffffff 0000000b 656e644f6653747265616d",
        ),
    ],
)
def test_records_of_the_library_have_the_bytes_of_the_examples(
    flags: int, txid: int, payload: bytes, text: str
) -> None:
    assert encode_record(flags, 2, txid, payload) == hexed(text)


def test_a_record_set_has_the_bytes_of_the_example_and_its_parts_get_slots() -> None:
    packed = encode_record_set([b"foo", b"barbaz"])
    assert packed == hexed("00001000 00000002 00000011 00000011 00000003 666f6f 00000006 62617262617a")
    body = encode_record(FLAG_RECORD_SET, 1, 6, packed) + encode_record(0, 3, 7, b"tail")
    reader = SegmentReader(7, 100, start=DLSN(7, 3, 0))
    reader.confirmed(3, closed=False)
    assert reader.decode_all([seal_envelope(body)]) == [
        Record(DLSN(7, 3, 0), 6, b"foo", 100),
        Record(DLSN(7, 3, 1), 6, b"barbaz", 101),
        Record(DLSN(7, 3, 2), 7, b"tail", 102),
    ]


def test_lz4_blocks_of_java_and_of_another_encoder_are_read() -> None:
    literal = hexed(
        "01 00000001 00000019 0000001b f00a 0000000000010000 000000000000000a 00000005 68656c6c6f"
    )
    body, start, stop = open_envelope(literal)
    assert decode_records(body, start, stop) == [(0, 1, 10, b"hello")]
    java = hexed("01 00000001 00000034 0000001b 10000100100105000102006f0a0000002061010007506161616161")
    body, start, stop = open_envelope(java)
    assert decode_records(body, start, stop) == [(0, 1, 10, b"a" * 32)]
    a_set = hexed("00001001 00000004 00000058 00000014 7b0000001261626303000f16002a506263616263")
    assert decode_record_set(a_set, SetBudget()) == [b"abc" * 6] * 4


def test_the_largest_record_fits_into_an_entry() -> None:
    entry = seal_envelope(encode_records([bytes(PAYLOAD_BYTES_MAX)], [1], 1))
    assert len(entry) <= ENTRY_BYTES_MAX


def test_a_body_that_does_not_shrink_is_stored_uncompressed() -> None:
    body = bytes(range(64))
    assert seal_envelope(body, Compression.LZ4) == seal_envelope(body)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("", "shorter than an envelope"),
        ("02 00000000 00000000 00000000", "version 2"),
        ("01 00000004 00000000 00000000", "flags 0x4"),
        ("01 00000000 00000001 00000000", "two lengths"),
        ("01 00000000 00000000 00000001", "claims 1 stored bytes, the entry has 0"),
        ("01 00000003 00000001 00000001 00", "code 3 is not assigned"),
        ("01 00000001 7fffffff 00000001 00", "more than the limit of"),
        ("01 00000001 000f0000 00000001 00", "cannot expand"),
        ("01 00000001 00000005 00000003 f00a00", "no LZ4 block"),
        ("01 00000002 00000005 00000001 03", "stored length is 5"),
    ],
)
def test_a_bad_envelope_is_refused_with_the_evidence(entry: str, reason: str) -> None:
    with pytest.raises(EntryFormatError, match=reason):
        open_envelope(hexed(entry))


def test_a_short_lz4_block_is_not_filled_up_with_zeros() -> None:
    stored = compress(Compression.LZ4, b"a" * 100)
    with pytest.raises(EntryFormatError, match="has 100 bytes, its stored length is 101"):
        expand(1, stored, 101, 200)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("0000000000010000 000000000000000a 00000005 68656c6c", "claims 5 payload bytes, 4 are left"),
        ("0000000000010000 000000000000000a ffffffff", "claims -1"),
        ("0000800000000000 000000000000000a 00000000", "position 2147483648"),
        ("0000000000010000 000000000000000a 00000000 00", "the 1 bytes after the last record"),
    ],
)
def test_a_bad_record_is_refused_with_the_evidence(body: str, reason: str) -> None:
    data = hexed(body)
    with pytest.raises(EntryFormatError, match=reason):
        decode_records(data, 0, len(data))


def test_unused_bits_are_ignored() -> None:
    data = hexed("7fff 00000001 fff8 000000000000000a 00000001 61")
    assert decode_records(data, 0, len(data)) == [(0xFFF8, 1, 10, b"a")]


def test_a_record_set_enforces_its_limits() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_record_set([])
    with pytest.raises(ValueError, match="at most"):
        encode_record_set([bytes(PAYLOAD_BYTES_MAX)])
    with pytest.raises(EntryFormatError, match="only version 1"):
        decode_record_set(hexed("00002000 00000000 00000000 00000000"), SetBudget())
    with pytest.raises(EntryFormatError, match="claims 9 records in 4 bytes"):
        decode_record_set(hexed("00001000 00000009 00000004 00000004 00000000"), SetBudget())
    with pytest.raises(EntryFormatError, match="after the last"):
        decode_record_set(hexed("00001000 00000000 00000001 00000001 00"), SetBudget())


def test_no_stored_length_allocates_more_than_the_limit() -> None:
    with pytest.raises(EntryFormatError, match="more than the limit"):
        expand(1, b"\0" * 1000, 1001, 1000)


def test_a_snappy_body_has_the_bytes_of_the_raw_format() -> None:
    body = b"a log " * 10
    stored = hexed("3c 14 61206c6f6720 d6 0600")  # the length, a literal of 6 bytes, a copy of 54
    assert compress(Compression.SNAPPY, body) == stored
    assert expand(Compression.SNAPPY.value, stored, len(body), 100) == body


def test_a_snappy_body_that_copies_from_before_its_start_is_refused() -> None:
    with pytest.raises(EntryFormatError, match=r"11 bytes are no Snappy block: .*offset 7"):
        expand(Compression.SNAPPY.value, hexed("3c 14 61206c6f6720 d6 0700"), 60, 100)


@pytest.mark.parametrize(
    "record",
    [
        Record(DLSN(1, 2, 3), 4, b"x", 5),
        RecordWithAttributes(DLSN(1, 2, 3), 4, b"x", 5, b"k", (("a", b"1"),), ("p", 7)),
        RecordWithSealedAttributes(DLSN(1, 2, 3), 4, b"x", 5, b"sealed"),
    ],
    ids=["plain", "with-attributes", "sealed"],
)
def test_a_record_is_a_value_that_nobody_changes(record: Record) -> None:
    assert (record.dlsn, record.txid, record.payload, record.sequence_id) == (DLSN(1, 2, 3), 4, b"x", 5)
    for name in ("dlsn", "txid", "payload", "sequence_id", "key", "other"):
        with pytest.raises(AttributeError):
            setattr(record, name, 1)
    for same in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert same == record
        assert hash(same) == hash(record)
        assert type(same) is type(record)
        assert (same.key, same.headers, same.producer) == (record.key, record.headers, record.producer)
    other = record.with_payload(b"y")
    assert other != record
    assert (other.payload, other.with_payload(b"x")) == (b"y", record)


def test_records_of_different_kinds_are_not_equal() -> None:
    fields = DLSN(1, 2, 3), 4, b"x", 5
    kinds = {
        Record(*fields),
        RecordWithAttributes(*fields, None, ()),
        RecordWithSealedAttributes(*fields, b""),
    }
    assert len(kinds) == 3


def test_records_made_in_a_row_are_those_made_one_by_one() -> None:
    made = make_records(7, 8, range(3, 6), (10, 10, 12), (b"a", b"", b"c"), range(20, 23))
    assert list(made) == [
        Record(DLSN(7, 8, 3), 10, b"a", 20),
        Record(DLSN(7, 8, 4), 10, b"", 21),
        Record(DLSN(7, 8, 5), 12, b"c", 22),
    ]


def test_a_record_shows_its_fields() -> None:
    assert repr(Record(DLSN(1, 2, 3), 4, b"x", 5)) == (
        "Record(dlsn=DLSN(1, 2, 3), txid=4, payload=b'x', sequence_id=5)"
    )
    assert "key=b'k', header_items=(('a', b'1'),)" in repr(
        RecordWithAttributes(DLSN(1, 2, 3), 4, b"x", 5, b"k", (("a", b"1"),))
    )
    assert "secret" not in repr(RecordWithSealedAttributes(DLSN(1, 2, 3), 4, b"x", 5, b"secret"))


def test_a_record_shows_the_start_of_a_long_payload_only() -> None:
    shown = repr(Record(DLSN(1, 2, 3), 4, b"x" * 1000, 5))
    assert "1000 bytes" in shown
    assert len(shown) < 150
