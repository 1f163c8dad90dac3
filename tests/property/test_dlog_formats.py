"""The formats of a log: any bytes give a value or an error, and a value survives encoding."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import EntryFormatError
from dlog.format.compression import Compression, compress, expand
from dlog.format.envelope import open_envelope, seal_envelope
from dlog.format.record import (
    FLAG_CONTROL,
    FLAG_END_OF_STREAM,
    FLAG_RECORD_SET,
    Record,
    decode_records,
    encode_record,
    encode_records,
)
from dlog.format.record_set import SetBudget, decode_record_set
from dlog.read.segment_reader import SegmentReader, last_record_of, slot_not_before
from namespace.dlsn import DLSN
from tests.fakes.record_sets import encode_record_set

codecs = st.sampled_from(Compression)
payloads = st.lists(st.binary(max_size=60), min_size=1, max_size=12)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_an_error(data: bytes) -> None:
    for enveloped in (True, False):
        for decode in (
            last_record_of,
            lambda entry, enveloped: slot_not_before(entry, 5, enveloped=enveloped),
        ):
            try:
                decode(data, enveloped=enveloped)
            except EntryFormatError:
                pass
        reader = SegmentReader(1, 0, enveloped=enveloped)
        reader.confirmed(0, closed=False)
        records: list[Record] = []
        try:
            reader.decode(data, records)
        except EntryFormatError:
            assert (records, reader.next_entry_id) == ([], 0)
        else:
            assert reader.next_entry_id == 1


@given(data=st.binary(max_size=120), code=st.integers(0, 3), size=st.integers(-5, 300))
def test_any_bytes_expand_to_the_stored_length_or_fail(data: bytes, code: int, size: int) -> None:
    try:
        body = expand(code, data, size, 250)
    except EntryFormatError:
        return
    assert len(body) == size <= 250


@given(data=st.binary(max_size=120))
def test_any_bytes_are_a_record_set_or_an_error(data: bytes) -> None:
    for candidate in (data, b"\x00\x00\x10\x00" + data):
        try:
            parts = decode_record_set(candidate, SetBudget())
        except EntryFormatError:
            continue
        if candidate[3] & 0x3 == 0 and parts and candidate[:4] == b"\x00\x00\x10\x00":
            assert encode_record_set(parts) == candidate


@given(
    cut=st.integers(0, 200), position=st.integers(0, 200), bit=st.integers(0, 7), codec=codecs, parts=payloads
)
def test_a_damaged_entry_is_an_error_or_another_entry_but_never_a_crash(
    cut: int, position: int, bit: int, codec: Compression, parts: list[bytes]
) -> None:
    entry = bytearray(seal_envelope(encode_records(parts, [7] * len(parts), 1), codec))
    entry[position % len(entry)] ^= 1 << bit
    for damaged in (bytes(entry), bytes(entry[: cut % len(entry)])):
        try:
            last_record_of(damaged)
        except EntryFormatError:
            pass


@given(body=st.binary(min_size=1, max_size=3000), codec=codecs, repeat=st.integers(1, 20))
def test_a_compressed_body_expands_to_itself(body: bytes, codec: Compression, repeat: int) -> None:
    body = body * repeat
    assert expand(codec.value, compress(codec, body), len(body), len(body)) == body
    buffer, start, stop = open_envelope(seal_envelope(body, codec))
    assert buffer[start:stop] == body


kinds = st.one_of(
    st.tuples(st.just(0), st.binary(max_size=30)),
    st.tuples(st.just(FLAG_CONTROL), st.just(b"control")),
    st.tuples(st.just(FLAG_RECORD_SET), payloads, codecs),
    st.tuples(st.just(FLAG_END_OF_STREAM), st.just(b"endOfStream")),
)


@given(
    entries=st.lists(st.lists(kinds, min_size=1, max_size=6), max_size=6),
    data=st.data(),
    base=st.integers(0, 50),
)
def test_a_segment_reader_returns_what_a_plain_loop_returns(
    entries: list[list[tuple[Any, ...]]], data: st.DataObject, base: int
) -> None:
    """The reference is a plain loop: slots, positions, sequence ids, sets, control records, any start."""
    position, txid = 0, 10
    encoded: list[bytes] = []
    expected: list[Record] = []
    for entry_id, kinds_here in enumerate(entries):
        slot, body = 0, b""
        for flags, content, *codec in kinds_here:
            txid += 1
            if flags in (FLAG_CONTROL, FLAG_END_OF_STREAM):
                body += encode_record(flags, position, txid, content)
                slot += 1
                continue
            parts = content if flags else [content]
            packed = encode_record_set(parts, codec[0]) if flags else content
            body += encode_record(flags, position + 1, txid, packed)
            for part in parts:
                expected.append(Record(DLSN(4, entry_id, slot), txid, part, base + position))
                slot, position = slot + 1, position + 1
        encoded.append(seal_envelope(body))
    entry_id = data.draw(st.integers(0, len(encoded)))
    start = data.draw(st.sampled_from([None, DLSN(4, entry_id, data.draw(st.integers(0, 8)))]))
    reader = SegmentReader(4, base, start=start)
    reader.confirmed(len(encoded) - 1, closed=True)
    assert reader.decode_all(encoded[reader.next_entry_id :]) == [
        record for record in expected if start is None or record.dlsn >= start
    ]
    assert reader.is_finished


@given(parts=payloads, first=st.integers(1, 1000))
def test_records_decode_to_what_was_encoded(parts: list[bytes], first: int) -> None:
    body = encode_records(parts, range(5, 5 + len(parts)), first)
    assert decode_records(body, 0, len(body)) == [
        (0, first + index, 5 + index, part) for index, part in enumerate(parts)
    ]
    assert body == b"".join(encode_record(0, first + i, 5 + i, part) for i, part in enumerate(parts))
