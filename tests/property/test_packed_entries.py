"""Whole batches are verified and cut with the results of the plain loops over single entries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.real_disk import RealDisk
from bookie.entrylog.format import HEADER_BYTES, entry_log_name
from bookie.entrylog.reader import EntryLogReader
from bookie.errors import EntryUnreadableError
from ledger.digest import DigestType, EntryCodec
from ledger.errors import CorruptEntryError
from ledger.packed_entries import SIZE, pack_entries, unpack_entries

LEDGER = 7
# Often all of one size, which takes another path.
sizes = st.lists(st.integers(0, 60), max_size=9) | st.builds(
    lambda size, count: [size] * count, st.sampled_from((0, 1, 40, 5000)), st.integers(0, 9)
)
# Enough for the blocks that are verified together.
many_sizes = sizes | st.builds(
    lambda size, count: [size] * count, st.sampled_from((0, 1, 40)), st.integers(60, 200)
)
damage = st.none() | st.integers(0, 2**32)


def dumb_unpack(data: bytes) -> list[bytes] | None:
    bodies: list[bytes] = []
    while data:
        if len(data) < 4:
            return None
        (size,) = SIZE.unpack(data[:4])
        if not 0 <= size <= len(data) - 4:
            return None
        bodies.append(data[4 : 4 + size])
        data = data[4 + size :]
    return bodies


def dumb_payloads(codec: EntryCodec, bodies: Sequence[bytes], first: int) -> list[bytes]:
    payloads: list[bytes] = []
    for body in bodies:
        try:
            payloads.append(codec.unpack(body, LEDGER, first + len(payloads)).payload)
        except CorruptEntryError:
            break
    return payloads


def damaged(data: bytes, seed: int | None) -> bytes:
    if seed is None or not data:
        return data
    rng = random.Random(seed)
    at = rng.randrange(len(data))
    if rng.random() < 0.2:
        return data[:at]
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


@given(many_sizes, damage, st.sampled_from(DigestType), st.integers(0, 3), st.booleans())
def test_a_batch_gives_the_payloads_of_its_entries_up_to_the_first_bad_one(
    sizes: list[int], seed: int | None, digest_type: DigestType, first: int, other: bool
) -> None:
    codec = EntryCodec(digest_type, b"pass")
    ids = list(range(first, first + len(sizes)))
    if other and len(ids) > 1:
        ids[len(ids) // 2] += 1  # an entry of another place
    bodies = [
        codec.pack(LEDGER, at, at - 1, 0, bytes([at]) * size) for at, size in zip(ids, sizes, strict=True)
    ]
    data = damaged(bytes(pack_entries(bodies).packed), seed)
    expected = dumb_unpack(data)
    try:
        entries = unpack_entries(b"." + data + b".", 1, 1 + len(data))
    except ValueError:
        assert expected is None
        return
    assert expected is not None
    assert entries == expected
    payloads = dumb_payloads(codec, expected, first)
    try:
        assert codec.payloads(entries, LEDGER, first) == payloads
    except CorruptEntryError:
        assert expected
        assert not payloads


@pytest.mark.parametrize("at", [0, 63, 64, 100, 149])
@pytest.mark.parametrize("place", ["ledger", "entry", "digest", "payload"])
@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.CRC32])
def test_each_part_of_each_entry_of_one_size_is_checked(digest_type: DigestType, place: str, at: int) -> None:
    codec = EntryCodec(digest_type, b"")
    bodies = [codec.pack(LEDGER, entry_id, entry_id - 1, 0, bytes(100)) for entry_id in range(150)]
    match place:
        case "ledger":  # a sound entry of another ledger
            bodies[at] = codec.pack(LEDGER + 1, at, at - 1, 0, bytes(100))
        case "entry":
            bodies[at] = codec.pack(LEDGER, at + 1, at - 1, 0, bytes(100))
        case "digest":
            bodies[at] = flipped(bodies[at], codec.overhead_bytes - 1)
        case _:
            bodies[at] = flipped(bodies[at], 130)
    if at:
        assert codec.payloads(pack_entries(bodies), LEDGER, 0) == [bytes(100)] * at
    else:
        with pytest.raises(CorruptEntryError):
            codec.payloads(pack_entries(bodies), LEDGER, 0)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("at", [0, 63, 64, 100, 149])
@pytest.mark.parametrize("place", [0, 11, 19])
async def test_length_and_ids_of_each_entry_of_one_size_are_compared(
    tmp_path: Path, place: int, at: int
) -> None:
    """``place``: a byte of the length, of the ledger id, of the entry id."""
    bodies = [EntryCodec(DigestType.CRC32C, b"").pack(LEDGER, each, -1, 0, bytes(60)) for each in range(150)]
    step = 4 + len(bodies[0])
    log = flipped(bytes(pack_entries(bodies).packed), at * step + place)
    (tmp_path / entry_log_name(0)).write_bytes(bytes(HEADER_BYTES) + log)
    reader = EntryLogReader(RealDisk(), tmp_path)
    locations = range(HEADER_BYTES + 4, HEADER_BYTES + 4 + 150 * step, step)
    if at:
        assert await reader.read_batch(LEDGER, range(150), locations, 1 << 20) == bodies[:at]
    else:
        with pytest.raises(EntryUnreadableError):
            await reader.read_batch(LEDGER, range(150), locations, 1 << 20)
    reader.close()


@given(many_sizes, damage, st.lists(st.integers(0, 9), max_size=3), st.integers(1, 600) | st.just(1 << 20))
async def test_one_read_of_an_entry_log_gives_the_entries_that_single_reads_give(
    tmp_path_factory: object, sizes: list[int], seed: int | None, gaps: list[int], limit: int
) -> None:
    """``gaps``: another ledger's bytes lie between entries, so they are no neighbours."""
    codec = EntryCodec(DigestType.CRC32C, b"")
    bodies = [codec.pack(LEDGER, at, -1, 0, bytes(size)) for at, size in enumerate(sizes)]
    log, locations = bytearray(), list[int]()
    for at, body in enumerate(bodies):
        if at in gaps:
            log += bytes(17)
        locations.append(HEADER_BYTES + len(log) + 4)
        log += SIZE.pack(len(body)) + body
    path = tmp_path_factory.mktemp("log")  # type: ignore[attr-defined]
    assert isinstance(path, Path)
    (path / entry_log_name(0)).write_bytes(bytes(HEADER_BYTES) + damaged(bytes(log), seed))
    reader = EntryLogReader(RealDisk(), path)
    singles: list[bytes] = []
    used = 0
    for entry_id, location in enumerate(locations):
        try:
            body = await reader.read(LEDGER, entry_id, location, next_location=(*locations, 0)[entry_id + 1])
        except EntryUnreadableError:
            break
        used += len(body) + 4
        if used > limit and singles:
            break
        singles.append(body)
    if locations:
        try:
            found = await reader.read_batch(LEDGER, range(len(locations)), locations, limit)
        except EntryUnreadableError:
            assert not singles
        else:
            assert list(found) == singles[: len(found)]
            assert found
            whole = len(found) == len(singles) or any(at in gaps for at in range(len(found) + 1))
            assert whole or seed is not None or used > limit
    reader.close()
