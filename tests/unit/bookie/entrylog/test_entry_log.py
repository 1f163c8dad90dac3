"""Entry logs: writing, reading, scanning, damage."""

# covers: bookie/entrylog/format.py
# covers: bookie/entrylog/reader.py
# covers: bookie/entrylog/writer.py

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.entrylog.format import (
    HEADER_BYTES,
    EntryLogScan,
    decode_map,
    encode_header,
    encode_map,
    entry_log_id_of,
    split_location,
)
from bookie.entrylog.reader import EntryLogReader
from bookie.entrylog.writer import EntryLogWriter, PerLedgerConfig, entry_log_ids, scan_log
from bookie.errors import EntryUnreadableError
from bookie.index.entry_index import EntryRange
from tests.fakes.log_summaries import summarise


def body(ledger_id: int, entry_id: int, size: int = 20) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + bytes([entry_id % 251]) * size


def written(
    tmp_path: Path, ledgers: dict[int, dict[int, bytes]], log_bytes_max: int = 1 << 20
) -> list[EntryRange]:
    writer = EntryLogWriter(RealDisk(), tmp_path, log_bytes_max=log_bytes_max)
    ranges = list(writer.append(ledgers))
    writer.sync()
    writer.close()
    return ranges


def test_names_are_lower_case_hex() -> None:
    assert entry_log_id_of("a.log") == 10
    assert [entry_log_id_of(name) for name in ("A.log", "a.log.compacting", "lastId", "1.idx")] == [None] * 4


async def test_entries_are_read_at_the_locations_that_the_writer_returns(tmp_path: Path) -> None:
    ledgers = {2: {e: body(2, e, 10 + e) for e in (3, 1, 2)}, 1: {9: body(1, 9, 100_000)}}
    ranges = written(tmp_path, ledgers)
    assert [(entry_range.ledger_id, list(entry_range.entry_ids)) for entry_range in ranges] == [
        (1, [9]),
        (2, [1, 2, 3]),
    ]
    reader = EntryLogReader(RealDisk(), tmp_path)
    for entry_range in ranges:
        ledger_id = entry_range.ledger_id
        for entry_id, location in zip(entry_range.entry_ids, entry_range.locations, strict=True):
            assert await reader.read(ledger_id, entry_id, location) == ledgers[ledger_id][entry_id]
    reader.close()


async def test_a_batch_read_is_limited_by_size_but_never_empty(tmp_path: Path) -> None:
    entries = {e: body(1, e, 68) for e in range(1000)}  # 100 bytes each
    (entry_range,) = written(tmp_path, {1: entries})
    reader = EntryLogReader(RealDisk(), tmp_path)
    for limit, count in ((1, 1), (104, 1), (207, 1), (208, 2), (1040, 10), (1 << 20, 1000)):
        bodies = await reader.read_batch(1, entry_range.entry_ids, entry_range.locations, limit)
        assert bodies == [entries[e] for e in range(len(bodies))]
        assert len(bodies) == count
    assert await reader.read_batch(1, [999], entry_range.locations[999:], 1 << 20) == [entries[999]]
    reader.close()


@pytest.mark.slow
async def test_a_batch_ends_before_each_prefix_that_differs_in_any_bit(tmp_path: Path) -> None:
    entries = {e: body(1, e, 68) for e in range(6)}
    (entry_range,) = written(tmp_path, {1: entries})
    log = tmp_path / "0.log"
    sound = log.read_bytes()
    for at in range(6):
        start = split_location(entry_range.locations[at])[1] - 4
        for bit in range(160):  # size, ledger id, entry id
            flipped = bytearray(sound)
            flipped[start + bit // 8] ^= 1 << bit % 8
            log.write_bytes(flipped)
            reader = EntryLogReader(RealDisk(), tmp_path)
            try:
                bodies = await reader.read_batch(1, entry_range.entry_ids, entry_range.locations, 1 << 20)
            except EntryUnreadableError:
                assert at == 0
            else:
                assert bodies[:at] == [entries[e] for e in range(at)]
                # Another size within the bounds is not seen here: the digest has the last word.
                assert len(bodies) == at or bit < 32
                assert all(len(each) < 68 + 32 or at == 5 for each in bodies[at : at + 1])
            reader.close()


async def test_a_batch_takes_each_entry_from_its_location_not_from_between_its_neighbours(
    tmp_path: Path,
) -> None:
    """An entry that was added again has an old copy between its neighbours, of the same size."""
    (first,) = written(tmp_path, {1: {e: body(1, e, 68) for e in range(6)}})
    log = tmp_path / "0.log"
    again = body(1, 4, 68)[:-1] + b"!"
    place = log.stat().st_size
    with log.open("ab") as file:
        file.write(struct.pack(">i", len(again)) + again)
    locations = [*first.locations[:4], first.locations[0] & ~0xFFFFFFFF | place + 4]
    reader = EntryLogReader(RealDisk(), tmp_path)
    found = await reader.read_batch(1, range(5), locations, 1 << 20)
    assert found == [*(body(1, e, 68) for e in range(4)), again]
    reader.close()


async def test_another_entry_at_the_location_is_an_error_not_an_absence(tmp_path: Path) -> None:
    (entry_range,) = written(tmp_path, {1: {0: body(1, 0), 1: body(1, 1)}})
    reader = EntryLogReader(RealDisk(), tmp_path)
    for ledger_id, entry_id, location in (
        (1, 1, entry_range.locations[0]),
        (2, 0, entry_range.locations[0]),
        (1, 0, entry_range.locations[0] + 1),
        (1, 0, entry_range.locations[1] + 500),
        (1, 0, entry_range.locations[0] + (5 << 32)),
    ):
        with pytest.raises(EntryUnreadableError):
            await reader.read(ledger_id, entry_id, location)
        with pytest.raises(EntryUnreadableError):
            await reader.read_batch(ledger_id, [entry_id, entry_id + 1], [location, location + 50], 1000)
    reader.close()


async def test_a_log_cut_short_makes_its_last_entry_unreadable(tmp_path: Path) -> None:
    (entry_range,) = written(tmp_path, {1: {0: body(1, 0), 1: body(1, 1, 9000)}})
    log = tmp_path / "0.log"
    log.write_bytes(log.read_bytes()[:5000])
    reader = EntryLogReader(RealDisk(), tmp_path)
    assert await reader.read_batch(1, entry_range.entry_ids, entry_range.locations, 1 << 20) == [body(1, 0)]
    with pytest.raises(EntryUnreadableError, match="ends within"):
        await reader.read(1, 1, entry_range.locations[1])
    reader.close()


def test_a_full_log_rolls_and_a_complete_one_has_a_map(tmp_path: Path) -> None:
    ledgers = {ledger_id: {e: body(ledger_id, e, 968) for e in range(10)} for ledger_id in range(5)}
    ranges = written(tmp_path, ledgers, log_bytes_max=32 << 10)
    assert entry_log_ids(RealDisk(), tmp_path) == [0, 1]
    locations = [location for entry_range in ranges for location in entry_range.locations]
    assert {split_location(location)[0] for location in locations} == {0, 1}
    data = (tmp_path / "0.log").read_bytes()
    ledgers_map = decode_map(data[:HEADER_BYTES], lambda size, at: data[at : at + size], len(data))
    assert ledgers_map == {0: 10_040, 1: 10_040, 2: 10_040}
    assert ledgers_in_log(tmp_path, 1) == {3, 4}


def test_ids_are_never_reused_even_if_the_newest_logs_are_deleted(tmp_path: Path) -> None:
    for _ in range(3):
        written(tmp_path, {1: {0: body(1, 0)}})
    assert (tmp_path / "lastId").read_text() == "2\n"
    for name in ("1.log", "2.log"):
        (tmp_path / name).unlink()
    written(tmp_path, {1: {0: body(1, 0)}})
    assert entry_log_ids(RealDisk(), tmp_path) == [0, 3]
    (tmp_path / "lastId").write_text("garbage")
    (tmp_path / "20.log.compacting").touch()
    written(tmp_path, {1: {0: body(1, 0)}})
    assert entry_log_ids(RealDisk(), tmp_path) == [0, 3, 0x21]


def test_a_log_without_its_map_is_scanned_and_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    written(tmp_path, {1: {0: body(1, 0)}, 2: {0: body(2, 0, 500)}})
    path = tmp_path / "0.log"
    data = path.read_bytes()
    path.write_bytes(encode_header() + data[HEADER_BYTES : HEADER_BYTES + 300])
    assert ledgers_in_log(tmp_path, 0) == {1}
    path.write_bytes(encode_header() + data[HEADER_BYTES : HEADER_BYTES + 56] + bytes(5000))
    found, damage = scan_log(RealDisk(), tmp_path, 0)
    assert [(entry.ledger_id, entry.entry_id, entry.offset) for entry in found] == [(1, 0, 1028)]
    assert damage is None


@pytest.mark.parametrize("junk", [b"\x7f\xff\xff\xff", b"\0\0\0\5", b"\0\0\0\0", b"\x80\0\0\1"])
def test_a_summary_of_a_damaged_log_gives_the_offset_of_the_damage(tmp_path: Path, junk: bytes) -> None:
    written(tmp_path, {1: {0: body(1, 0)}})
    path = tmp_path / "0.log"
    path.write_bytes(encode_header() + path.read_bytes()[1024:1080] + junk + b"more" * 100)
    _, damage = scan_log(RealDisk(), tmp_path, 0)
    assert damage is not None
    summary = summarise(RealDisk(), tmp_path, 0)
    assert (summary.ledger_bytes(), summary.torn_at) == ({1: 56}, 1080)


@pytest.mark.parametrize("at", [8, 12, 16, 19, 1016, 1020])
def test_a_map_with_any_inconsistency_is_ignored(at: int) -> None:
    ledgers_map = encode_map({1: 10, 2: 20})
    from crc32c import crc32c

    header = encode_header(HEADER_BYTES, 2, crc32c(ledgers_map))
    data = header + ledgers_map

    def read(size: int, offset: int) -> bytes:
        return data[offset : offset + size]

    assert decode_map(header, read, len(data)) == {1: 10, 2: 20}
    changed = header[:at] + bytes([header[at] ^ 1]) + header[at + 1 :]
    assert decode_map(changed, read, len(data)) is None
    assert decode_map(encode_header(HEADER_BYTES, 0), read, len(data)) is None, "an empty map is ignored"


def test_a_large_map_has_several_groups() -> None:
    ledgers = {ledger_id: ledger_id + 1 for ledger_id in range(10_001)}
    data = encode_header() + encode_map(ledgers)
    header = encode_header(HEADER_BYTES, 10_001)
    assert decode_map(header, lambda size, at: data[at : at + size], len(data)) == ledgers


def test_a_direct_log_is_scanned_across_its_gaps() -> None:
    record = struct.pack(">i", 52) + body(1, 7)
    filler = struct.pack(">iq", 3068, -1).ljust(3072, b"\0")
    data = encode_header() + filler + record.ljust(4096, b"\xf0") + record
    scan = EntryLogScan(lambda size, at: data[at : at + size], len(data))
    assert [entry.offset for entry in scan.entries()] == [4100, 8196]
    assert scan.damage is None


def ledgers_in_log(directory: Path, log_id: int) -> set[int]:
    return set(summarise(RealDisk(), directory, log_id).ledger_bytes())


def per_ledger(tmp_path: Path, *, open_logs_max: int = 500) -> EntryLogWriter:
    config = PerLedgerConfig(open_logs_max=open_logs_max, idle_s=300)
    return EntryLogWriter(RealDisk(), tmp_path, log_bytes_max=1 << 20, per_ledger=config)


def test_each_ledger_may_have_its_own_log(tmp_path: Path) -> None:
    writer = per_ledger(tmp_path)
    for first in (0, 10):
        ledgers = {ledger: {e: body(ledger, e) for e in range(first, first + 10)} for ledger in (1, 2, 3)}
        ranges = list(writer.append(ledgers))
        writer.sync()
        assert [split_location(entry_range.locations[0])[0] for entry_range in ranges] == [0, 1, 2]
    assert writer.open_ids() == {0, 1, 2}
    writer.close()
    assert writer.open_ids() == set()
    assert [ledgers_in_log(tmp_path, log_id) for log_id in range(3)] == [{1}, {2}, {3}]


def test_open_logs_are_bounded_and_the_least_recently_used_is_completed(tmp_path: Path) -> None:
    writer = per_ledger(tmp_path, open_logs_max=2)
    for ledger in (1, 2, 1, 3):
        list(writer.append({ledger: {0: body(ledger, 0)}}))
    assert writer.open_ids() == {0, 2}, "the log of ledger 2 is completed"
    data = (tmp_path / "1.log").read_bytes()
    assert decode_map(data[:HEADER_BYTES], lambda size, at: data[at : at + size], len(data)) == {2: 56}
    list(writer.append({2: {1: body(2, 1)}}))
    assert writer.open_ids() == {2, 3}, "ledger 2 gets a new log at its next append"
    writer.close()


def test_an_idle_log_is_completed_so_that_it_can_be_collected(tmp_path: Path) -> None:
    # apache/bookkeeper#2728: a log that is never full blocks garbage collection for ever.
    writer = per_ledger(tmp_path)
    list(writer.append({1: {0: body(1, 0)}, 2: {0: body(2, 0)}}))
    writer.sync()
    writer.complete_idle(1000)
    writer.complete_idle(1299)
    assert writer.open_ids() == {0, 1}
    list(writer.append({2: {1: body(2, 1)}}))
    writer.sync()
    writer.complete_idle(1300)
    assert writer.open_ids() == {1}
    assert ledgers_in_log(tmp_path, 0) == {1}
    writer.close()


def test_an_open_log_of_dead_ledgers_is_closed_for_deletion(tmp_path: Path) -> None:
    writer = per_ledger(tmp_path)
    list(writer.append({1: {0: body(1, 0)}, 2: {0: body(2, 0)}}))
    writer.sync()
    assert writer.close_dead({2}.__contains__) == {0: {1: 56}}
    assert writer.open_ids() == {1}
    writer.close()
