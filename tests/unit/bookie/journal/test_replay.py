"""Reading the journal back: torn tails, damage, recycled files, Apache's files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from crc32c import crc32c

from bookie.disk.real_disk import RealDisk
from bookie.errors import FormatError, JournalCorruptError, JournalMissingError
from bookie.journal.format import (
    FIRST_GROUP_OFFSET,
    NO_MARK,
    JournalMark,
    Predecessor,
    encode_first_block,
    encode_group_end,
    encode_synced,
    fence_record,
    group_bytes,
    journal_name,
    key_record,
)
from bookie.journal.group_commit import WriteBatch
from bookie.journal.last_synced import LAST_SYNCED
from bookie.journal.replay import JournalScan, OnDamage, apply_records, read_journal
from bookie.ledger_record import UNKNOWN_KEY, LedgerRecord
from bookie.length_prefixes import LENGTH
from ledger.digest import DigestType, EntryCodec

ID = 0x77


def entry(ledger_id: int, entry_id: int, size: int = 30) -> bytes:
    return struct.pack(">qqq", ledger_id, entry_id, entry_id - 1) + bytes([entry_id % 256]) * size


def group(
    records: Sequence[bytes], start: int, *, journal_id: int = ID, durable_below: int | None = None
) -> bytes:
    data = b"".join(struct.pack(">i", len(record)) + record for record in records)
    below = start if durable_below is None else durable_below
    end = encode_group_end(journal_id, start, below, len(records), len(data), crc32c(data))
    return (data + end).ljust(group_bytes(len(data)), b"\0")


def file_of(*groups: Sequence[bytes], journal_id: int = ID, previous: Predecessor | None = None) -> bytes:
    data = encode_first_block(journal_id, previous or Predecessor(0, 0))
    for records in groups:
        data += group(records, len(data), journal_id=journal_id)
    return data


def scan(
    data: bytes, start: int = 0, *, skip_damaged: OnDamage | None = None, durable_bytes: int = 0
) -> tuple[list[bytes], int]:
    scanned = JournalScan(
        lambda size, at: data[at : at + size],
        len(data),
        ID,
        skip_damaged=skip_damaged,
        durable_bytes=durable_bytes,
    )
    records = [record for records in scanned.groups(start) for record in records]
    return records, scanned.end


GROUPS = [[entry(1, 0), entry(1, 1)], [entry(1, 2, 9000)], [fence_record(1)]]
ALL = [record for group in GROUPS for record in group]


def test_all_records_of_all_groups_come_in_order() -> None:
    data = file_of(*GROUPS)
    assert scan(data) == (ALL, len(data))
    assert scan(data + bytes(8192)) == (ALL, len(data))


def test_reading_can_begin_at_a_mark() -> None:
    data = file_of(*GROUPS)
    second = FIRST_GROUP_OFFSET + 4096
    assert scan(data, second) == (ALL[2:], len(data))
    assert scan(data, len(data)) == ([], len(data))


def test_wherever_the_last_group_is_torn_the_groups_before_it_hold() -> None:
    data = file_of(*GROUPS)
    last = len(data) - 4096
    for at in (last, last + 3, last + 4, last + 20, last + 40, last + 67):
        assert scan(data[:at] + bytes(8192)) == (ALL[:3], last)
        assert scan(data[:at]) == (ALL[:3], last)
        assert scan(data[:at] + b"\xee" * (len(data) - at)) == (ALL[:3], last)


def test_damage_before_a_durable_group_stops_the_start() -> None:
    data = file_of(*GROUPS)
    for at in (FIRST_GROUP_OFFSET, FIRST_GROUP_OFFSET + 30, FIRST_GROUP_OFFSET + 4096 + 5000):
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises(JournalCorruptError, match="this one was durable"):
            scan(damaged)
        evidence: list[str] = []
        records, end = scan(damaged, skip_damaged=evidence.append)
        assert records == (ALL[:2] + ALL[3:] if at > FIRST_GROUP_OFFSET + 4096 else ALL[2:])
        assert end == len(data)
        assert len(evidence) == 1
        assert "bytes are damaged" in evidence[0]


CODEC = EntryCodec(DigestType.CRC32C, b"")


def checked(entry_id: int, size: int = 200) -> bytes:
    """An entry with a checksum of its own."""
    return CODEC.pack(1, entry_id, entry_id - 1, size * (entry_id + 1), b"p" * size)


@pytest.mark.parametrize("is_tail", [False, True])
def test_of_a_damaged_group_the_entries_with_a_sound_checksum_are_kept(is_tail: bool) -> None:
    first, second, third = [checked(0)], [checked(each) for each in range(1, 9)], [checked(9)]
    data = file_of(first, second) if is_tail else file_of(first, second, third)
    record_bytes = LENGTH.size + len(second[0])
    begin = FIRST_GROUP_OFFSET + 4096
    for number in range(len(second)):
        at = begin + number * record_bytes + 60  # in its payload
        damaged = data[:at] + b"\xff" + data[at + 1 :]
        found, _ = scan(damaged, skip_damaged=lambda evidence: None, durable_bytes=len(data))
        kept = second[:number] + second[number + 1 :]
        assert found == [*first, *kept, *([] if is_tail else third)]
        assert not is_tail or scan(damaged)[0] == first, "what was not durable is a torn tail"
    at = begin + 3 * record_bytes
    damaged = data[:at] + bytes(2 * record_bytes) + data[at + 2 * record_bytes :]
    found, _ = scan(damaged, skip_damaged=lambda evidence: None, durable_bytes=len(data))
    assert found == [*first, *second[:3], *([] if is_tail else third)], "no length leads behind zeros"


def test_a_file_cut_anywhere_in_a_damaged_group_gives_the_entries_before() -> None:
    entries = [checked(each) for each in range(4)]
    data = file_of(entries)
    for size in range(FIRST_GROUP_OFFSET, FIRST_GROUP_OFFSET + 4 * (LENGTH.size + len(entries[0])) + 40):
        found, _ = scan(data[:size], skip_damaged=lambda evidence: None, durable_bytes=len(data))
        whole = (size - FIRST_GROUP_OFFSET) // (LENGTH.size + len(entries[0]))
        assert found == entries[:whole]


async def test_a_journal_of_which_files_are_missing_gives_what_is_left(tmp_path: Path) -> None:
    files = {
        2: file_of(GROUPS[0], journal_id=2, previous=Predecessor(1, 8192)),
        4: file_of(GROUPS[1], journal_id=4, previous=Predecessor(3, 8192)),
    }
    evidence: list[str] = []
    found = await replay(tmp_path, files, JournalMark(1, 4096), skip_damaged=evidence.append)
    assert found == (ALL[:3], JournalMark(4, len(files[4])))
    assert [each for each in evidence if "missing" in each] == evidence
    assert len(evidence) == 2


def test_a_hole_before_groups_that_nobody_was_told_of_is_a_torn_tail() -> None:
    data = file_of(GROUPS[0])
    hole = len(data)
    data += bytes(4096)
    data += group([entry(1, 9)], len(data), durable_below=hole)
    assert scan(data) == (ALL[:2], hole)


def test_what_a_recycled_file_held_in_its_last_life_is_not_replayed() -> None:
    old = file_of([entry(9, 0)], [entry(9, 1)], [entry(9, 2)], journal_id=ID - 1)
    new = file_of([entry(1, 0)])
    assert scan(new + old[len(new) :]) == ([entry(1, 0)], len(new))
    only_header = encode_first_block(ID, Predecessor(0, 0))
    assert scan(only_header + old[len(only_header) :]) == ([], FIRST_GROUP_OFFSET)


def test_a_group_moved_to_another_offset_is_not_believed() -> None:
    data = file_of(GROUPS[0])
    moved = group(GROUPS[2], len(data) + 4096)
    assert scan(data + moved) == (ALL[:2], len(data))


def test_a_file_made_just_before_a_crash_holds_nothing() -> None:
    assert scan(b"") == ([], 0)
    assert scan(bytes(100_000)) == ([], 0)


def apache(*groups: Sequence[bytes]) -> bytes:
    data = b"BKLG\0\0\0\6".ljust(512, b"\0")
    for records in groups:
        data += b"".join(struct.pack(">i", len(record)) + record for record in records)
        pad = -len(data) % 512
        data += struct.pack(">ii", -0x100, (pad if pad >= 8 else pad + 512) - 8).ljust(
            pad if pad >= 8 else pad + 512, b"\0"
        )
    return data


def test_a_file_of_apache_has_no_trailers_and_ends_at_zeros() -> None:
    data = apache(*GROUPS)
    assert scan(data + bytes(5000))[0] == ALL
    assert scan(data[:-600])[0] == ALL[:3]
    assert scan(apache(GROUPS[0]) + b"\0\0\0\x2aabc")[0] == ALL[:2]


def test_garbage_in_a_file_of_apache_stops_the_start_unless_told_otherwise() -> None:
    for junk in (b"\xff\xff\xff\x00" * 100, b"\x7f\xff\xff\xff" * 100):
        with pytest.raises(JournalCorruptError, match="skipReplayJournalInvalidRecord"):
            scan(apache(GROUPS[0]) + junk)
        assert scan(apache(GROUPS[0]) + junk, skip_damaged=lambda evidence: None)[0] == ALL[:2]


def test_a_file_of_another_kind_is_refused() -> None:
    with pytest.raises(FormatError):
        scan(b"BKLO".ljust(4096, b"\0"))


# --- several files --------------------------------------------------------------------------------


async def replay(
    directory: Path,
    files: dict[int, bytes],
    mark: JournalMark,
    *,
    is_closed: bool = False,
    skip_damaged: OnDamage | None = None,
) -> tuple[list[bytes], JournalMark]:
    for journal_id, data in files.items():
        (directory / journal_name(journal_id)).write_bytes(data)
    records: list[bytes] = []

    async def apply(some: Sequence[bytes], _: object) -> None:
        records.extend(some)

    end = await read_journal(
        RealDisk(), directory, sorted(files), mark, apply, is_closed=is_closed, skip_damaged=skip_damaged
    )
    assert end.last_id == max(files, default=0)
    return records, end.mark


@pytest.mark.parametrize("zeroed", [8, 512, 4096])
async def test_a_last_file_whose_header_is_zeroed_is_not_taken_for_one_just_made(
    tmp_path: Path, zeroed: int
) -> None:
    last = file_of(*GROUPS, journal_id=8, previous=Predecessor(7, FIRST_GROUP_OFFSET))
    files = {7: file_of(journal_id=7), 8: bytes(zeroed) + last[zeroed:]}
    with pytest.raises(JournalCorruptError, match=r"8\.txn: .*zeros"):
        await replay(tmp_path, files, NO_MARK)


async def test_files_are_replayed_in_order_from_the_mark(tmp_path: Path) -> None:
    first = file_of(GROUPS[0], GROUPS[1], journal_id=1)
    second = file_of(GROUPS[2], journal_id=2, previous=Predecessor(1, len(first)))
    mark = JournalMark(1, FIRST_GROUP_OFFSET + 4096)
    assert await replay(tmp_path, {1: first, 2: second}, NO_MARK) == (ALL, JournalMark(2, len(second)))
    assert await replay(tmp_path, {1: first, 2: second}, mark) == (ALL[2:], JournalMark(2, len(second)))


async def test_a_missing_file_that_the_mark_names_stops_the_start_with_advice(tmp_path: Path) -> None:
    with pytest.raises(JournalMissingError, match=r"lastMark names 1\.txn:4096.*Bring it back"):
        await replay(tmp_path, {2: file_of(GROUPS[0], journal_id=2)}, JournalMark(1, 4096))
    with pytest.raises(JournalMissingError):
        await replay(tmp_path / "nowhere", {}, JournalMark(1, 4096))


CLOSED = file_of(*GROUPS, journal_id=7)


@pytest.mark.parametrize("left", [None, b"", CLOSED[:4096], bytes(len(CLOSED)), b"garbage" * 999, CLOSED])
async def test_of_a_journal_closed_in_order_nothing_is_needed(tmp_path: Path, left: bytes | None) -> None:
    mark = JournalMark(7, len(CLOSED))
    (tmp_path / LAST_SYNCED).write_bytes(encode_synced(mark))
    files = {} if left is None else {7: left}
    if not left or left[0] == 0:
        with pytest.raises((JournalMissingError, JournalCorruptError)):
            await replay(tmp_path, files, mark)
    assert await replay(tmp_path, files, mark, is_closed=True) == ([], mark)
    later = file_of(journal_id=8, previous=Predecessor(7, len(CLOSED)))
    assert await replay(tmp_path, {**files, 8: later}, mark, is_closed=True) == (
        [],
        JournalMark(8, FIRST_GROUP_OFFSET),
    )


async def test_a_closed_mark_that_is_older_than_the_journal_counts_as_any_other(tmp_path: Path) -> None:
    mark = JournalMark(7, FIRST_GROUP_OFFSET + 4096)
    (tmp_path / LAST_SYNCED).write_bytes(encode_synced(JournalMark(7, len(CLOSED))))
    with pytest.raises(JournalMissingError):
        await replay(tmp_path, {}, mark, is_closed=True)
    with pytest.raises(JournalCorruptError):
        await replay(tmp_path, {7: b""}, mark, is_closed=True)
    assert (await replay(tmp_path, {7: CLOSED}, mark, is_closed=True))[0] == ALL[2:]


async def test_a_missing_file_in_the_middle_stops_the_start(tmp_path: Path) -> None:
    files = {
        1: file_of(GROUPS[0], journal_id=1),
        3: file_of(GROUPS[2], journal_id=3, previous=Predecessor(2, 8192)),
    }
    with pytest.raises(JournalMissingError, match=r"2\.txn"):
        await replay(tmp_path, files, NO_MARK)


async def test_a_file_shorter_than_its_successor_says_stops_the_start(tmp_path: Path) -> None:
    first = file_of(GROUPS[0], GROUPS[1], journal_id=1)
    second = file_of(GROUPS[2], journal_id=2, previous=Predecessor(1, len(first)))
    with pytest.raises(JournalCorruptError, match="was durable up to"):
        await replay(tmp_path, {1: first[: FIRST_GROUP_OFFSET + 4096], 2: second}, NO_MARK)


# --- what records mean ----------------------------------------------------------------------------


class Target:
    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerRecord] = {}
        self.entries: list[tuple[int, int, int]] = []

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self.ledgers.get(ledger_id)

    def create_ledger(self, batch: WriteBatch, ledger_id: int, master_key: bytes) -> LedgerRecord:
        record = self.ledgers.setdefault(ledger_id, LedgerRecord(ledger_id, master_key))
        record.master_key = master_key
        return record

    def stage_entry(
        self, batch: WriteBatch, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes
    ) -> None:
        self.entries.append((ledger.ledger_id, entry_id, lac))

    def stage_fence(self, batch: WriteBatch, ledger: LedgerRecord) -> None:
        ledger.fenced = True

    def stage_explicit_lac(self, batch: WriteBatch, ledger: LedgerRecord, body: bytes) -> None:
        ledger.explicit_lac = body


def test_a_ledger_whose_key_was_lost_comes_back_fenced_and_takes_a_later_key() -> None:
    target = Target()
    apply_records(target, WriteBatch(), [entry(5, 3), fence_record(6)])
    assert target.entries == [(5, 3, 2)]
    assert all(target.ledgers[i].fenced and target.ledgers[i].master_key == UNKNOWN_KEY for i in (5, 6))
    apply_records(target, WriteBatch(), [key_record(5, b"k"), key_record(5, b"other")])
    assert target.ledgers[5].master_key == b"k"
    assert target.ledgers[5].fenced


def test_records_of_unknown_kinds_are_skipped() -> None:
    target = Target()
    apply_records(
        target, WriteBatch(), [struct.pack(">qq", 1, -0x7777), struct.pack(">qq", -4, 0), key_record(1, b"k")]
    )
    assert list(target.ledgers) == [1]
