"""Hostile entries: a few stored bytes that claim to expand to many bytes, records or levels."""

# covers: dlog/format/record_set.py

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import cramjam
import pytest

from dlog.errors import EntryFormatError
from dlog.format.compression import Compression, compress
from dlog.format.envelope import ENTRY_BYTES_MAX, ENVELOPE_HEADER, open_envelope
from dlog.format.record import FLAG_RECORD_SET, POSITION_MAX, Record, encode_record, encode_records
from dlog.format.record_set import SET_HEADER, SETS_BYTES_MAX, SETS_RECORDS_MAX, SetBudget, decode_record_set
from dlog.read.segment_reader import SegmentReader, last_record_of, slot_not_before
from tests.fakes.record_sets import encode_record_set

MIB = 1024 * 1024
CODECS = [Compression.LZ4, Compression.SNAPPY]


def lz4(body: bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(body, store_size=False))


def envelope(body: bytes, codec: Compression = Compression.LZ4, claim: int | None = None) -> bytes:
    """An entry as a hostile writer makes it: no limit is kept."""
    stored = compress(codec, body)
    size = len(body) if claim is None else claim
    return ENVELOPE_HEADER.pack(1, codec.value, size, len(stored)) + stored


def record_set(body: bytes, count: int, codec: Compression = Compression.LZ4) -> bytes:
    stored = compress(codec, body)
    return SET_HEADER.pack(0x1000 | codec.value, count, len(body), len(stored)) + stored


def decode(entry: bytes) -> list[Record]:
    reader = SegmentReader(7, 0)
    reader.confirmed(0, closed=False)
    return reader.decode_all([entry])


def peak_bytes(refused: Callable[[], object], match: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(EntryFormatError, match=match):
            refused()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_tiny_entry_with_millions_of_records_is_refused_before_it_expands() -> None:
    """The entry of the report: two levels of LZ4, 4.2 million empty records, 969 MiB in the reader."""
    empty_records = 4_200_000
    packed = record_set(bytes(4 * empty_records), empty_records)
    entry = envelope(encode_record(FLAG_RECORD_SET, 1, 1, packed))
    assert len(entry) < 1000
    for attack in (decode, last_record_of, lambda entry: slot_not_before(entry, 5)):
        used = peak_bytes(lambda attack=attack: attack(entry), "slot 0: .* limit of")  # type: ignore[misc]
        assert used < MIB


@pytest.mark.parametrize("codec", CODECS)
def test_one_set_beyond_the_limit_is_refused_in_every_codec(codec: Compression) -> None:
    packed = record_set(bytes(SETS_BYTES_MAX + 1), 1, codec)
    assert (
        peak_bytes(lambda: decode_record_set(packed, SetBudget()), "limit of 16711680")
        < 2 * len(packed) + MIB
    )


@pytest.mark.parametrize("codec", CODECS)
def test_many_sets_of_one_entry_share_one_budget(codec: Compression) -> None:
    """Each set alone is within the limit. Together they claim 160 MiB, and 6 GiB if nothing stopped them."""
    packed = record_set(b"\0\x0f\xff\xfc" + bytes(MIB - 4), 1, codec)
    count = min(160, (ENTRY_BYTES_MAX - 100) // (20 + len(packed)))
    entry = envelope(
        b"".join(encode_record(FLAG_RECORD_SET, 1 + index, 1, packed) for index in range(count)), codec
    )
    assert count * MIB > SETS_BYTES_MAX
    match = "slot 15: the record set claims to expand to 1048576 bytes"
    assert peak_bytes(lambda: decode(entry), match) < SETS_BYTES_MAX + 8 * MIB
    assert peak_bytes(lambda: last_record_of(entry), match) < SETS_BYTES_MAX + 8 * MIB


@pytest.mark.slow
def test_many_sets_of_one_entry_share_the_limit_of_records() -> None:
    packed = record_set(bytes(4 * 100_000), 100_000)
    entry = envelope(
        b"".join(encode_record(FLAG_RECORD_SET, 1 + 100_000 * index, 1, packed) for index in range(3))
    )
    with pytest.raises(EntryFormatError, match=f"slot 200000: .* limit of {SETS_RECORDS_MAX}"):
        decode(entry)


@pytest.mark.parametrize("codec", CODECS)
def test_an_envelope_expands_to_one_entry_at_most(codec: Compression) -> None:
    bomb = envelope(bytes(8 * MIB), codec)
    match = f"claims to expand to 8388608 bytes, more than the limit of {ENTRY_BYTES_MAX}"
    assert peak_bytes(lambda: open_envelope(bomb), match) < MIB


@pytest.mark.parametrize("codec", CODECS)
def test_a_length_that_the_stored_bytes_contradict_allocates_nothing(codec: Compression) -> None:
    """The header says 100 bytes, the block 8 MiB; or the header says 1 MiB, and the block is a few bytes."""
    longer, shorter = (
        envelope(bytes(8 * MIB), codec, claim=100),
        envelope(b"abc", codec, claim=ENTRY_BYTES_MAX),
    )
    assert peak_bytes(lambda: open_envelope(longer), "100") < MIB
    assert peak_bytes(lambda: open_envelope(shorter), str(ENTRY_BYTES_MAX)) < MIB // 4


def test_entries_without_compression_have_the_same_limit() -> None:
    body = encode_record(0, 1, 1, bytes(ENTRY_BYTES_MAX))
    with pytest.raises(EntryFormatError, match=f"more than the limit of {ENTRY_BYTES_MAX}"):
        open_envelope(ENVELOPE_HEADER.pack(1, 0, len(body), len(body)) + body)
    with pytest.raises(EntryFormatError, match=f"more than the limit of {ENTRY_BYTES_MAX}"):
        last_record_of(body, enveloped=False)


def test_a_set_in_a_set_stays_bytes() -> None:
    """Sub-records have no flags, so there is nothing that a second level could be read from."""
    inner = encode_record_set([b"a", b"b"], Compression.LZ4)
    outer = encode_record_set([inner, inner], Compression.LZ4)
    entry = envelope(encode_record(FLAG_RECORD_SET, 1, 1, outer))
    assert [record.payload for record in decode(entry)] == [inner, inner]


@pytest.mark.slow
def test_what_apache_may_write_is_within_the_limits() -> None:
    full = ENTRY_BYTES_MAX - 13
    body = encode_record(0, 1, 1, bytes(full - 20))
    for entry in (envelope(body), ENVELOPE_HEADER.pack(1, 0, full, full) + body):
        assert open_envelope(entry)[2] >= full
    packed = encode_record_set([bytes(1_000_000)] * 15, Compression.LZ4)
    assert len(decode_record_set(packed, SetBudget())) == 15
    assert len(decode_record_set(encode_record_set([b""] * 200_000), SetBudget())) == 200_000


@pytest.mark.slow
def test_the_writer_packs_no_set_that_readers_refuse() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode_record_set([b""] * (SETS_RECORDS_MAX + 1), Compression.LZ4)
    with pytest.raises(ValueError, match="at most"):
        encode_record_set([bytes(MIB)] * 16, Compression.LZ4)


def test_a_segment_reader_counts_what_it_expanded() -> None:
    reader = SegmentReader(7, 0)
    reader.confirmed(3, closed=False)
    body = encode_records([bytes(1000)], [1], 1)
    reader.decode_all([ENVELOPE_HEADER.pack(1, 0, len(body), len(body)) + body])
    assert reader.expanded_bytes == 0
    reader.decode_all([envelope(encode_records([bytes(1000)], [1], 2))])
    assert reader.expanded_bytes == 1020
    packed = encode_record_set([bytes(500)], Compression.LZ4)
    reader.decode_all([envelope(encode_record(FLAG_RECORD_SET, 3, 1, packed))])
    assert reader.expanded_bytes == 1020 + 20 + len(packed) + 504


def test_the_positions_of_a_record_set_end_at_the_greatest_one_for_a_recovery_too() -> None:
    """A recovery stores the position as the number of records of the segment."""
    packed = encode_record_set([b"a", b"b"], Compression.NONE)
    entry = encode_record(FLAG_RECORD_SET, POSITION_MAX, 1, packed)
    for read in (decode, last_record_of):
        with pytest.raises(EntryFormatError, match="claims positions up to"):
            read(envelope(entry))
