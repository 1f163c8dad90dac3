"""Stored and sent values of a ledger: round trips, arbitrary bytes, simple twins."""

from __future__ import annotations

import zlib

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.catalog.availability import decode_availability, encode_availability
from ledger.catalog.metadata_codec import decode_metadata, encode_metadata
from ledger.catalog.paths import Layout, decode_layout, ledger_id_of, ledger_path
from ledger.catalog.service_info import Endpoint, ServiceInfo, decode_service_info, encode_service_info
from ledger.digest import ENTRY_ID_MAX, DigestType, Entry, EntryCodec
from ledger.errors import CorruptEntryError, LedgerMetadataError, MetadataFormatError, WireError
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.wire.entry_lac import credible_lac
from tests.strategies import DIGEST_TYPES, INT64, NEAR_IDS, PAYLOADS, damaged, quorum_sizes

passwords = st.binary(max_size=10)

# Entries


@given(DIGEST_TYPES, passwords, NEAR_IDS, NEAR_IDS, INT64, INT64, PAYLOADS)
def test_an_unpacked_entry_equals_the_packed_one(
    digest_type: DigestType,
    password: bytes,
    ledger_id: int,
    entry_id: int,
    lac: int,
    length_bytes: int,
    payload: bytes,
) -> None:
    lac = credible_lac(entry_id, lac)  # no other one comes back
    entries = EntryCodec(digest_type, password)
    body = entries.pack(ledger_id, entry_id, lac, length_bytes, payload)
    entry = Entry(ledger_id, entry_id, lac, length_bytes, payload)
    assert len(body) == entries.overhead_bytes + len(payload)
    assert entries.unpack(body, ledger_id, entry_id) == entry
    assert entries.unpack(body, ledger_id, None) == entry
    assert entries.unpack_lac(entries.pack_lac(ledger_id, lac), ledger_id) == lac


@given(PAYLOADS, NEAR_IDS, NEAR_IDS)
def test_a_checksum_is_that_of_header_and_payload_joined(
    payload: bytes, ledger_id: int, entry_id: int
) -> None:
    for digest_type, checksum in ((DigestType.CRC32C, crc32c), (DigestType.CRC32, zlib.crc32)):
        body = EntryCodec(digest_type, b"").pack(ledger_id, entry_id, -1, 0, payload)
        size = digest_type.size_bytes
        assert int.from_bytes(body[32 : 32 + size], "big") == checksum(body[:32] + body[32 + size :])


@given(DIGEST_TYPES, PAYLOADS, st.data())
def test_a_flipped_bit_is_found_at_every_position(
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


@given(DIGEST_TYPES, st.binary(max_size=120))
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


@given(DIGEST_TYPES, st.lists(PAYLOADS, max_size=8), st.integers(0, 10), st.data())
def test_payloads_are_those_in_front_of_the_first_bad_entry(
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
    expected: list[bytes] = []  # the twin unpacks one entry at a time
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
    size, write_quorum, ack_quorum = draw(quorum_sizes())
    version = draw(st.integers(1, 3))
    firsts = sorted(draw(st.sets(NEAR_IDS, min_size=1, max_size=4)))
    closed = draw(st.booleans())
    old = version == 1
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum if old else ack_quorum,
        ensembles=tuple(
            Ensemble(first, tuple(draw(st.lists(bookie_ids, min_size=size, max_size=size, unique=True))))
            for first in firsts
        ),
        state=LedgerState.CLOSED
        if closed
        else draw(st.sampled_from([LedgerState.OPEN, LedgerState.IN_RECOVERY])),
        # The entry after the last one has an id, too.
        last_entry_id=draw(st.integers(-1, ENTRY_ID_MAX - 1)) if closed else -1,
        length_bytes=draw(NEAR_IDS) if closed else 0,
        digest_type=DigestType.CRC32 if old else draw(DIGEST_TYPES),
        password=None if old else draw(passwords),
        ctime_ms=None if old else draw(st.none() | INT64),
        custom={} if old else draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3)),
        creator_token=draw(NEAR_IDS) if version == 3 else 0,
        format_version=version,
    )


@given(metadatas())
def test_decoded_metadata_equals_the_encoded_one(metadata: LedgerMetadata) -> None:
    data = encode_metadata(metadata)
    assert decode_metadata(data) == metadata
    assert encode_metadata(decode_metadata(data)) == data


HEADER = b"BookieMetadataFormatVersion\t"


@pytest.mark.slow
@given(
    metadatas().flatmap(lambda m: damaged(encode_metadata(m), first=28, changes_min=1, changes_max=3))
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
    | st.sets(NEAR_IDS)
    | st.builds(
        lambda s, c, r: {start * s + offset for start in range(c) for offset in range(min(r, s))},
        st.integers(1, 9),
        st.integers(1, 30),
        st.integers(1, 4),
    )
)
def test_a_decoded_entry_list_equals_the_set(entry_ids: set[int]) -> None:
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


@given(NEAR_IDS, st.sampled_from(Layout))
def test_a_path_of_a_ledger_gives_its_id(ledger_id: int, layout: Layout) -> None:
    try:
        path = ledger_path("/a/b", layout, ledger_id)
    except LedgerMetadataError:
        assert layout in (Layout.FLAT, Layout.LEGACY_HIERARCHICAL)
        assert ledger_id >= 10**10
        return
    assert ledger_id_of("/a/b", path) == ledger_id
    assert ledger_id_of("/a", path) is None


@given(st.text(max_size=30) | st.text(st.sampled_from("L0123456789/"), max_size=26))
def test_any_path_gives_a_ledger_id_or_none(below: str) -> None:
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
def test_decoded_service_info_equals_the_encoded_one(
    found: tuple[Endpoint, ...], properties: dict[str, str]
) -> None:
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
