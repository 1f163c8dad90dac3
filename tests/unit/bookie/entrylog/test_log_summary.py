"""Summaries of entry logs: from the map, from the records, or an error."""

# covers: bookie/entrylog/summary.py

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from bookie.disk.real_disk import RealDisk
from bookie.entrylog.format import HEADER_BYTES, decode_header, encode_header, encode_map
from bookie.entrylog.summary import LogSummaries, LogSummary, SummaryScan
from bookie.entrylog.writer import EntryLogWriter
from bookie.errors import FormatError
from tests.fakes.log_summaries import summarise

DISK = RealDisk()


def body(ledger_id: int, entry_id: int, size: int = 20) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + bytes([entry_id % 251]) * size


def write_log(directory: Path) -> bytes:
    """Write log 0 with 100 entries of 104 bytes in ledgers 1 and 2; return its bytes."""
    writer = EntryLogWriter(DISK, directory, log_bytes_max=1 << 20)
    list(writer.append({ledger_id: {e: body(ledger_id, e, 68) for e in range(50)} for ledger_id in (1, 2)}))
    writer.sync()
    writer.close()
    return (directory / "0.log").read_bytes()


def test_the_map_and_the_records_give_the_same_summary(tmp_path: Path) -> None:
    data = write_log(tmp_path)
    by_map = summarise(DISK, tmp_path, 0)
    assert (by_map.ledger_bytes(), by_map.total_bytes, by_map.has_map) == ({1: 5200, 2: 5200}, 10_400, True)
    (tmp_path / "0.log").write_bytes(encode_header() + data[HEADER_BYTES : HEADER_BYTES + 10_400])
    by_scan = summarise(DISK, tmp_path, 0)
    assert by_scan.ledger_bytes() == by_map.ledger_bytes()
    assert (by_scan.has_map, by_scan.torn_at) == (False, None)
    assert by_scan.live_bytes({2}.__contains__) == 5200
    assert by_scan.has_live({2}.__contains__)
    assert not by_scan.has_live({3}.__contains__)


def test_a_large_log_is_scanned_in_pieces(tmp_path: Path) -> None:
    writer = EntryLogWriter(DISK, tmp_path, log_bytes_max=1 << 30)
    list(writer.append({1: {e: body(1, e, 100_000) for e in range(50)}}))
    writer.sync()
    writer.abandon()
    scan = SummaryScan(DISK, tmp_path, 0)
    steps = 0
    while (summary := scan.step()) is None:
        steps += 1
    scan.close()
    assert summary.ledger_bytes() == {1: 50 * 100_036}
    assert steps >= 4


def test_an_entry_longer_than_a_piece_is_scanned(tmp_path: Path) -> None:
    writer = EntryLogWriter(DISK, tmp_path, log_bytes_max=1 << 30)
    list(writer.append({1: {0: body(1, 0), 1: body(1, 1, 3 << 20), 2: body(1, 2)}}))
    writer.abandon()
    summary = summarise(DISK, tmp_path, 0)
    assert summary.ledger_bytes() == {1: 3 * 36 + 40 + (3 << 20)}
    assert summary.torn_at is None


def test_a_log_with_our_damaged_map_is_scanned_up_to_the_map(tmp_path: Path) -> None:
    data = bytearray(write_log(tmp_path))
    data[-1] ^= 1
    (tmp_path / "0.log").write_bytes(data)
    summary = summarise(DISK, tmp_path, 0)
    assert (summary.ledger_bytes(), summary.has_map) == ({1: 5200, 2: 5200}, False)
    data[HEADER_BYTES + 104 * 70 : HEADER_BYTES + 10_400] = bytes(104 * 30)
    (tmp_path / "0.log").write_bytes(data)
    with pytest.raises(FormatError, match="where the map begins"):
        summarise(DISK, tmp_path, 0)


def test_a_map_without_checksum_is_used_only_if_its_sum_matches(tmp_path: Path) -> None:
    data = write_log(tmp_path)
    for ledger_bytes, is_used in (({1: 5200, 2: 5200}, True), ({1: 5200, 3: 5200 - 1}, False)):
        ledgers_map = encode_map(ledger_bytes)
        header = bytearray(encode_header(HEADER_BYTES + 10_400, 2))
        header[1016:] = bytes(8)  # Apache's header has no checksums
        (tmp_path / "0.log").write_bytes(
            bytes(header) + data[HEADER_BYTES : HEADER_BYTES + 10_400] + ledgers_map
        )
        summary = summarise(DISK, tmp_path, 0)
        assert summary.has_map is is_used
        assert summary.ledger_bytes() == {1: 5200, 2: 5200}


def test_a_log_whose_header_never_reached_the_disk_is_torn_at_0(tmp_path: Path) -> None:
    data = write_log(tmp_path)
    (tmp_path / "0.log").write_bytes(bytes(HEADER_BYTES) + data[HEADER_BYTES : HEADER_BYTES + 10_400])
    assert summarise(DISK, tmp_path, 0).torn_at == 0
    for size in (0, 100):
        (tmp_path / "0.log").write_bytes(data[:size])
        summary = summarise(DISK, tmp_path, 0)
        assert (summary.total_bytes, summary.torn_at) == (0, 0)
    (tmp_path / "0.log").write_bytes(b"XXXX" + data[4:])
    with pytest.raises(FormatError, match="begins with"):
        summarise(DISK, tmp_path, 0)


def test_a_header_with_an_absurd_count_causes_only_bounded_reads(tmp_path: Path) -> None:
    data = write_log(tmp_path)
    reads: list[int] = []
    header = bytearray(encode_header(HEADER_BYTES, 2**31 - 1))
    header[1016:] = bytes(8)
    content = bytes(header) + data[HEADER_BYTES:]
    from bookie.entrylog.format import decode_map

    def read(size: int, at: int) -> bytes:
        reads.append(size)
        return content[at : at + size]

    assert decode_map(bytes(header), read, len(content)) is None
    assert max(reads) <= 160_000


@pytest.mark.slow
def test_a_flipped_bit_is_detected_or_leaves_the_summary_correct(tmp_path: Path) -> None:
    data = write_log(tmp_path)
    rng = random.Random(6)
    true = {1: 5200, 2: 5200}
    for at in [*range(HEADER_BYTES), *rng.sample(range(HEADER_BYTES, len(data)), 300)]:
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        (tmp_path / "0.log").write_bytes(changed)
        try:
            summary = summarise(DISK, tmp_path, 0)
        except FormatError:
            continue
        assert summary.ledger_bytes() == true or summary.torn_at is not None, f"bit at {at}"


def test_a_header_survives_a_round_trip() -> None:
    header = encode_header(5000, 7, crc32c(b"x"))
    head = decode_header(header)
    assert head is not None
    assert (head.map_offset, head.ledger_count, head.map_crc) == (5000, 7, crc32c(b"x"))
    assert decode_header(header[:1000]) is None


def test_the_cache_of_summaries_is_bounded_and_evicts_the_oldest() -> None:
    summaries = LogSummaries(ledgers_max=10)
    for log_id in range(5):
        summaries.add(LogSummary(log_id, {log_id * 10 + n: 1 for n in range(4)}, has_map=True))
        assert summaries.get(0) is not None or log_id >= 2
    assert len(summaries) == 2
    assert summaries.get(4) is not None
    summaries.forget(4)
    summaries.forget(4)
    assert summaries.get(4) is None
    summaries.add(LogSummary(9, dict.fromkeys(range(100), 1), has_map=True))
    assert len(summaries) == 1, "a summary larger than the bound is kept alone"
