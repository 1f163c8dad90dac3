"""`dlog inspect` on intact and damaged files of Apache's bookies and of ours."""

# covers: dlog/cli/operators/bookie/inspect.py

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from crc32c import crc32c

from bookie.journal.format import (
    FIRST_GROUP_OFFSET,
    Predecessor,
    encode_first_block,
    encode_group_end,
    explicit_lac_record,
    fence_record,
    group_bytes,
    key_record,
)
from bookie.length_prefixes import LENGTH
from dlog.cli.main import main
from ledger.digest import DigestType, EntryCodec
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "bookie_files"


@attrs.frozen
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Dlog = Callable[..., CommandResult]


@pytest.fixture
def dlog(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dlog:
    monkeypatch.delenv("DLOG_DEBUG", raising=False)

    def run(*arguments: str) -> CommandResult:
        code = main(arguments)
        captured = capfd.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run


def golden(name: str, directory: Path) -> Path:
    """Write a captured file under its original name."""
    first, *lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    data = bytearray(int(first.removeprefix("size ")))
    for line in lines:
        offset, content = line.split()
        data[int(offset, 16) : int(offset, 16) + len(content) // 2] = bytes.fromhex(content)
    path = directory / name.rpartition("-")[2]
    path.write_bytes(data)
    return path


def journal_of(batches: list[list[bytes]], journal_id: int) -> bytes:
    """A journal file as our bookie writes it, with a block of zeros at the end."""
    data = encode_first_block(journal_id, Predecessor(0, 0))
    for records in batches:
        start, body = len(data), b"".join(LENGTH.pack(len(each)) + each for each in records)
        end = encode_group_end(journal_id, start, start, len(records), len(body), crc32c(body))
        data += (body + end).ljust(group_bytes(len(body)), b"\0")
    return data + bytes(4096)


CODEC = EntryCodec(DigestType.CRC32C, b"")
LAC = CODEC.pack_lac(5, 0)
OURS = [
    [key_record(5, CODEC.master_key), CODEC.pack(5, 0, -1, 3, b"one")],
    [CODEC.pack(5, 1, 0, 6, b"two"), explicit_lac_record(5, LAC), fence_record(5)],
]


def test_the_bytes_of_a_master_key_need_a_word_more(dlog: Dlog, tmp_path: Path) -> None:
    path = tmp_path / "1f.txn"
    path.write_bytes(journal_of(OURS, 0x1F))
    documents = dlog("inspect", "journal", str(path), "--json", "--data").documents
    assert ["data_base64" in each for each in documents] == [False, True, True, True, True]
    key = CODEC.master_key.hex()
    assert key not in dlog("inspect", "journal", str(path), "--data").out
    assert key in dlog("inspect", "journal", str(path), "--data", "--show-secrets").out


def test_every_record_of_our_journal_is_printed(dlog: Dlog, tmp_path: Path) -> None:
    path = tmp_path / "1f.txn"
    path.write_bytes(journal_of(OURS, 0x1F))
    result = dlog("inspect", "journal", str(path), "--json", "--data", "--show-secrets")
    assert result.code == 0
    records = [(each["kind"], each["ledger_id"], each["entry_id"], each["lac"]) for each in result.documents]
    assert records == [
        ("ledger key", 5, None, None),
        ("entry", 5, 0, -1),
        ("entry", 5, 1, 0),
        ("explicit LAC", 5, None, 0),
        ("fence", 5, None, None),
    ]
    assert [base64.b64decode(each["data_base64"]) for each in result.documents] == [*OURS[0], *OURS[1]]
    data = path.read_bytes()
    for each in result.documents:
        assert LENGTH.unpack_from(data, each["offset"]) == (each["size_bytes"],)
    assert "1f.txn: 5 records, up to offset 12288" in result.err
    lines = dlog("inspect", "journal", str(path), "--data").out.splitlines()
    assert " ".join(lines[1].split()) == f"4140 entry ledger 5 entry 0 bytes 39 {OURS[0][1].hex()}"


def test_a_damaged_journal_is_printed_up_to_the_damage(dlog: Dlog, tmp_path: Path) -> None:
    path = tmp_path / "1f.txn"
    data = bytearray(journal_of([*OURS, OURS[0]], 0x1F))
    data[FIRST_GROUP_OFFSET + 4096 + 40] ^= 1  # in the second of three batches, which was durable
    path.write_bytes(data)
    result = dlog("inspect", "journal", str(path), "--json")
    assert result.code == 7
    assert [each["kind"] for each in result.documents] == ["ledger key", "entry"]
    assert "1f.txn at offset 8192" in result.err
    assert "2 records printed before it" in result.err


def test_a_journal_under_another_name_needs_its_id(dlog: Dlog, tmp_path: Path) -> None:
    path = tmp_path / "copy of a journal"
    path.write_bytes(journal_of(OURS, 0x1F))
    refused = dlog("inspect", "journal", str(path))
    assert (refused.code, refused.out) == (2, "")
    assert "--journal-id" in refused.err
    assert len(dlog("inspect", "journal", str(path), "--journal-id", "1F", "--json").documents) == 5


def test_old_records_of_a_recycled_journal_are_not_printed(dlog: Dlog, tmp_path: Path) -> None:
    path = tmp_path / "20.txn"
    before, now = journal_of([*OURS, *OURS], 0x1F), journal_of(OURS[:1], 0x20)[:-4096]
    path.write_bytes(now + before[len(now) :])
    assert len(dlog("inspect", "journal", str(path), "--json").documents) == 2


@pytest.mark.parametrize("version", ["4.17.3", "4.18.0"])
def test_a_journal_of_apache_is_printed(dlog: Dlog, tmp_path: Path, version: str) -> None:
    name = next(GOLDEN.glob(f"{version}-Sorted-killed-*.txn.hex")).name.removesuffix(".hex")
    path = golden(name, tmp_path)
    records = dlog("inspect", "journal", str(path), "--json").documents
    assert [each["entry_id"] for each in records if each["ledger_id"] == 1 and each["kind"] == "entry"] == [
        0,
        1,
        2,
        3,
    ]
    assert records[0]["offset"] == 512
    assert [(each["kind"], each["lac"]) for each in records if each["kind"] == "explicit LAC"] == [
        ("explicit LAC", 1)
    ]
    assert [each["ledger_id"] for each in records if each["kind"] == "fence"] == [258, 900]


def test_a_wrong_length_in_a_journal_of_apache_is_located(dlog: Dlog, tmp_path: Path) -> None:
    name = next(GOLDEN.glob("4.18.0-Sorted-killed-*.txn.hex")).name.removesuffix(".hex")
    path = golden(name, tmp_path)
    records = dlog("inspect", "journal", str(path), "--json").documents
    data = bytearray(path.read_bytes())
    last = records[-1]["offset"]
    data[last : last + 4] = b"\xff\xff\x00\x00"
    path.write_bytes(data)
    result = dlog("inspect", "journal", str(path), "--json")
    assert result.code == 7
    assert f"length -65536 at {last}" in result.err
    assert 0 < len(result.documents) < len(records)


@pytest.mark.parametrize("log", ["0", "1", "2"])
def test_an_entry_log_of_apache_is_printed(dlog: Dlog, tmp_path: Path, log: str) -> None:
    path = golden(f"4.18.0-rotated-{log}.log", tmp_path)
    entries = dlog("inspect", "entry-log", str(path), "--json", "--data").documents
    assert entries[0]["offset"] == 1024
    for each in entries:
        data = base64.b64decode(each["data_base64"])
        assert CODEC.unpack(data, each["ledger_id"], each["entry_id"]).lac == each["lac"]
    one = dlog("inspect", "entry-log", str(path), "--json", "--ledger", "258").documents
    assert [each["entry_id"] for each in one] == [e["entry_id"] for e in entries if e["ledger_id"] == 258]
    assert len(dlog("inspect", "entry-log", str(path)).out.splitlines()) == len(entries)
    (map_,) = dlog("inspect", "map", str(path), "--json").documents
    assert map_["has_map"] is (log != "2")
    assert map_["size_bytes"] == sum(each["size_bytes"] + 4 for each in entries)
    assert [each["ledger_id"] for each in map_["ledgers"]] == sorted({e["ledger_id"] for e in entries})


def test_a_damaged_entry_log_is_printed_up_to_the_damage(dlog: Dlog, tmp_path: Path) -> None:
    path = golden("4.18.0-rotated-0.log", tmp_path)
    entries = dlog("inspect", "entry-log", str(path), "--json").documents
    data = bytearray(path.read_bytes())
    at = entries[3]["offset"]
    data[at : at + 4] = b"\x7f\xff\xff\xff"
    path.write_bytes(data)
    result = dlog("inspect", "entry-log", str(path), "--json")
    assert result.code == 7
    assert result.documents == entries[:3]
    assert f"length 2147483647 at offset {at}; 3 entries printed before it" in result.err


@pytest.mark.parametrize(
    ("what", "name"), [("journal", "1f.txn"), ("entry-log", "0.log"), ("map", "0.log"), ("mark", "lastMark")]
)
def test_a_file_of_another_format_is_rejected_by_name(
    dlog: Dlog, tmp_path: Path, what: str, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"something else, and long enough" * 100)
    result = dlog("inspect", what, str(path))
    assert (result.code, result.out) == (7, "")
    assert str(path) in result.err


def test_the_mark_is_printed(dlog: Dlog, tmp_path: Path) -> None:
    path = golden("4.18.0-Sorted-restarted-lastMark", tmp_path)
    (mark,) = dlog("inspect", "mark", str(path), "--json").documents
    assert mark["offset"] == 0x800
    assert f"{mark['journal_id']:x}.txn" in dlog("inspect", "mark", str(path)).out
