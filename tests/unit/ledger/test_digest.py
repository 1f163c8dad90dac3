from __future__ import annotations

import pytest

from ledger.digest import DigestType, EntryCodec
from ledger.errors import CorruptEntryError
from ledger.packed_entries import pack_entries

TYPES = list(DigestType)


@pytest.mark.parametrize("digest_type", TYPES)
def test_every_kind_of_bad_entry_is_refused(digest_type: DigestType) -> None:
    entries = EntryCodec(digest_type, b"pass")
    body = entries.pack(7, 5, 4, 100, b"payload")
    with pytest.raises(CorruptEntryError, match="entry 5 of ledger 7 instead"):
        entries.unpack(body, 8, 5)
    with pytest.raises(CorruptEntryError, match="entry 5 of ledger 7 instead"):
        entries.unpack(body, 7, 6)
    with pytest.raises(CorruptEntryError, match="bytes"):
        entries.unpack(body[: entries.overhead_bytes - 1], 7, 5)
    if digest_type is not DigestType.DUMMY:
        with pytest.raises(CorruptEntryError, match=f"{digest_type.name} digest"):
            entries.unpack(body[:-1] + b"!", 7, 5)


def test_only_mac_depends_on_the_password() -> None:
    for digest_type in TYPES:
        body = EntryCodec(digest_type, b"pass").pack(7, 5, 4, 100, b"payload")
        other = EntryCodec(digest_type, b"guess")
        if digest_type is DigestType.MAC:
            with pytest.raises(CorruptEntryError):
                other.unpack(body, 7, 5)
        else:
            assert other.unpack(body, 7, 5).payload == b"payload"


def test_crc32_compares_all_eight_bytes() -> None:
    entries = EntryCodec(DigestType.CRC32, b"")
    body = bytearray(entries.pack(7, 5, 4, 100, b"payload"))
    assert body[32:36] == bytes(4)
    body[32] = 1
    with pytest.raises(CorruptEntryError):
        entries.unpack(bytes(body), 7, 5)


@pytest.mark.parametrize("digest_type", TYPES)
def test_every_kind_of_bad_lac_packet_is_refused(digest_type: DigestType) -> None:
    entries = EntryCodec(digest_type, b"pass")
    packet = entries.pack_lac(7, 41)
    assert entries.unpack_lac(packet + b"longer buffer", 7) == 41
    with pytest.raises(CorruptEntryError, match="ledger 7"):
        entries.unpack_lac(packet, 8)
    with pytest.raises(CorruptEntryError):
        entries.unpack_lac(packet[:-1], 7)
    if digest_type is not DigestType.DUMMY:
        with pytest.raises(CorruptEntryError, match="digest"):
            entries.unpack_lac(packet[:-1] + bytes((packet[-1] ^ 1,)), 7)


@pytest.mark.parametrize("digest_type", TYPES)
def test_payloads_end_in_front_of_a_gap(digest_type: DigestType) -> None:
    entries = EntryCodec(digest_type, b"pass")
    bodies = [entries.pack(7, entry_id, -1, 0, b"%d" % entry_id) for entry_id in (3, 4, 6)]
    assert entries.payloads(bodies, 7, 3) == [b"3", b"4"]
    assert entries.payloads([], 7, 3) == []
    with pytest.raises(CorruptEntryError, match="entry 3"):
        entries.payloads(bodies, 7, 2)


@pytest.mark.parametrize("digest_type", TYPES)
def test_payloads_end_in_front_of_each_kind_of_bad_entry(digest_type: DigestType) -> None:
    entries = EntryCodec(digest_type, b"pass")
    good = entries.pack(7, 3, -1, 0, b"good")
    bad = [
        entries.pack(8, 4, -1, 0, b"of another ledger"),
        entries.pack(7, 5, -1, 0, b"of another id"),
        entries.pack(7, 4, -1, 0, b"")[: entries.overhead_bytes - 1],
    ]
    if digest_type is not DigestType.DUMMY:
        bad.append(entries.pack(7, 4, -1, 0, b"changed")[:-1] + b"!")
    for body in bad:
        assert entries.payloads([good, body], 7, 3) == [b"good"]
        with pytest.raises(CorruptEntryError):
            entries.payloads([body], 7, 4)


def test_the_error_names_the_entry_and_its_evidence() -> None:
    entries = EntryCodec(DigestType.DUMMY, b"")
    with pytest.raises(CorruptEntryError, match="ledger 7, last entry: 3 bytes") as caught:
        entries.unpack(b"abc", 7, None)
    assert (caught.value.ledger_id, caught.value.entry_id) == (7, None)


def test_the_repr_of_a_codec_has_no_password() -> None:
    assert repr(EntryCodec(DigestType.MAC, b"secret")) == "<EntryCodec MAC>"


def test_numbers_and_sizes_are_those_of_the_metadata_and_the_entry() -> None:
    found = {t.name: (t.metadata_number, t.size_bytes) for t in DigestType}
    assert found == {"CRC32": (1, 8), "MAC": (2, 20), "CRC32C": (3, 4), "DUMMY": (4, 0)}


@pytest.mark.parametrize("digest_type", TYPES)
@pytest.mark.parametrize("sizes", [[9] * 6, [9, 9, 8, 9, 9, 9]], ids=["one size", "two sizes"])
def test_packed_payloads_end_in_front_of_each_kind_of_bad_entry(
    digest_type: DigestType, sizes: list[int]
) -> None:
    entries = EntryCodec(digest_type, b"pass")
    payloads = [bytes([at]) * size for at, size in enumerate(sizes)]
    good = [entries.pack(7, at, 0, 0, payload) for at, payload in enumerate(payloads)]
    assert entries.payloads(pack_entries(good), 7, 0) == payloads
    for at in range(len(good)):
        bad = [entries.pack(8, at, 0, 0, payloads[at]), entries.pack(7, at + 1, 0, 0, payloads[at])]
        if digest_type is not DigestType.DUMMY:
            for bit in range(0, 8 * len(good[at]), 7):
                flipped = bytearray(good[at])
                flipped[bit // 8] ^= 1 << bit % 8
                bad.append(bytes(flipped))
        for body in bad:
            packed = pack_entries([*good[:at], body, *good[at + 1 :]])
            if at:
                assert entries.payloads(packed, 7, 0) == payloads[:at]
            else:
                with pytest.raises(CorruptEntryError):
                    entries.payloads(packed, 7, 0)
