"""The golden files of Apache bookies are decoded to their known content."""

from __future__ import annotations

import struct

import pytest

from bookie.entrylog.format import HEADER_BYTES, EntryLogScan, decode_map
from bookie.journal.format import NO_MARK, JournalMark, RecordKind, decode_mark, decode_special
from bookie.journal.replay import JournalScan
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "bookie_files"
KILLED = sorted(path.name for path in GOLDEN.glob("*-killed-*.txn.hex"))
RESTARTED = sorted(path.name for path in GOLDEN.glob("*-restarted-*.log.hex"))
KEY = bytes.fromhex("0bcbf07f63ce95909ce6c8592e0230d55de79249")


def golden(name: str) -> bytes:
    first, *lines = (GOLDEN / name).read_text().splitlines()
    data = bytearray(int(first.removeprefix("size ")))
    for line in lines:
        offset, content = line.split()
        data[int(offset, 16) : int(offset, 16) + len(content) // 2] = bytes.fromhex(content)
    return bytes(data)


def payload(body: bytes) -> bytes:
    return body[36:]  # header and CRC32C


def records_of(name: str) -> list[bytes]:
    data = golden(name)
    scan = JournalScan(lambda size, at: data[at : at + size], len(data), 1)
    return [record for records in scan.groups() for record in records]


@pytest.mark.parametrize("name", KILLED)
def test_a_journal_contains_keys_entries_fences_and_the_explicit_lac(name: str) -> None:
    found = []
    for record in records_of(name):
        ledger_id, entry_id = struct.unpack_from(">qq", record)
        if entry_id < 0:
            kind, content = decode_special(record)
            found.append((ledger_id, kind, content))
        else:
            found.append((ledger_id, entry_id, payload(record)))
    expected: list[object] = []
    for ledger_id in (1, 2, 258):
        expected.append((ledger_id, RecordKind.KEY, KEY))
        expected += [(ledger_id, e, b"ledger-%d-entry-%d" % (ledger_id, e)) for e in range(3)]
    packet = bytes.fromhex("0000000000000002" + "0000000000000001" + "5d8ac388")
    expected += [
        (2, RecordKind.EXPLICIT_LAC, packet),
        (258, RecordKind.FENCE, b""),
        (1, 3, b"deferred"),
        (900, RecordKind.FENCE, b""),  # Apache journals this fence without the ledger's key
    ]
    assert found == expected


@pytest.mark.parametrize("name", KILLED)
def test_a_restarted_bookie_writes_to_the_next_file(name: str) -> None:
    version, storage = name.split("-")[:2]
    first, second = sorted(path.name for path in GOLDEN.glob(f"{version}-{storage}-restarted-*.txn.hex"))
    assert golden(first) == golden(name)
    added = [struct.unpack_from(">qq", record) for record in records_of(second)]
    assert [at[0] for at in added if at[1] >= 0] == [900, 1, 2]
    mark = decode_mark(golden(f"{version}-{storage}-restarted-lastMark.hex"))
    assert mark == JournalMark(int(second.split("-")[-1].split(".")[0], 16), 0x800)
    assert decode_mark(golden(f"{version}-{storage}-killed-lastMark.hex")) == NO_MARK


@pytest.mark.parametrize("name", RESTARTED)
def test_an_entry_log_without_a_map_is_scanned(name: str) -> None:
    data = golden(name)

    def read(size: int, at: int) -> bytes:
        return data[at : at + size]

    assert decode_map(data[:HEADER_BYTES], read, len(data)) is None
    scan = EntryLogScan(read, len(data))
    found = {(e.ledger_id, e.entry_id): data[e.offset : e.offset + e.size_bytes] for e in scan.entries()}
    assert scan.damage is None
    for ledger_id in (1, 2, 258):
        for entry_id in range(3):
            assert payload(found[ledger_id, entry_id]) == b"ledger-%d-entry-%d" % (ledger_id, entry_id)
    assert payload(found[1, 3]) == b"deferred"
    assert len(found) == 13


@pytest.mark.parametrize(("log_id", "is_complete"), [(0, True), (1, True), (2, False)])
def test_the_map_of_a_rotated_log_matches_a_scan(log_id: int, is_complete: bool) -> None:
    data = golden(f"4.18.0-rotated-{log_id}.log.hex")

    def read(size: int, at: int) -> bytes:
        return data[at : at + size]

    sizes: dict[int, int] = {}
    scan = EntryLogScan(read, len(data))
    for entry in scan.entries():
        sizes[entry.ledger_id] = sizes.get(entry.ledger_id, 0) + entry.size_bytes + 4
        assert payload(data[entry.offset : entry.offset + entry.size_bytes]) == b"0123456789"
    assert scan.damage is None
    assert sizes.keys() == {1, 2, 258}
    assert decode_map(data[:HEADER_BYTES], read, len(data)) == (sizes if is_complete else None)
