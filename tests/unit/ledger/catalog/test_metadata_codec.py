from __future__ import annotations

from typing import Any

import attrs
import pytest
from google.protobuf import text_format

from ledger.catalog.metadata_codec import decode_metadata, encode_metadata
from ledger.digest import DigestType
from ledger.errors import MetadataFormatError
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.wire.data_formats_pb2 import LedgerMetadataFormat

HEADER = b"BookieMetadataFormatVersion\t"
OPEN = LedgerMetadata(
    ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=(Ensemble(0, ("b1:3181",)),), password=b""
)


def version_3(**fields: Any) -> bytes:
    values: dict[str, Any] = {"quorumSize": 1, "ensembleSize": 1, "length": 0, "state": "OPEN"} | fields
    message = LedgerMetadataFormat(**{name: value for name, value in values.items() if value is not None})
    message.segment.add(ensembleMember=["b1:3181"], firstEntryId=0)
    body = message.SerializePartialToString()
    assert len(body) < 128
    return HEADER + b"3\n" + bytes((len(body),)) + body


def test_length_and_last_entry_count_only_in_closed_ledgers() -> None:
    for state in ("OPEN", "IN_RECOVERY"):
        metadata = decode_metadata(version_3(state=state, length=99, lastEntryId=7))
        assert (metadata.last_entry_id, metadata.length_bytes) == (-1, 0)


def test_absent_fields_have_javas_meaning() -> None:
    metadata = decode_metadata(version_3())
    assert metadata.ack_quorum == metadata.write_quorum == 1
    assert metadata.ctime_ms is None
    assert metadata.password is None
    assert metadata.digest_type is DigestType.CRC32
    assert decode_metadata(version_3(password=b"x")).digest_type is DigestType.CRC32


def test_password_and_digest_type_are_written_both_or_neither() -> None:
    both = encode_metadata(decode_metadata(version_3(password=b"x")))
    neither = encode_metadata(decode_metadata(version_3(digestType="DUMMY")))
    for data, expected in ((both, True), (neither, False)):
        message = LedgerMetadataFormat.FromString(data[len(HEADER) + 3 :])
        assert (message.HasField("password"), message.HasField("digestType")) == (expected, expected)


def test_an_unknown_digest_type_is_not_taken_for_crc32() -> None:
    data = bytearray(version_3(digestType="DUMMY", password=b"x"))
    at = data.index(b"\x38\x04")
    data[at + 1] = 9
    with pytest.raises(MetadataFormatError, match="digest type 9"):
        decode_metadata(bytes(data))


@pytest.mark.parametrize("missing", ["quorumSize", "ensembleSize", "length", "state"])
def test_a_missing_required_field_fails(missing: str) -> None:
    with pytest.raises(MetadataFormatError, match="required"):
        decode_metadata(version_3(**{missing: None}))


def test_a_closed_ledger_without_its_last_entry_is_refused() -> None:
    with pytest.raises(MetadataFormatError, match="last"):
        decode_metadata(version_3(state="CLOSED"))


def test_version_3_ignores_what_follows_the_announced_length() -> None:
    assert decode_metadata(version_3() + b"anything") == decode_metadata(version_3())


def test_unknown_fields_are_skipped() -> None:
    data = version_3()
    longer = data[:30] + bytes((data[30] + 3,)) + data[31:] + b"\xa0\x06\x01"
    assert decode_metadata(longer) == decode_metadata(data)
    text = encode_metadata(attrs.evolve(OPEN, format_version=2))
    assert decode_metadata(text + b'fromTheFuture: "x"\n') == decode_metadata(text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BookieMetadataFormatVersion",
        HEADER + b"0\n",
        HEADER + b"4\n",
        HEADER + b"-1\n",
        HEADER + b"0000000003",
        HEADER + b"3\n",
        HEADER + b"3\n\x7fshort",
        HEADER + b"2\n{",
        HEADER + b"2\nquorumSize: 1",
        HEADER + b"1\n",
        HEADER + b"1\n1\n1\n0\n",
        HEADER + b"1\n1\n1\n0\nfirst\tb1",
        HEADER + b"1\n1\n1\n1_0\n0\tb1",
    ],
)
def test_bytes_that_do_not_parse_are_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode_metadata(data)


def test_the_version_number_may_have_leading_zeros_as_java_reads_them() -> None:
    data = version_3().replace(b"\t3\n", b"\t000000003\n")
    assert decode_metadata(data) == decode_metadata(version_3())


@pytest.mark.parametrize("state", LedgerState)
def test_version_1_has_all_states(state: LedgerState) -> None:
    old = attrs.evolve(OPEN, format_version=1, password=None)
    metadata = {
        LedgerState.OPEN: old,
        LedgerState.IN_RECOVERY: old.in_recovery(),
        LedgerState.CLOSED: old.closed(9, 100),
    }[state]
    assert decode_metadata(encode_metadata(metadata)) == metadata


@pytest.mark.parametrize(
    "change",
    [
        {"password": b""},
        {"custom": {"k": b"v"}},
        {"ctime_ms": 1},
        {"creator_token": 1},
        {"ensembles": (Ensemble(0, ("b\t1",)),)},
    ],
)
def test_version_1_refuses_values_that_it_has_no_field_for(change: dict[str, Any]) -> None:
    old = attrs.evolve(OPEN, format_version=1, password=None)
    with pytest.raises(MetadataFormatError):
        encode_metadata(attrs.evolve(old, **change))


def test_version_2_has_no_field_for_a_creator_token() -> None:
    with pytest.raises(MetadataFormatError, match="creator token"):
        encode_metadata(attrs.evolve(OPEN, format_version=2, creator_token=5))


def test_every_password_survives_the_text_format() -> None:
    for password in (bytes(range(256)), b"\\", b"\\0", b"'\"\\\n", b"\x00\x07\xff7"):
        metadata = attrs.evolve(OPEN, format_version=2, password=password)
        assert decode_metadata(encode_metadata(metadata)) == metadata


@pytest.mark.parametrize("escape", [b"\\ ", b"\\q", b"\\\x00", b"\\8", b"\\?", b"\\400"])
def test_an_invalid_escape_is_refused_and_not_taken_for_a_backslash(escape: bytes) -> None:
    text = encode_metadata(attrs.evolve(OPEN, format_version=2, password=b"secret"))
    assert b'"secret"' in text
    with pytest.raises(MetadataFormatError, match="invalid escape"):
        decode_metadata(text.replace(b'"secret"', b'"' + escape + b'"'))


@pytest.mark.parametrize("state", ["OPEN", "IN_RECOVERY", "CLOSED"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_ensemble_with_one_bookie_three_times_is_refused(version: int, state: str) -> None:
    message = LedgerMetadataFormat(
        quorumSize=3, ensembleSize=3, length=0, state=state, lastEntryId=4, ackQuorumSize=2
    )
    message.segment.add(ensembleMember=["b1:3181"] * 3, firstEntryId=0)
    body = message.SerializeToString()
    end = {"OPEN": "", "IN_RECOVERY": "-102\tCLOSED", "CLOSED": "4\tCLOSED"}[state]
    stored = {
        1: f"3\n3\n0\n0\tb1:3181\tb1:3181\tb1:3181\n{end}".encode(),
        2: text_format.MessageToString(message).encode(),
        3: bytes((len(body),)) + body,
    }[version]
    with pytest.raises(MetadataFormatError, match="'b1:3181' 3 times"):
        decode_metadata(HEADER + b"%d\n" % version + stored)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"quorumSize": 2}, "write quorum 2"),
        ({"ackQuorumSize": 2}, "ack quorum 2"),
        ({"ackQuorumSize": 0}, "ack quorum 0"),
        ({"ensembleSize": 2}, "the ensemble size is 2"),
        ({"ensembleSize": 0, "quorumSize": 0, "ackQuorumSize": 0}, "less than 1"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(sizes: dict[str, int], reason: str) -> None:
    with pytest.raises(MetadataFormatError, match=reason):
        decode_metadata(version_3(**sizes))


def test_a_digest_type_without_a_password_counts_as_absent() -> None:
    """The fuzzer found that it was read, and that the next change of the metadata dropped it."""
    metadata = decode_metadata(version_3(digestType="CRC32C"))
    assert (metadata.password, metadata.digest_type) == (None, DigestType.CRC32)
    assert decode_metadata(encode_metadata(metadata)) == metadata
