"""Stored and sent values of a ledger: round trips, arbitrary bytes, dumb twins."""

from __future__ import annotations

import zlib

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.availability import decode_availability, encode_availability
from ledger.digest import DigestType, Entry, EntryCodec
from ledger.errors import CorruptEntryError, LedgerMetadataError, MetadataFormatError, WireError
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.metadata_codec import decode_metadata, encode_metadata
from ledger.paths import Layout, decode_layout, ledger_id_of, ledger_path
from ledger.service_info import Endpoint, ServiceInfo, decode_service_info, encode_service_info

ids = st.integers(0, 2**63 - 1) | st.integers(0, 300)
int64 = st.integers(-(2**63), 2**63 - 1)
digest_types = st.sampled_from(DigestType)
passwords = st.binary(max_size=10)
payloads = st.binary(max_size=100)

# Entries


@given(digest_types, passwords, ids, ids, int64, int64, payloads)
def test_entries_survive_packing(
    digest_type: DigestType,
    password: bytes,
    ledger_id: int,
    entry_id: int,
    lac: int,
    length_bytes: int,
    payload: bytes,
) -> None:
    entries = EntryCodec(digest_type, password)
    body = entries.pack(ledger_id, entry_id, lac, length_bytes, payload)
    entry = Entry(ledger_id, entry_id, lac, length_bytes, payload)
    assert len(body) == entries.overhead_bytes + len(payload)
    assert entries.unpack(body, ledger_id, entry_id) == entry
    assert entries.unpack(body, ledger_id, None) == entry
    assert entries.unpack_lac(entries.pack_lac(ledger_id, lac), ledger_id) == lac


@given(payloads, ids, ids)
def test_checksums_are_those_of_header_and_payload_in_one(
    payload: bytes, ledger_id: int, entry_id: int
) -> None:
    for digest_type, checksum in ((DigestType.CRC32C, crc32c), (DigestType.CRC32, zlib.crc32)):
        body = EntryCodec(digest_type, b"").pack(ledger_id, entry_id, -1, 0, payload)
        size = digest_type.size_bytes
        assert int.from_bytes(body[32 : 32 + size], "big") == checksum(body[:32] + body[32 + size :])


@given(digest_types, payloads, st.data())
def test_a_flipped_bit_is_found_wherever_it_is(
    digest_type: DigestType, payload: bytes, data: st.DataObject
) -> None:
    entries = EntryCodec(digest_type, b"pass")
    body = bytearray(entries.pack(7, 5, 4, 100, payload))
    # Without a digest only the ids are checked.
    bits = 16 * 8 if digest_type is DigestType.DUMMY else len(body) * 8
    bit = data.draw(st.integers(0, bits - 1))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptEntryError):
        entries.unpack(bytes(body), 7, 5)
    with pytest.raises(CorruptEntryError):
        entries.payloads([bytes(body)], 7, 5)


@given(digest_types, st.binary(max_size=120))
def test_any_bytes_are_an_entry_or_corrupt(digest_type: DigestType, body: bytes) -> None:
    entries = EntryCodec(digest_type, b"pass")
    try:
        entry = entries.unpack(body, 7, None)
    except CorruptEntryError:
        pass
    else:
        assert entries.pack(7, entry.entry_id, entry.lac, entry.length_bytes, entry.payload) == body
    try:
        lac = entries.unpack_lac(body, 7)
    except CorruptEntryError:
        pass
    else:
        assert body.startswith(entries.pack_lac(7, lac))


@given(digest_types, st.lists(payloads, max_size=8), st.integers(0, 10), st.data())
def test_a_run_is_the_good_entries_in_front_of_the_first_bad_one(
    digest_type: DigestType, run: list[bytes], first: int, data: st.DataObject
) -> None:
    entries = EntryCodec(digest_type, b"pass")
    bodies = [entries.pack(7, first + index, -1, 0, payload) for index, payload in enumerate(run)]
    if bodies:
        at = data.draw(st.integers(0, len(bodies) - 1))
        bodies[at] = data.draw(
            st.sampled_from(
                [
                    bodies[at],
                    bodies[at][:-1],
                    entries.pack(8, first + at, -1, 0, run[at]),
                    entries.pack(7, first + at + 1, -1, 0, run[at]),
                    b"\x80" + bodies[at][1:],
                ]
            )
        )
    expected: list[bytes] = []  # the twin takes one entry at a time
    for entry_id, body in enumerate(bodies, first):
        try:
            expected.append(entries.unpack(body, 7, entry_id).payload)
        except CorruptEntryError:
            break
    if bodies and not expected:
        with pytest.raises(CorruptEntryError):
            entries.payloads(bodies, 7, first)
    else:
        assert entries.payloads(bodies, 7, first) == expected


# Metadata

bookie_ids = st.text(st.sampled_from("abcdefgh0123456789.:-_"), min_size=1, max_size=12)


@st.composite
def metadatas(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, size))
    version = draw(st.integers(1, 3))
    firsts = sorted(draw(st.sets(ids, min_size=1, max_size=4)))
    closed = draw(st.booleans())
    old = version == 1
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum if old else draw(st.integers(1, write_quorum)),
        ensembles=tuple(
            Ensemble(first, tuple(draw(st.lists(bookie_ids, min_size=size, max_size=size))))
            for first in firsts
        ),
        state=LedgerState.CLOSED
        if closed
        else draw(st.sampled_from([LedgerState.OPEN, LedgerState.IN_RECOVERY])),
        last_entry_id=draw(st.integers(-1, 2**63 - 1)) if closed else -1,
        length_bytes=draw(ids) if closed else 0,
        digest_type=DigestType.CRC32 if old else draw(digest_types),
        password=None if old else draw(passwords),
        ctime_ms=None if old else draw(st.none() | int64),
        custom={} if old else draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3)),
        creator_token=draw(ids) if version == 3 else 0,
        format_version=version,
    )


@given(metadatas())
def test_metadata_survives_storing(metadata: LedgerMetadata) -> None:
    data = encode_metadata(metadata)
    assert decode_metadata(data) == metadata
    assert encode_metadata(decode_metadata(data)) == data


@st.composite
def damaged_metadata(draw: st.DrawFn) -> bytes:
    data = bytearray(encode_metadata(draw(metadatas())))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(28, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


HEADER = b"BookieMetadataFormatVersion\t"


@given(
    damaged_metadata()
    | st.binary(max_size=50)
    | st.builds(lambda v, b: HEADER + b"%d\n" % v + b, st.integers(0, 4), st.binary(max_size=80))
    | st.builds(
        lambda t: HEADER + b"2\n" + t.encode(),
        st.text(st.sampled_from('abeqsS:{}[]<>"\\\n\t 0123.-#/'), max_size=60),
    )
)
@example(HEADER + b"2\n" + b"a{" * 5000)
@example(HEADER + b"2\n" + b'quorumSize: 1e999 ensembleSize: "x"')
@example(HEADER + b"2\n\xff")
@example(HEADER + b'2\nquorumSize: 1 ensembleSize: 1 length: 0 password: "\\\x000"')
@example(HEADER + b"1\n\xff")
@example(HEADER + "1\n²\n1\n1\n".encode())
@example(HEADER + "1²\n".encode())
@example(HEADER)
@example(HEADER + b"3\n")
@example(HEADER + b"3\n\xff\xff\xff\xff\xff\xff\xff")
def test_any_bytes_are_metadata_or_a_format_error(data: bytes) -> None:
    try:
        metadata = decode_metadata(data)
    except MetadataFormatError:
        return
    again = decode_metadata(encode_metadata(metadata))
    assert again == metadata


@given(st.integers(0, 20), st.integers(-2, 40))
def test_an_entry_is_in_the_last_ensemble_that_begins_at_or_before_it(step: int, entry_id: int) -> None:
    firsts = [index * (step + 1) for index in range(4)]
    metadata = LedgerMetadata(
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        ensembles=tuple(Ensemble(first, (f"b{first}",)) for first in firsts),
    )
    covering = [ensemble for ensemble in metadata.ensembles if ensemble.first_entry_id <= entry_id]
    if covering:
        assert metadata.ensemble_for(entry_id) is covering[-1]
    else:
        with pytest.raises(LedgerMetadataError):
            metadata.ensemble_for(entry_id)


# Entry lists


@given(
    st.sets(st.integers(0, 200))
    | st.sets(ids)
    | st.builds(
        lambda s, c, r: {start * s + offset for start in range(c) for offset in range(min(r, s))},
        st.integers(1, 9),
        st.integers(1, 30),
        st.integers(1, 4),
    )
)
def test_entry_lists_say_what_the_set_says(entry_ids: set[int]) -> None:
    ascending = sorted(entry_ids)
    availability = decode_availability(encode_availability(ascending))
    assert len(availability) == len(entry_ids)
    near = {entry_id + step for entry_id in entry_ids for step in (-1, 0, 1)} | set(range(-2, 210))
    assert {entry_id for entry_id in near if entry_id in availability} == entry_ids


@given(st.integers(2, 9), st.integers(2, 500), st.integers(0, 8))
def test_a_stripe_takes_one_group(ensemble_size: int, count: int, start: int) -> None:
    stripe = range(start, start + ensemble_size * count, ensemble_size)
    assert len(encode_availability(stripe)) == 64 + 24


@given(
    st.binary(max_size=200)
    | st.builds(
        lambda count, groups: bytes(4) + count.to_bytes(4, "big") + bytes(56) + groups,
        st.integers(0, 5),
        st.binary(min_size=24, max_size=96),
    )
)
def test_any_bytes_are_an_entry_list_or_a_wire_error(data: bytes) -> None:
    try:
        availability = decode_availability(data)
    except WireError:
        return
    assert len(availability) >= 0
    assert -1 not in availability


# Paths, layouts, service info


@given(ids, st.sampled_from(Layout))
def test_a_ledgers_path_leads_back_to_it(ledger_id: int, layout: Layout) -> None:
    try:
        path = ledger_path("/a/b", layout, ledger_id)
    except LedgerMetadataError:
        assert layout in (Layout.FLAT, Layout.LEGACY_HIERARCHICAL)
        assert ledger_id >= 10**10
        return
    assert ledger_id_of("/a/b", path) == ledger_id
    assert ledger_id_of("/a", path) is None


@given(st.text(max_size=30) | st.text(st.sampled_from("L0123456789/"), max_size=26))
def test_any_path_is_a_ledgers_or_none(below: str) -> None:
    ledger_id = ledger_id_of("/r", f"/r/{below}")
    if ledger_id is not None:
        paths = []
        for layout in Layout:
            try:
                paths.append(ledger_path("/r", layout, ledger_id))
            except LedgerMetadataError:
                continue
        assert f"/r/{below}" in paths


@given(st.binary(max_size=100))
@example(b"2\n" + b":1")
@example(b"2\n.:1")
def test_any_bytes_are_a_layout_or_a_format_error(data: bytes) -> None:
    try:
        layout = decode_layout(data)
    except MetadataFormatError:
        return
    assert isinstance(layout, Layout)


texts = st.text(max_size=10)
endpoints = st.builds(
    Endpoint,
    texts,
    st.integers(0, 65535),
    texts,
    texts,
    st.lists(texts, max_size=2).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
)


@given(st.lists(endpoints, max_size=3).map(tuple), st.dictionaries(texts, texts, max_size=3))
def test_service_info_survives_storing(found: tuple[Endpoint, ...], properties: dict[str, str]) -> None:
    info = ServiceInfo(found, properties)
    assert decode_service_info(encode_service_info(info)) == info


@given(st.binary(max_size=100))
@example(bytes.fromhex("320e0a02fffe10011a0161220162"))
@example(bytes.fromhex("3a060a02fffe1200"))
def test_any_bytes_are_service_info_or_a_format_error(data: bytes) -> None:
    try:
        info = decode_service_info(data)
    except MetadataFormatError:
        return
    assert decode_service_info(encode_service_info(info)) == info
