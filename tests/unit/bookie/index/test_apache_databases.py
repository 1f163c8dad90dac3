"""The databases of Apache's DbLedgerStorage: golden files, round trips, arbitrary bytes, locks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.disk import Disk
from bookie.disk.read_only import ReadOnlyDisk
from bookie.disk.real_disk import RealDisk
from bookie.errors import DirectoryInUseError, FormatError
from bookie.index.apache_databases import (
    ApacheDatabases,
    decode_ledger,
    decode_location,
    encode_ledger,
    encode_location,
)
from bookie.index.entry_index import EntryRange
from bookie.ledger_record import LedgerData
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "apache_databases"
VERSIONS = pytest.mark.parametrize("version", ["4.17.3", "4.18.0"])
KEY = bytes.fromhex("e793cbc379107648537183605cd361d3bb789a39")
LAC_PACKET = bytes.fromhex("0000000000000002" + "0000000000000001" + "5d8ac388")
LEDGERS = {
    0: LedgerData(KEY, False, None, -1, -1),
    1: LedgerData(KEY, True, None, -1, -1),
    2: LedgerData(KEY, False, LAC_PACKET, -1, -1),
}
LOCATIONS = {(ledger, entry): 0x404 + 47 * (2 * ledger + entry) for ledger in range(3) for entry in range(2)}


def unpack_golden(version: str, to: Path) -> dict[str, bytes]:
    """Write the files of both databases below ``to``; their bytes by path."""
    files = {}
    for path in sorted(GOLDEN.glob(f"{version}-*.hex")):
        first, *lines = path.read_text().splitlines()
        data = bytearray(int(first.removeprefix("size ")))
        for line in lines:
            offset, content = line.split()
            data[int(offset, 16) : int(offset, 16) + len(content) // 2] = bytes.fromhex(content)
        database, _, name = path.name.removeprefix(f"{version}-").removesuffix(".hex").partition("-")
        (to / database).mkdir(parents=True, exist_ok=True)
        (to / database / name).write_bytes(data)
        files[f"{database}/{name}"] = bytes(data)
    return files


def records(disk: Disk, path: Path) -> Iterator[tuple[bytes, bytes]]:
    database = disk.open_apache_database(path)
    try:
        yield from database.scan(b"", b"\xff" * 20)
    finally:
        database.close()


@VERSIONS
@pytest.mark.parametrize("disk", [RealDisk(), ReadOnlyDisk()], ids=["real", "read-only"])
def test_databases_of_apaches_bookie_are_read_and_stay_as_they_are(
    version: str, disk: Disk, tmp_path: Path
) -> None:
    files = unpack_golden(version, tmp_path)
    databases = ApacheDatabases(disk, tmp_path)
    assert dict(databases.ledgers()) == LEDGERS
    assert list(databases.ledgers_with_entries()) == [0, 1, 2]
    found = [one for ledger_id in range(4) for one in databases.ranges(ledger_id)]
    assert {
        (one.ledger_id, entry_id): location
        for one in found
        for entry_id, location in zip(one.entry_ids, one.locations, strict=True)
    } == LOCATIONS
    assert not databases.needs_integrity_check()
    databases.close()
    after = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.glob("*/*")}
    assert after == files


@VERSIONS
def test_records_are_encoded_as_apaches_bookie_encodes_them(version: str, tmp_path: Path) -> None:
    unpack_golden(version, tmp_path)
    assert list(records(RealDisk(), tmp_path / "ledgers")) == [encode_ledger(*one) for one in LEDGERS.items()]
    assert list(records(RealDisk(), tmp_path / "locations")) == [
        encode_location(*entry, location) for entry, location in LOCATIONS.items()
    ]


@given(key=st.binary(max_size=20), value=st.binary(max_size=60))
def test_arbitrary_bytes_are_a_record_or_a_format_error(key: bytes, value: bytes) -> None:
    for decode in (decode_location, decode_ledger):
        with contextlib.suppress(FormatError):
            decode(key, value)
    with pytest.raises(FormatError, match="16 and 8 are expected"):
        decode_location(key[:15], value)
    with pytest.raises(FormatError, match="8 are expected"):
        decode_ledger(key[:7], value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("0" * 15 + "7" + "0" * 16, "0" * 16, "entry 7:0 has the location 0"),
        ("0" * 15 + "7" + "f" * 16, "0" * 15 + "1", "entry 7:-1"),
    ],
)
def test_a_location_that_no_bookie_writes_is_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode_location(bytes.fromhex(key), bytes.fromhex(value))


def test_an_explicit_lac_without_ledger_and_lac_is_refused() -> None:
    with pytest.raises(FormatError, match="ledger 5: explicit LAC of 15 bytes"):
        decode_ledger(*encode_ledger(5, LedgerData(KEY, False, bytes(15), -1, -1)))


@given(
    ledger_id=st.integers(0, 2**63 - 1),
    key=st.binary(max_size=40),
    fenced=st.booleans(),
    limbo=st.booleans(),
    lac=st.none() | st.binary(min_size=16, max_size=40),
)
def test_ledger_data_are_decoded_as_they_were_encoded(
    ledger_id: int, key: bytes, fenced: bool, limbo: bool, lac: bytes | None
) -> None:
    data = LedgerData(key, fenced, lac, -1, -1, limbo)
    assert decode_ledger(*encode_ledger(ledger_id, data)) == (ledger_id, data)


def test_new_databases_have_only_what_was_put_and_no_file_of_ours(tmp_path: Path) -> None:
    greatest = 2**63 - 1
    databases = ApacheDatabases(RealDisk(), tmp_path, create=True)
    ids = list(range(2500))
    databases.put([EntryRange(3, ids, [one + 1 for one in ids])], [(3, LEDGERS[2]), (greatest, LEDGERS[1])])
    databases.put([EntryRange(3, [7], [99]), EntryRange(greatest, [greatest], [5])])  # the later one counts
    databases.sync()
    assert all(list((tmp_path / name).glob("*.sst")) for name in ("ledgers", "locations")), "in tables"
    databases.close()
    databases = ApacheDatabases(ReadOnlyDisk(), tmp_path)
    found = [entry for one in databases.ranges(3) for entry in zip(one.entry_ids, one.locations, strict=True)]
    assert found == [(one, 99 if one == 7 else one + 1) for one in ids]
    assert list(databases.ranges(greatest)) == [EntryRange(greatest, [greatest], [5])]
    assert list(databases.ledgers_with_entries()) == [3, greatest]
    databases.close()
    assert len(list(records(RealDisk(), tmp_path / "ledgers"))) == 2
    assert len(list(records(RealDisk(), tmp_path / "locations"))) == 2501
    for name in ("ledgers", "locations"):
        names = {path.name for path in (tmp_path / name).iterdir()}
        assert not names & {"rocksdict-config.json", "synced"}
        assert all(path.stat().st_size == 0 for path in (tmp_path / name).glob("*.log"))


@pytest.mark.parametrize(("value", "is_due"), [(1, True), (2, False), (3, True), (0, False)])
def test_a_check_that_apaches_bookie_has_not_finished_is_seen(
    tmp_path: Path, value: int, is_due: bool
) -> None:
    for name in ("ledgers", "locations"):
        database = RealDisk().open_apache_database(tmp_path / name, create=True)
        database.write([((-0xEEFD).to_bytes(8, "big", signed=True), value.to_bytes(8, "big"))])
        database.sync()
        database.close()
    databases = ApacheDatabases(RealDisk(), tmp_path)
    assert databases.needs_integrity_check() is is_due
    assert list(databases.ledgers()) == []
    databases.close()


def test_a_database_that_another_process_has_open_is_not_locked(tmp_path: Path) -> None:
    unpack_golden("4.18.0", tmp_path)
    path = tmp_path / "ledgers"
    program = (
        "import sys; from rocksdict import Options, Rdict\n"
        f"database = Rdict({str(path)!r}, Options(raw_mode=True))\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryInUseError, match=r"ledgers is open in .*Stop Apache's bookie"):
            RealDisk().lock_apache_database(path)
        other.communicate()
    unlock = RealDisk().lock_apache_database(path)
    assert (
        "lock"
        in subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, input="").stderr
    )
    unlock()
    RealDisk().lock_apache_database(tmp_path / "absent")()
