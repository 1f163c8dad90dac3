"""Stored forms of names and nodes: a value survives encoding; any bytes give a value or the codec's error."""

from __future__ import annotations

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from dlog.errors import InvalidLogNameError, InvalidUriError, LogMetadataError
from ledger.metadata_store.errors import InvalidStoreAddressError
from ledger.metadata_store.lock import member_owner, member_prefix, member_sequence
from ledger.metadata_store.service_uri import parse_metadata_service_uri
from ledger.metadata_store.store import check_path
from namespace.binding import Binding, decode_binding, encode_binding
from namespace.dlsn import DLSN
from namespace.log_name import check_log_name
from namespace.namespace_uri import parse_namespace_uri
from namespace.segments.segment import LogSegment, TruncationStatus, decode_segment, encode_segment
from tests.strategies import INT64

HOSTS = st.text(min_size=1).filter(lambda text: text.encode("utf-8", "ignore").decode() == text)


@st.composite
def segments(draw: st.DrawFn) -> LogSegment:
    version = draw(st.integers(1, 5))
    in_progress = draw(st.booleans())
    segment = LogSegment(
        version=version,
        in_progress=in_progress,
        segment_seqno=draw(INT64) if version >= 2 else 0,
        ledger_id=draw(INT64),
        first_txid=draw(INT64),
    )
    if not in_progress:
        segment = attrs.evolve(
            segment,
            last_txid=draw(INT64),
            completed_ms=draw(INT64),
            record_count=draw(st.integers(0, 2**31 - 1)),
            last_entry_id=draw(INT64) if version >= 2 else -1,
            last_slot_id=draw(INT64) if version >= 2 else -1,
            start_sequence_id=draw(INT64) if version >= 5 else -1,
        )
    if version >= 2:
        segment = attrs.evolve(
            segment,
            truncation=draw(st.sampled_from(TruncationStatus)),
            region_id=draw(st.integers(0, 15)),
            reserved_bits=draw(st.integers(0, 2**18 - 1)) << 10,
        )
    if version >= 3:
        segment = attrs.evolve(segment, min_active_entry_id=draw(INT64), min_active_slot_id=draw(INT64))
    return segment


@given(segments())
def test_a_segment_survives_encoding(segment: LogSegment) -> None:
    assert decode_segment(encode_segment(segment)) == segment


@given(st.binary() | st.lists(INT64.map(str), max_size=12).map(lambda parts: ";".join(parts).encode()))
@example(b"5;1;1;1;0;0;5")
def test_any_bytes_are_a_segment_or_a_metadata_error(data: bytes) -> None:
    try:
        segment = decode_segment(data)
    except LogMetadataError:
        return
    assert decode_segment(encode_segment(segment)) == segment


@given(INT64, INT64, INT64, st.sampled_from([0, 1]))
def test_a_dlsn_survives_encoding(seqno: int, entry_id: int, slot_id: int, version: int) -> None:
    dlsn = DLSN(seqno, entry_id, slot_id)
    assert DLSN.from_bytes(dlsn.to_bytes(version)) == dlsn
    assert DLSN.from_text(dlsn.to_text(version)) == dlsn


@given(st.binary() | st.binary(min_size=24, max_size=24).map(lambda rest: b"\x01" + rest))
def test_any_bytes_are_a_dlsn_or_a_metadata_error(data: bytes) -> None:
    try:
        dlsn = DLSN.from_bytes(data)
    except LogMetadataError:
        return
    assert dlsn.to_bytes(data[0]) == data


@given(st.text())
def test_any_text_is_a_dlsn_or_a_metadata_error(text: str) -> None:
    try:
        assert DLSN.from_text(text).to_text() == text
    except LogMetadataError:
        pass


@given(
    st.builds(
        Binding,
        bk_hosts=HOSTS,
        ledgers_root=HOSTS,
        sanity_check_txid=st.booleans(),
        encode_region_id=st.booleans(),
        bk_hosts_for_reader=st.none() | HOSTS,
        dl_hosts_for_writer=st.none() | HOSTS,
        dl_hosts_for_reader=st.none() | HOSTS,
        acl_root_path=st.none() | HOSTS,
        first_segment_seqno=st.none() | INT64,
        federated=st.none() | st.booleans(),
    )
)
def test_a_binding_survives_encoding(binding: Binding) -> None:
    assert decode_binding(encode_binding(binding)) == binding


@given(st.binary() | st.binary().map(lambda rest: b"1\nBKDL\n" + rest))
@example(b'1\nBKDL\n{"1":{"str":"h"},"2":{"str":"/l"},"3":{"tf":1e999}}')
@example(b'1\nBKDL\n{"1":{"str":"h"},"2":{"str":"/l"},"9":{"i64":NaN}}')
def test_any_bytes_are_a_binding_or_a_metadata_error(data: bytes) -> None:
    try:
        binding = decode_binding(data)
    except LogMetadataError:
        return
    assert decode_binding(encode_binding(binding)) == binding


@given(st.text(), INT64, st.integers(0, 2**31 - 1))
def test_a_members_name_gives_its_owner_unless_the_client_has_an_underscore(
    client_id: str, session_id: int, sequence: int
) -> None:
    client_id = client_id.encode("utf-8", "ignore").decode()
    name = member_prefix(client_id, session_id) + f"{sequence:010d}"
    assert "/" not in name
    assert member_sequence(name) == sequence
    assert member_owner(name) == (None if "_" in client_id else (client_id, session_id))


@given(st.text())
def test_any_text_is_a_valid_log_name_or_refused(text: str) -> None:
    try:
        name = check_log_name(text)
    except InvalidLogNameError:
        return
    assert check_path(f"/ns/{name}") == f"/ns/{name}"
    assert check_log_name(name) == name


@given(st.text() | st.text().map("distributedlog://".__add__) | st.text().map("file:///".__add__))
def test_any_text_is_a_namespace_uri_or_refused(text: str) -> None:
    try:
        uri = parse_namespace_uri(text)
    except InvalidUriError:
        return
    assert parse_namespace_uri(str(uri)) == uri


@given(st.text() | st.text().map("zk+hierarchical://h".__add__))
def test_any_text_is_a_metadata_service_uri_or_refused(text: str) -> None:
    try:
        uri = parse_metadata_service_uri(text)
    except InvalidStoreAddressError:
        return
    assert parse_metadata_service_uri(str(uri)) == uri
