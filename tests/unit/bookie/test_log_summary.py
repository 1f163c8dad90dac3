"""What an entry log holds: by its map, by its records, or not to be said."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from bookie.disk import RealDisk
from bookie.entry_log import EntryLogWriter
from bookie.entry_log_format import HEADER_BYTES, decode_header, encode_header, encode_map
from bookie.errors import FormatError
from bookie.log_summary import LogSummaries, LogSummary, SummaryScan, summarise

DISK = RealDisk()


def body(ledger_id: int, entry_id: int, size: int = 20) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + bytes([entry_id % 251]) * size


def a_log(directory: Path) -> bytes:
    """Log 0 with 100 entries of 104 bytes in ledgers 1 and 2, and its bytes."""
    writer = EntryLogWriter(DISK, directory, log_bytes_max=1 << 20)
    list(writer.append({ledger_id: {e: body(ledger_id, e, 68) for e in range(50)} for ledger_id in (1, 2)}))
    writer.sync()
    writer.close()
    return (directory / "0.log").read_bytes()


def test_a_map_tells_and_so_do_the_records(tmp_path: Path) -> None:
    data = a_log(tmp_path)
    by_map = summarise(DISK, tmp_path, 0)
    assert (by_map.ledger_bytes(), by_map.total_bytes, by_map.has_map) == ({1: 5200, 2: 5200}, 10_400, True)
    (tmp_path / "0.log").write_bytes(encode_header() + data[HEADER_BYTES : HEADER_BYTES + 10_400])
    by_scan = summarise(DISK, tmp_path, 0)
    assert by_scan.ledger_bytes() == by_map.ledger_bytes()
    assert (by_scan.has_map, by_scan.torn_at) == (False, None)
    assert by_scan.live_bytes({2}.__contains__) == 5200
    assert by_scan.has_live({2}.__contains__)
    assert not by_scan.has_live({3}.__contains__)


def test_a_scan_of_a_large_log_is_done_in_pieces(tmp_path: Path) -> None:
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


def test_an_entry_longer_than_a_piece_is_followed(tmp_path: Path) -> None:
    writer = EntryLogWriter(DISK, tmp_path, log_bytes_max=1 << 30)
    list(writer.append({1: {0: body(1, 0), 1: body(1, 1, 3 << 20), 2: body(1, 2)}}))
    writer.abandon()
    summary = summarise(DISK, tmp_path, 0)
    assert summary.ledger_bytes() == {1: 3 * 36 + 40 + (3 << 20)}
    assert summary.torn_at is None


def test_a_damaged_map_of_ours_makes_it_scan_up_to_where_the_map_began(tmp_path: Path) -> None:
    data = bytearray(a_log(tmp_path))
    data[-1] ^= 1
    (tmp_path / "0.log").write_bytes(data)
    summary = summarise(DISK, tmp_path, 0)
    assert (summary.ledger_bytes(), summary.has_map) == ({1: 5200, 2: 5200}, False)
    data[HEADER_BYTES + 104 * 70 : HEADER_BYTES + 10_400] = bytes(104 * 30)
    (tmp_path / "0.log").write_bytes(data)
    with pytest.raises(FormatError, match="where the map begins"):
        summarise(DISK, tmp_path, 0)


def test_a_map_without_checksum_counts_only_if_it_accounts_for_every_byte(tmp_path: Path) -> None:
    data = a_log(tmp_path)
    for ledger_bytes, is_believed in (({1: 5200, 2: 5200}, True), ({1: 5200, 3: 5200 - 1}, False)):
        ledgers_map = encode_map(ledger_bytes)
        header = bytearray(encode_header(HEADER_BYTES + 10_400, 2))
        header[1016:] = bytes(8)  # Apache's has no checksums
        (tmp_path / "0.log").write_bytes(
            bytes(header) + data[HEADER_BYTES : HEADER_BYTES + 10_400] + ledgers_map
        )
        summary = summarise(DISK, tmp_path, 0)
        assert summary.has_map is is_believed
        assert summary.ledger_bytes() == {1: 5200, 2: 5200}


def test_a_header_that_never_reached_the_disk_leaves_everything_in_doubt(tmp_path: Path) -> None:
    data = a_log(tmp_path)
    (tmp_path / "0.log").write_bytes(bytes(HEADER_BYTES) + data[HEADER_BYTES : HEADER_BYTES + 10_400])
    assert summarise(DISK, tmp_path, 0).torn_at == 0
    for size in (0, 100):
        (tmp_path / "0.log").write_bytes(data[:size])
        summary = summarise(DISK, tmp_path, 0)
        assert (summary.total_bytes, summary.torn_at) == (0, 0)
    (tmp_path / "0.log").write_bytes(b"XXXX" + data[4:])
    with pytest.raises(FormatError, match="begins with"):
        summarise(DISK, tmp_path, 0)


def test_a_header_that_claims_the_world_is_read_in_bounds(tmp_path: Path) -> None:
    data = a_log(tmp_path)
    reads: list[int] = []
    header = bytearray(encode_header(HEADER_BYTES, 2**31 - 1))
    header[1016:] = bytes(8)
    content = bytes(header) + data[HEADER_BYTES:]
    from bookie.entry_log_format import decode_map

    def read(size: int, at: int) -> bytes:
        reads.append(size)
        return content[at : at + size]

    assert decode_map(bytes(header), read, len(content)) is None
    assert max(reads) <= 160_000


def test_one_flipped_bit_is_noticed_or_changes_nothing_that_is_live(tmp_path: Path) -> None:
    data = a_log(tmp_path)
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


def test_the_header_codec_has_room_for_any_bytes() -> None:
    header = encode_header(5000, 7, crc32c(b"x"))
    head = decode_header(header)
    assert head is not None
    assert (head.map_offset, head.ledger_count, head.map_crc) == (5000, 7, crc32c(b"x"))
    assert decode_header(header[:1000]) is None


def test_summaries_are_kept_within_bounds_and_the_oldest_goes() -> None:
    kept = LogSummaries(ledgers_max=10)
    for log_id in range(5):
        kept.keep(LogSummary(log_id, {log_id * 10 + n: 1 for n in range(4)}, has_map=True))
        assert kept.get(0) is not None or log_id >= 2
    assert len(kept) == 2
    assert kept.get(4) is not None
    kept.forget(4)
    kept.forget(4)
    assert kept.get(4) is None
    kept.keep(LogSummary(9, dict.fromkeys(range(100), 1), has_map=True))
    assert len(kept) == 1, "one that is too large for all bounds is kept alone"
