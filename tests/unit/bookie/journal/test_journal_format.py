"""The journal's bytes, ours and Apache's."""

# covers: bookie/journal/format.py

from __future__ import annotations

import pytest

from bookie.errors import FormatError
from bookie.journal.format import (
    FILE_HEADER_BYTES,
    FIRST_GROUP_OFFSET,
    JournalMark,
    Predecessor,
    RecordKind,
    decode_file_trailer,
    decode_mark,
    decode_special,
    decode_trailer,
    encode_first_block,
    encode_group_end,
    encode_mark,
    explicit_lac_record,
    fence_record,
    group_bytes,
    has_header,
    is_closed_mark,
    journal_id_of,
    journal_name,
    key_record,
    trailer_matches,
)


def test_a_name_is_the_id_in_lower_case_hex() -> None:
    assert journal_name(0x1A1FD91104F) == "1a1fd91104f.txn"
    assert journal_id_of("1a1fd91104f.txn") == 0x1A1FD91104F


@pytest.mark.parametrize("name", ["VERSION", "1.log", "spare-1", "1.txn.new", "1A.txn", ".txn", "x.txn"])
def test_other_names_are_no_journal(name: str) -> None:
    assert journal_id_of(name) is None


def test_a_mark_begins_with_apaches_sixteen_bytes_and_those_alone_are_read_too() -> None:
    mark = JournalMark(0x1A1FD911050, 0x800)
    assert encode_mark(mark).hex().startswith("000001a1fd9110500000000000000800")
    assert decode_mark(bytes.fromhex("000001a1fd9110500000000000000800")) == mark
    assert decode_mark(encode_mark(mark)) == mark
    closed = encode_mark(mark, is_closed=True)
    assert closed[:16] == encode_mark(mark)[:16]
    assert decode_mark(closed) == mark
    assert [is_closed_mark(each) for each in (closed, encode_mark(mark), closed[:16])] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("bit", range(8 * 24))
def test_a_mark_with_any_bit_flipped_is_no_mark(bit: int, is_closed: bool) -> None:
    data = bytearray(encode_mark(JournalMark(7, 0x8000), is_closed=is_closed))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FormatError):
        decode_mark(bytes(data))


@pytest.mark.parametrize("data", [b"", b"\0" * 15, b"\0" * 17, b"\0" * 24, b"\xff" * 16])
def test_a_mark_of_another_size_or_below_zero_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_mark(data)


def test_the_first_block_has_apaches_header_and_a_padding_record_to_the_first_group() -> None:
    block = encode_first_block(5, Predecessor(4, 8192))
    assert len(block) == FIRST_GROUP_OFFSET
    assert block[:8] == b"BKLG\0\0\0\6"
    assert not any(block[8:FILE_HEADER_BYTES])
    assert block[512:520].hex() == "ffffff00" + "00000df8"  # -0x100, 3576 bytes
    assert has_header(block)
    assert decode_file_trailer(block, 5) == Predecessor(4, 8192)


def test_a_first_block_of_another_file_or_with_a_flipped_bit_names_no_predecessor() -> None:
    block = bytearray(encode_first_block(5, Predecessor(4, 8192)))
    assert decode_file_trailer(bytes(block), 6) is None
    block[512 + 8 + 30] ^= 1
    assert decode_file_trailer(bytes(block), 5) is None


def test_an_empty_or_zeroed_file_has_no_header_and_holds_nothing() -> None:
    assert not has_header(b"")
    assert not has_header(bytes(4096))


@pytest.mark.parametrize("zeroed", [8, 512, 4096])
def test_a_zeroed_header_in_front_of_anything_is_damage(zeroed: int) -> None:
    data = encode_first_block(5, Predecessor(4, 8192)) + b"a group".ljust(4096, b"\0")
    with pytest.raises(FormatError, match="zeros"):
        has_header(bytes(zeroed) + data[zeroed:])


@pytest.mark.parametrize("start", [b"BKLG\0\0\0\4", b"BKLG\0\0\0\7", b"junkjunk"])
def test_other_versions_and_other_files_are_refused(start: bytes) -> None:
    with pytest.raises(FormatError):
        has_header(start.ljust(512, b"\0"))


def test_special_records_are_told_by_a_negative_entry_id() -> None:
    assert key_record(1, b"k" * 20).hex().startswith("0000000000000001fffffffffffff00000000014")
    assert decode_special(key_record(1, b"k" * 20)) == (RecordKind.KEY, b"k" * 20)
    assert fence_record(258).hex() == "0000000000000102ffffffffffffe000"
    assert decode_special(fence_record(258)) == (RecordKind.FENCE, b"")
    assert decode_special(explicit_lac_record(2, b"packet")) == (RecordKind.EXPLICIT_LAC, b"packet")
    assert decode_special(bytes(8) + (-0x4000).to_bytes(8, "big", signed=True))[0] is RecordKind.UNKNOWN


@pytest.mark.parametrize("length", [-1, 3, 21, 2**31 - 1])
def test_a_key_record_whose_length_lies_is_refused(length: int) -> None:
    record = key_record(1, b"k" * 20)
    with pytest.raises(FormatError):
        decode_special(record[:16] + length.to_bytes(4, "big", signed=True) + record[20:])


@pytest.mark.parametrize("records_bytes", [1, 4096 - 48, 4096 - 47, 4096, 4097, 1 << 20])
def test_a_group_ends_on_a_block_and_always_has_room_for_its_trailer(records_bytes: int) -> None:
    size = group_bytes(records_bytes)
    assert size % 4096 == 0
    assert records_bytes + 48 <= size < records_bytes + 48 + 4096


def test_a_trailer_covers_the_group_and_itself() -> None:
    from crc32c import crc32c

    records = b"\0\0\0\x10" + fence_record(1)
    end = encode_group_end(9, 4096, 4096, 1, len(records), crc32c(records))
    group, body = records + end[:8], end[8:]
    trailer = decode_trailer(body)
    assert trailer is not None
    assert (trailer.journal_id, trailer.start, trailer.durable_below, trailer.record_count) == (
        9,
        4096,
        4096,
        1,
    )
    assert trailer_matches(trailer, group, body)
    for at in range(len(group)):
        assert not trailer_matches(trailer, group[:at] + bytes([group[at] ^ 1]) + group[at + 1 :], body)
    for at in range(8, 36):
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        said = decode_trailer(changed)
        assert said is not None
        assert not trailer_matches(said, group, changed)


def test_apaches_padding_has_no_trailer() -> None:
    assert decode_trailer(bytes(400)) is None
    assert decode_trailer(b"DLJT") is None
