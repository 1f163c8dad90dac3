"""Entries behind their sizes in one byte string."""

from __future__ import annotations

import pytest

from ledger.packed_entries import PackedEntries, join_entries, pack_entries, unpack_entries

GOLDEN = bytes.fromhex("00000002 6162 00000000 00000003 636465")


def test_the_bytes_are_a_size_and_an_entry_in_turn() -> None:
    entries = unpack_entries(b"?" + GOLDEN + b"?", 1, 1 + len(GOLDEN))
    assert entries == [b"ab", b"", b"cde"]
    assert bytes(entries.packed) == GOLDEN
    assert bytes(pack_entries([b"ab", b"", b"cde"]).packed) == GOLDEN
    assert not unpack_entries(GOLDEN, 3, 3)


@pytest.mark.parametrize("bodies", [[b"ab", b"", b"cde", b"f", b"gh"], [b"%03d" % at for at in range(9)]])
def test_they_are_a_sequence(bodies: list[bytes]) -> None:
    entries = pack_entries(bodies)
    assert isinstance(entries.starts, range) == (len({len(body) for body in bodies}) == 1)
    assert [*entries] == bodies == [entries[at] for at in range(len(bodies))]
    assert entries[-1] == bodies[-1]
    for first in range(len(bodies) + 1):
        for stop in range(len(bodies) + 2):
            part = entries[first:stop]
            assert part == bodies[first:stop]
            assert part == unpack_entries(bytes(part.packed), 0, len(part.packed))
    assert entries[:] is entries
    for index in (len(bodies), -len(bodies) - 1):
        with pytest.raises(IndexError):
            entries[index]
    with pytest.raises(ValueError, match="step"):
        entries[::2]


def test_parts_are_joined_in_order_and_a_single_one_is_not_copied() -> None:
    one, two = pack_entries([b"a", b"bc"]), pack_entries([b"def"])
    assert join_entries([one, two[:0], two]) == [b"a", b"bc", b"def"]
    assert join_entries([one]) is one


@pytest.mark.parametrize(
    ("hexed", "message"),
    [
        ("00000002 6162 0000", "2 bytes where a size should be"),
        ("00000003 6162", "entry of 3 bytes in a batch that has 2 left"),
        ("ffffffff", "entry of -1 bytes"),
        ("fffffffc", "entry of -4 bytes"),
        ("00000001 61" * 5 + "00000002 62", "entry of 2 bytes in a batch that has 1 left"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(hexed: str, message: str) -> None:
    data = bytes.fromhex(hexed)
    with pytest.raises(ValueError, match=message):
        unpack_entries(data, 0, len(data))


def test_a_size_that_differs_from_the_first_one_is_seen_in_each_of_its_bytes() -> None:
    """Entries of one size are found by a few comparisons; each byte of each size takes part."""
    inner = b"\x00\x00\x00\x04abcd"
    for at in range(6):
        bodies = [inner] * 6
        bodies[at] = b"\x00" * 4 + inner[4:]  # the same length: the packed sizes stay equal
        assert pack_entries(bodies) == bodies
    for size in (1, 0x100, 0x10000):
        data = bytearray(pack_entries([bytes(8)] * 6).packed)
        data[36:40] = (8 + size).to_bytes(4, "big")
        with pytest.raises(ValueError, match="entry of"):
            unpack_entries(bytes(data), 0, len(data))


def test_the_representation_names_count_and_size() -> None:
    assert repr(PackedEntries(GOLDEN, [4, 10, 14], 17)) == "<PackedEntries, 3 in 17 bytes>"
