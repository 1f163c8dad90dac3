"""Compaction keeps and reports logs that are damaged or torn, and files that are no logs."""

# covers: bookie/gc/compactor.py

from __future__ import annotations

import logging
import struct
from pathlib import Path

import pytest

from bookie.disk.real_disk import RealDisk
from bookie.entrylog.compaction_files import unfinished_compactions
from bookie.entrylog.format import HEADER_BYTES, encode_header
from bookie.errors import SourceUnreadableError
from bookie.gc.compaction_rules import CompactionLevel
from bookie.gc.compactor import CompactionCopy
from tests.fakes.log_summaries import summarise
from tests.fakes.logs_by_hand import (
    KEY,
    collect,
    complete_log,
    entry,
    logs,
    names,
    opened,
    readable,
)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["a ledger id", "a length", "zeros at the end"])
async def test_a_source_that_differs_from_its_map_is_detected_before_the_copy_is_published(
    tmp_path: Path, damage: str
) -> None:
    async with opened(tmp_path) as storage:
        log_id = await complete_log(storage, {1: range(10), 2: range(90)})
        path = tmp_path / "l/current/0.log"
        data = bytearray(path.read_bytes())
        match damage:
            case "a ledger id":
                data[HEADER_BYTES + 132 * 5 + 11] ^= 8
            case "a length":
                data[HEADER_BYTES + 132 * 5 + 2] ^= 1
            case _:
                data[HEADER_BYTES + 132 * 95 : HEADER_BYTES + 132 * 100] = bytes(132 * 5)
        path.write_bytes(data)
        store = storage.stores[0]
        summary = summarise(RealDisk(), path.parent, log_id)
        assert summary.has_map
        copy = CompactionCopy(
            RealDisk(), path.parent, store.files.index, [summary], 9, lambda ledger: True, slice_bytes=4096
        )
        with pytest.raises(SourceUnreadableError, match="log is kept"):
            list(iter(copy.step, None))
        copy.discard()
        assert unfinished_compactions(names(tmp_path)).abandoned == ()


def flip(path: Path, at: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


async def test_a_damaged_log_is_kept_and_reported_and_the_others_are_compacted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as storage:
        for number in range(3):
            await complete_log(
                storage, {1: range(number * 10, number * 10 + 10), 2: range(100 * number, 100)}
            )
        await complete_log(storage, {2: range(500, 600)})
        await storage.delete_ledger(2)
        flip(tmp_path / "l/current/0.log", HEADER_BYTES + 132 * 20, 0x40)  # a length
        with caplog.at_level(logging.ERROR):
            collector = await collect(storage)
        assert list(collector.stats.quarantined) == [0]
        assert "0.log is kept" in caplog.text
        assert 0 in logs(tmp_path)
        assert 1 not in logs(tmp_path) or logs(tmp_path)[1] == {1: 1320}
        assert 3 not in logs(tmp_path), "it had no live entry"
        assert await readable(storage, {1: range(30)})
        caplog.clear()
        await storage.delete_ledger(1)
        await collect(storage)
        assert 0 in logs(tmp_path), "it is kept even if all its ledgers are dead"
        assert caplog.text == "", "it is reported once"


async def test_a_header_damaged_after_the_summary_stops_no_other_compaction(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(10), 9: range(90)})
        await complete_log(storage, {2: range(10), 9: range(90, 180)})
        (collector,) = storage.collectors
        await collector.remove_dead()  # caches the summaries of both logs
        await storage.delete_ledger(9)
        flip(tmp_path / "l/current/0.log", 0, 0x40)  # in the magic
        await collect(storage)
        assert list(collector.stats.quarantined) == [0]
        assert (collector.stats.compacted_logs, collector.stats.failures) == (1, 0)
        assert (tmp_path / "l/current/0.log").exists()
        assert not (tmp_path / "l/current/1.log").exists()
        assert await readable(storage, {1: range(10), 2: range(10)})


@pytest.mark.slow
async def test_an_entry_that_a_scan_misses_keeps_its_log(tmp_path: Path) -> None:
    """A flipped bit makes one record contain the next, and all sums still match."""
    async with opened(tmp_path) as storage:
        # Records of 128 bytes: one bit of the length adds 128.
        batch = storage.new_batch()
        ledger, other = storage.create_ledger(batch, 1, KEY), storage.create_ledger(batch, 2, KEY)
        for entry_id in range(10):
            storage.stage_entry(batch, ledger, entry_id, -1, entry(1, entry_id, 92))
            storage.stage_entry(batch, other, entry_id, -1, entry(2, entry_id, 92))
        await storage.submit_durably(batch)
        await complete_log(storage, {})
        await storage.delete_ledger(2)
        path = tmp_path / "l/current/0.log"
        data = bytearray(path.read_bytes())
        length = struct.unpack_from(">i", data, HEADER_BYTES + 128 * 4)[0]
        assert length == 124
        struct.pack_into(">i", data, HEADER_BYTES + 128 * 4, 124 + 128)
        path.write_bytes(data)
        assert await storage.read(1, 5) == entry(1, 5, 92), "it is still at its indexed location"
        collector = await collect(storage)
        assert list(collector.stats.quarantined) == [0]
        for entry_id in (0, 3, 5, 6, 9):
            assert await storage.read(1, entry_id) == entry(1, entry_id, 92)
    async with opened(tmp_path) as storage:
        assert await storage.read(1, 5) == entry(1, 5, 92)
        await collect(storage)
        assert await storage.read(1, 5) == entry(1, 5, 92)


@pytest.mark.parametrize("is_synced", [True, False])
async def test_the_torn_end_of_a_log_is_damage_if_the_index_references_entries_there(
    tmp_path: Path, is_synced: bool
) -> None:
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(10), 2: range(30)})
        path = tmp_path / "l/current/0.log"
        records = path.read_bytes()[HEADER_BYTES : HEADER_BYTES + 132 * 40]
        if is_synced:
            records = records[: 132 * 35]  # the synced rest is lost
        path.write_bytes(encode_header() + records + bytes(700) + b"\xff\xee\xdd" * 99)
        await storage.delete_ledger(1)
        collector = await collect(storage, CompactionLevel.MAJOR)
        if is_synced:
            assert list(collector.stats.quarantined) == [0]
            assert path.exists()
        else:
            assert collector.stats.quarantined == {}
            assert logs(tmp_path) == {1: {2: 3960}}, "the end is torn by a crash; the log is compacted"
        assert await readable(storage, {2: range(25)})


async def test_a_log_without_a_map_is_deleted_only_if_the_index_does_not_reference_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(1)})
        path = tmp_path / "l/current/0.log"
        data = bytearray(encode_header() + path.read_bytes()[HEADER_BYTES : HEADER_BYTES + 132])
        struct.pack_into(">q", data, HEADER_BYTES + 4, 7)  # flipped bits changed the ledger id
        path.write_bytes(data)
        (collector,) = storage.collectors
        assert await collector.remove_dead() == []
        assert list(collector.stats.quarantined) == [0]
        assert path.exists()


async def test_a_file_that_is_no_log_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await complete_log(storage, {1: range(1)})
        (tmp_path / "l/current/77.log").write_bytes(b"other content." * 100)
        (collector,) = storage.collectors
        assert await collector.remove_dead() == []
        assert list(collector.stats.quarantined) == [0x77]
