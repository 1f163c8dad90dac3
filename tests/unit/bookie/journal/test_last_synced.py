"""The note of how far a journal was synced: what a start concludes from it, and from its damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from crc32c import crc32c

from bookie.disk.real_disk import RealDisk
from bookie.errors import JournalCorruptError
from bookie.journal.files import JournalConfig, JournalFiles
from bookie.journal.format import (
    FIRST_GROUP_OFFSET,
    NO_MARK,
    JournalMark,
    Predecessor,
    encode_first_block,
    encode_group_end,
    encode_synced,
    group_bytes,
    journal_name,
)
from bookie.journal.last_synced import LAST_SYNCED, LastSynced, read_last_synced
from bookie.journal.replay import JournalEnd, read_journal


def record(entry_id: int) -> bytes:
    return struct.pack(">qqq", 1, entry_id, entry_id - 1) + b"payload"


def group(journal_id: int, entry_id: int, start: int) -> bytes:
    data = struct.pack(">i", len(record(entry_id))) + record(entry_id)
    end = encode_group_end(journal_id, start, start, 1, len(data), crc32c(data))
    return (data + end).ljust(group_bytes(len(data)), b"\0")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """One file with two groups, the last of which ends at ``END``."""
    data = encode_first_block(1, Predecessor(0, 0))
    for entry_id in (0, 1):
        data += group(1, entry_id, len(data))
    (tmp_path / journal_name(1)).write_bytes(data)
    return tmp_path


END = FIRST_GROUP_OFFSET + 2 * 4096


async def replay(
    directory: Path, *, mark: JournalMark = NO_MARK, skip: bool = False
) -> tuple[int, JournalEnd]:
    found: list[bytes] = []

    async def apply(records: Sequence[bytes], _: object) -> None:
        found.extend(records)

    disk = RealDisk()
    ids = JournalFiles(disk, directory, JournalConfig()).scan()
    end = await read_journal(
        disk, directory, ids, mark, apply, skip_damaged=(lambda evidence: None) if skip else None
    )
    return len(found), end


def note(directory: Path, journal_id: int, offset: int) -> None:
    (directory / LAST_SYNCED).write_bytes(encode_synced(JournalMark(journal_id, offset)))


def damage_last_group(directory: Path) -> None:
    path = directory / journal_name(1)
    data = bytearray(path.read_bytes())
    data[-4096 + 10] ^= 1
    path.write_bytes(data)


async def test_a_bad_last_group_is_torn_if_it_was_not_noted_and_damage_if_it_was(journal: Path) -> None:
    damage_last_group(journal)
    note(journal, 1, END - 4096)
    assert (await replay(journal))[0] == 1
    note(journal, 1, END)
    with pytest.raises(
        JournalCorruptError, match=r"durable up to 1\.txn:12288.*can be read up to offset 8192"
    ):
        await replay(journal)
    assert (await replay(journal, skip=True))[0] == 1


@pytest.mark.slow
async def test_a_file_cut_short_is_found_out(journal: Path) -> None:
    path = journal / journal_name(1)
    path.write_bytes(path.read_bytes()[: -4096 - 100])
    note(journal, 1, END)
    with pytest.raises(JournalCorruptError, match="Bring the file back"):
        await replay(journal)


async def test_a_last_file_that_is_gone_is_missed_unless_it_was_empty(journal: Path) -> None:
    note(journal, 2, FIRST_GROUP_OFFSET)
    assert (await replay(journal))[0] == 2
    note(journal, 2, END)
    with pytest.raises(JournalCorruptError, match=r"2\.txn is missing"):
        await replay(journal)


async def test_what_is_below_the_mark_is_not_asked_for_again(journal: Path) -> None:
    (journal / journal_name(1)).rename(journal / journal_name(3))
    note(journal, 2, END)
    assert (await replay(journal, mark=JournalMark(3, END)))[0] == 0


@pytest.mark.parametrize("data", [b"", bytes(24), b"DLJS", encode_synced(JournalMark(1, END))[:-1]])
async def test_a_damaged_note_says_nothing(
    journal: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (journal / LAST_SYNCED).write_bytes(data)
    assert (await replay(journal))[0] == 2
    warned = [one for one in caplog.records if LAST_SYNCED in one.getMessage()]
    assert len(warned) == int(any(data)), "a power cut leaves an empty file or zeros, which is no damage"


@pytest.mark.parametrize("bit", range(0, 8 * 24, 5))
def test_a_note_with_a_flipped_bit_is_none(tmp_path: Path, bit: int) -> None:
    data = bytearray(encode_synced(JournalMark(7, END)))
    data[bit // 8] ^= 1 << bit % 8
    (tmp_path / LAST_SYNCED).write_bytes(data)
    assert read_last_synced(RealDisk(), tmp_path) == NO_MARK


def test_the_last_note_counts(tmp_path: Path) -> None:
    for _ in range(2):  # the second life finds the file of the first
        last_synced = LastSynced(RealDisk(), tmp_path)
        last_synced.note(JournalMark(7, 4096))
        last_synced.note(JournalMark(7, END))
        last_synced.close()
        assert read_last_synced(RealDisk(), tmp_path) == JournalMark(7, END)
