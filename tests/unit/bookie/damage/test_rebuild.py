"""Rebuilding an index from entry logs: the lost locations, fenced ledgers, and reports of damage."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookie.damage.rebuild import check_index, logs_with_entries, rebuild_from_logs
from bookie.disk.real_disk import RealDisk
from bookie.entrylog.format import RECORD_PREFIX, encode_header, entry_log_name
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import IndexMissingError, LogDamagedError
from bookie.index.entry_index import EntryIndex, EntryRange
from bookie.index.index_factory import IndexConfig, IndexKind, open_index
from bookie.index.page_cache import PageIndexConfig
from bookie.journal.format import NO_MARK
from bookie.ledger_record import UNKNOWN_KEY, LedgerData
from tests.effort import examples

KINDS = pytest.mark.parametrize("kind", IndexKind)


def body(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    return struct.pack(">qqq", ledger_id, entry_id, entry_id - 1).ljust(size, b"x")


def index_of(directory: Path, kind: IndexKind) -> EntryIndex:
    pages = PageIndexConfig(page_bytes=512, pages_max=8, open_files_max=2)
    return open_index(RealDisk(), directory, IndexConfig(kind=kind, pages=pages))


def content(index: EntryIndex) -> dict[tuple[int, int], int]:
    found = {}
    for ledger_id, _ in index.ledgers():
        for entry_range in index.ranges(ledger_id):
            for entry_id, location in zip(entry_range.entry_ids, entry_range.locations, strict=True):
                found[ledger_id, entry_id] = location
    return found


def write_logs(directory: Path) -> dict[tuple[int, int], int]:
    """Write several logs with mixed and equal lengths, and entries twice; return the last locations."""
    writer = EntryLogWriter(RealDisk(), directory, log_bytes_max=40_000)
    locations: dict[tuple[int, int], int] = {}
    ranges: list[EntryRange] = []
    ranges += writer.append(
        {1: {e: body(1, e) for e in range(300)}, 2: {e: body(2, e) for e in range(0, 90, 3)}}
    )
    ranges += writer.append({3: {e: body(3, e, 50 + e % 70) for e in range(200)}})
    ranges += writer.append({1: {e: body(1, e) for e in range(250, 400)}, 2: {7: body(2, 7), 5: body(2, 5)}})
    writer.close()
    for entry_range in ranges:
        for entry_id, location in zip(entry_range.entry_ids, entry_range.locations, strict=True):
            locations[entry_range.ledger_id, entry_id] = location
    return locations


@KINDS
def test_a_rebuilt_index_has_the_lost_locations(tmp_path: Path, kind: IndexKind) -> None:
    locations = write_logs(tmp_path)
    index = index_of(tmp_path / "new", kind)
    log_ids = logs_with_entries(RealDisk(), tmp_path)
    assert len(log_ids) > 1
    progress: list[int] = []
    stats = rebuild_from_logs(RealDisk(), tmp_path, index, log_ids, progress=progress.append)
    assert content(index) == locations
    assert dict(index.ledgers()) == {
        ledger_id: LedgerData(UNKNOWN_KEY, True, None, last - 1, last)
        for ledger_id, last in ((1, 399), (2, 87), (3, 199))
    }
    assert (stats.damage, stats.torn, stats.fenced, stats.ledgers) == ([], [], 3, 3)
    assert progress == sorted(progress)
    assert progress[-1] == stats.bytes == sum((tmp_path / entry_log_name(n)).stat().st_size for n in log_ids)
    index.close()


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 40), st.sampled_from([24, 25, 300])),
        min_size=1,
        max_size=12,
    )
)
@example([(2, 0, 3, 24), (0, 0, 1, 24), (2, 3, 2, 24), (0, 1, 1, 24), (1, 0, 2, 24), (2, 5, 1, 24)])
def test_the_last_location_of_each_entry_is_found_for_any_order_of_ledgers(
    stretches: list[tuple[int, int, int, int]],
) -> None:
    """``stretches``: ledger id, first entry id, number of entries, length of each.

    In the example ledger 2 has six entries, and six records of several ledgers follow the start of its second
    stretch.
    """
    data = bytearray(encode_header())
    locations: dict[tuple[int, int], int] = {}
    for ledger_id, first, count, length in stretches:
        for entry_id in range(first, first + count):
            locations[ledger_id, entry_id] = (7 << 32) + len(data) + 4
            data += RECORD_PREFIX.pack(length, ledger_id, entry_id) + bytes(length - 16)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / entry_log_name(7)).write_bytes(data)
        index = index_of(Path(name) / "new", IndexKind.CHUNKS)
        stats = rebuild_from_logs(RealDisk(), Path(name), index, [7])
        assert content(index) == locations
        assert stats.entries == len(locations)
        assert [ledger_id for ledger_id, _ in index.ledgers()] == sorted({one[0] for one in stretches})
        index.close()


@KINDS
def test_known_ledger_data_are_kept_and_deleted_ledgers_stay_deleted(tmp_path: Path, kind: IndexKind) -> None:
    locations = write_logs(tmp_path)
    known = {1: LedgerData(b"k1", False, None, 9, 3), 3: LedgerData(b"k3", True, None, 9, 999)}
    known[8] = LedgerData(b"k8", True, None, -1, -1)  # fenced before its first entry was stored here
    index = index_of(tmp_path / "new", kind)
    stats = rebuild_from_logs(
        RealDisk(), tmp_path, index, logs_with_entries(RealDisk(), tmp_path), known=known
    )
    assert content(index) == {at: where for at, where in locations.items() if at[0] != 2}
    assert dict(index.ledgers()) == known | {
        1: LedgerData(b"k1", False, None, 398, 399),
        3: LedgerData(b"k3", True, None, 198, 999),
    }
    assert (stats.fenced, stats.skipped_entries) == (0, 32)
    index.close()


def damage(directory: Path) -> None:
    path = directory / entry_log_name(0)
    data = bytearray(path.read_bytes())
    at = 1024 + 50 * 104
    data[at : at + 4] = (2**31 - 1).to_bytes(4, "big")
    path.write_bytes(data)


@KINDS
def test_damage_stops_a_rebuild_unless_accepted_and_then_all_ledgers_are_in_limbo(
    tmp_path: Path, kind: IndexKind
) -> None:
    write_logs(tmp_path)
    damage(tmp_path)
    index = index_of(tmp_path / "new", kind)
    with pytest.raises(LogDamagedError, match=r"0\.log: length 2147483647 at offset 6224.*--accept-damage"):
        check_index(RealDisk(), tmp_path, index, NO_MARK, rebuild=True)
    assert not index.is_complete
    index.close()
    index = index_of(tmp_path / "other", kind)
    stats = rebuild_from_logs(RealDisk(), tmp_path, index, [0, 1], accept_damage=True)
    assert len(stats.damage) == 1
    assert all(data.limbo and data.fenced for _, data in index.ledgers())
    assert index.entry_ids(1)[:51] == [*range(50), index.entry_ids(1)[50]]
    index.close()


def test_a_torn_end_is_reported_and_is_no_damage(tmp_path: Path) -> None:
    records = b"".join(RECORD_PREFIX.pack(100, 1, e) + bytes(84) for e in range(40))
    (tmp_path / "0.log").write_bytes(encode_header() + records + RECORD_PREFIX.pack(100, 1, 40) + b"half")
    (tmp_path / "1.log").write_bytes(bytes(1024) + records)  # its header never reached the disk
    (tmp_path / "2.log").write_bytes(encode_header() + bytes(5000))
    (tmp_path / "3.log").write_bytes(b"")
    index = index_of(tmp_path / "new", IndexKind.CHUNKS)
    stats = rebuild_from_logs(RealDisk(), tmp_path, index, logs_with_entries(RealDisk(), tmp_path))
    assert stats.damage == []
    assert [line.split(":")[0] for line in stats.torn] == ["0.log", "2.log"]
    assert index.entry_ids(1) == list(range(40))
    assert index.locate(1, 0)[0] >> 32 == 1
    index.close()


def test_a_file_that_is_no_entry_log_is_damage(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(b"#!/bin/sh\n" * 500)
    index = index_of(tmp_path / "new", IndexKind.CHUNKS)
    assert "begins with" in rebuild_from_logs(RealDisk(), tmp_path, index, [0]).damage[0]
    index.close()


def test_a_lost_index_is_not_taken_for_that_of_a_new_bookie(tmp_path: Path) -> None:
    index = index_of(tmp_path / "new", IndexKind.CHUNKS)
    check_index(RealDisk(), tmp_path, index, NO_MARK, rebuild=False)
    assert index.is_complete
    index.close()
    write_logs(tmp_path)
    index = index_of(tmp_path / "other", IndexKind.CHUNKS)
    with pytest.raises(IndexMissingError, match="rebuild-index"):
        check_index(RealDisk(), tmp_path, index, NO_MARK, rebuild=False)
    index.close()


@KINDS
@pytest.mark.parametrize("lac", [3, 10**12, 2**63 - 1, -(2**63)])
def test_an_entry_names_no_lac_at_or_after_itself(tmp_path: Path, kind: IndexKind, lac: int) -> None:
    """A rebuilt index would tell such a LAC to every reader, and a recovery would begin after it."""
    writer = EntryLogWriter(RealDisk(), tmp_path, log_bytes_max=40_000)
    list(writer.append({1: {3: struct.pack(">qqq", 1, 3, lac).ljust(100, b"x")}}))
    writer.close()
    index = index_of(tmp_path / "new", kind)
    known = {1: LedgerData(b"k" * 20, False, None, 1, 3)}
    for before, expected in ((None, -1), (known, 1)):
        rebuild_from_logs(RealDisk(), tmp_path, index, logs_with_entries(RealDisk(), tmp_path), known=before)
        assert dict(index.ledgers())[1].lac == expected
    index.close()
