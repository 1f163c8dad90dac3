"""The bytes of keys and headers: golden, there and back, and any bytes as input."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import EntryFormatError
from dlog.format.attributes import (
    ATTRIBUTES_BYTES_MAX,
    BLOCK_BYTES,
    SEQUENCE_MAX,
    STORED_BYTES_MAX,
    check_producer,
    decode_attributes,
    decode_attributes_block,
    encode_attributes,
    encode_attributes_record,
    item_bytes,
    with_producer,
)
from dlog.format.compression import Compression
from dlog.format.envelope import open_envelope, seal_envelope
from dlog.format.record import (
    FLAG_ATTRIBUTES,
    FLAG_CONTROL,
    Record,
    RecordWithAttributes,
    decode_records,
    encode_record,
    encode_records,
)
from dlog.read.segment_reader import SegmentReader
from namespace.dlsn import DLSN

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
headers = st.dictionaries(names, st.binary(max_size=100), max_size=8)
keys = st.none() | st.binary(max_size=100)


def test_the_attributes_of_an_entry_have_these_bytes() -> None:
    one, other = encode_attributes(b"k7", {"a": b"1", "é": b""}), encode_attributes(None, {"x": b"y"})
    assert one is not None
    assert other is not None
    assert one.hex() == "01000000026b370201610000000131" + "02c3a900000000"
    assert other.hex() == "0001017800000001" + "79"
    record = encode_attributes_record([(0, one), (2, other)], 5, 9)
    assert record.hex() == (
        "0000000000050011" + "0000000000000009" + "00000038"
        "444c4b4801"
        + "00000002"
        + "00000000"
        + "00000016"
        + one.hex()
        + "00000002"
        + "00000009"
        + other.hex()
    )
    assert len(record) == BLOCK_BYTES + item_bytes(one) + item_bytes(other)


@given(keys, headers)
def test_what_was_encoded_is_decoded(key: bytes | None, given_headers: dict[str, bytes]) -> None:
    data = encode_attributes(key, given_headers)
    if data is None:
        assert (key, given_headers) == (None, {})
    else:
        assert decode_attributes(data) == (key, tuple(given_headers.items()), None)


producers = st.none() | st.tuples(
    names.filter(lambda each: len(each.encode()) <= 64), st.integers(0, SEQUENCE_MAX)
)


def encoded_with(
    key: bytes | None, items: dict[str, bytes], producer: tuple[str, int] | None
) -> bytes | None:
    data = encode_attributes(key, items)
    return data if producer is None else with_producer(data, check_producer(producer[0]), producer[1])


def test_a_producer_has_these_bytes() -> None:
    with_key = with_producer(encode_attributes(b"k7", None), b"p1", 258)
    assert with_key.hex() == "03000000026b37" + "027031" + "0000000000000102" + "00"
    assert with_producer(None, b"p", 1).hex() == "02" + "0170" + "0000000000000001" + "00"
    with_headers = with_producer(encode_attributes(None, {"x": b"y"}), b"p", 1)
    assert with_headers.hex() == "02" + "0170" + "0000000000000001" + "01017800000001" + "79"


@given(keys, headers, producers)
def test_a_producer_is_decoded_beside_key_and_headers(
    key: bytes | None, given_headers: dict[str, bytes], producer: tuple[str, int] | None
) -> None:
    data = encoded_with(key, given_headers, producer)
    if data is not None:
        assert decode_attributes(data) == (key, tuple(given_headers.items()), producer)


@pytest.mark.parametrize(("name", "error"), [("", ValueError), ("é" * 33, ValueError), (b"p", TypeError)])
def test_a_name_that_no_producer_can_have_is_refused(name: object, error: type) -> None:
    with pytest.raises(error):
        check_producer(name)  # type: ignore[arg-type]
    assert len(check_producer("é" * 32)) == 64


def test_the_longest_attributes_have_room_for_the_longest_producer() -> None:
    longest = encode_attributes(bytes(ATTRIBUTES_BYTES_MAX - 6), None)
    data = with_producer(longest, b"p" * 64, SEQUENCE_MAX)
    assert len(data) == STORED_BYTES_MAX
    assert decode_attributes(data)[2] == ("p" * 64, SEQUENCE_MAX)
    with pytest.raises(EntryFormatError):
        decode_attributes(data + b"\0")


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_a_format_error(data: bytes) -> None:
    for prefix in (b"", b"\0", b"\1", b"\2\1p", b"\3\0\0\0\1", b"\0\1", b"\1\0\0\0\1"):
        try:
            key, items, producer = decode_attributes(prefix + data)
        except EntryFormatError:
            continue
        assert encoded_with(key, dict(items), producer) == prefix + data


@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_block_decodes_in_bounds_or_is_a_format_error(data: bytes, records: int) -> None:
    for prefix in (b"", b"DLKH\1", b"DLKH\1\0\0\0\1", b"DLKH\1\0\0\0\1\0\0\0\0\0\0\0"):
        try:
            items = decode_attributes_block(prefix + data, records)
        except EntryFormatError:
            continue
        indices = [index for index, _ in items]
        assert indices == sorted(set(indices))
        assert 0 <= indices[0] <= indices[-1] < records


@pytest.mark.parametrize(
    ("key", "given_headers", "error"),
    [
        (None, {"": b""}, ValueError),
        (None, {"n" * 256: b""}, ValueError),
        (None, {str(each): b"" for each in range(65)}, ValueError),
        (bytes(ATTRIBUTES_BYTES_MAX), {}, ValueError),
        ("text", {}, TypeError),
        (None, {"n": "text"}, TypeError),
        (None, {1: b""}, TypeError),
    ],
    ids=["no name", "long name", "many", "long", "key of text", "value of text", "name of a number"],
)
def test_what_is_beyond_the_limits_is_refused(key: object, given_headers: object, error: type) -> None:
    with pytest.raises(error):
        encode_attributes(key, given_headers)  # type: ignore[arg-type]


def test_the_limits_themselves_are_taken() -> None:
    many = {"n" * (192 + each): b"v" for each in range(64)}
    assert decode_attributes(encode_attributes(b"", many) or b"") == (b"", tuple(many.items()), None)
    longest = bytes(ATTRIBUTES_BYTES_MAX - 6)
    assert decode_attributes(encode_attributes(longest, None) or b"") == (longest, (), None)


def entry_with(body: bytes) -> bytes:
    return seal_envelope(body, Compression.NONE)


def decoded(*entries: bytes, start: DLSN | None = None) -> list[Record]:
    reader = SegmentReader(1, 0, start=start)
    reader.confirmed(len(entries) - 1, closed=True)
    return reader.decode_all(entries[reader.next_entry_id :])


def test_each_record_gets_its_own_attributes_and_the_others_get_none() -> None:
    found = encode_attributes(b"k", {"h": b"v"})
    assert found is not None
    body = encode_records([b"a", b"b", b"c"], [1, 2, 3], 1) + encode_attributes_record([(1, found)], 3, 3)
    entry = entry_with(body)
    for start in (None, DLSN(1, 0, 0)):
        a, b, c = decoded(entry, start=start)
        assert (a, c) == (Record(DLSN(1, 0, 0), 1, b"a", 0), Record(DLSN(1, 0, 2), 3, b"c", 2))
        assert b == RecordWithAttributes(DLSN(1, 0, 1), 2, b"b", 1, b"k", (("h", b"v"),))
        assert (b.key, dict(b.headers), a.key, dict(a.headers)) == (b"k", {"h": b"v"}, None, {})
        assert pickle.loads(pickle.dumps(b)) == b != Record(b.dlsn, b.txid, b.payload, b.sequence_id)
    assert [each.payload for each in decoded(entry, start=DLSN(1, 0, 2))] == [b"c"]
    with pytest.raises(TypeError):
        b.headers["other"] = b""  # type: ignore[index]


@pytest.mark.parametrize(
    "wrong", ["of no record", "twice", "another version"], ids=lambda each: each.replace(" ", "_")
)
def test_attributes_that_belong_to_no_record_are_a_format_error(wrong: str) -> None:
    found = encode_attributes(b"k", None)
    assert found is not None
    control = encode_attributes_record([(1 if wrong == "of no record" else 0, found)], 1, 1)
    if wrong == "twice":
        control += control
    if wrong == "another version":
        control = control.replace(b"DLKH\1", b"DLKH\2")
    with pytest.raises(EntryFormatError):
        decoded(entry_with(encode_records([b"a"], [1], 1) + control))


def test_a_payload_or_another_control_record_is_never_taken_for_attributes() -> None:
    found = encode_attributes(b"k", None)
    assert found is not None
    body = encode_attributes_record([(0, found)], 2, 2)
    ((flags, _, _, payload),) = decode_records(body, 0, len(body))
    assert flags == FLAG_CONTROL | FLAG_ATTRIBUTES
    records = encode_records([b"a", payload], [1, 2], 1) + encode_record(FLAG_CONTROL, 2, 2, payload)
    assert [each.key for each in decoded(entry_with(records))] == [None, None]


def test_entries_without_attributes_keep_their_bytes() -> None:
    entry = entry_with(encode_records([b"hello", b"world"], [10, 11], 1))
    assert open_envelope(entry)[0][13:].hex() == (
        "0000000000010000000000000000000a0000000568656c6c6f0000000000020000000000000000000b00000005776f726c64"
    )
