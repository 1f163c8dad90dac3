"""Row 11: both sides' offline tools read the files of a bookie, ours or Apache's."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from bookie.entrylog.format import LENGTH_BYTES, split_location
from bookie.index.page_file import page_file_path, page_file_ranges
from bookie.journal.format import SPECIAL_EXPLICIT_LAC, SPECIAL_FENCE, SPECIAL_KEY
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.write.handle import WriteHandle
from tests.interop.clients import PASSWORD, TEST_TIMEOUT_S, our_client
from tests.interop.driver import Driver
from tests.interop.originals import Cluster, Kind, Originals
from tests.interop.shell import ShownRecord, Tools, at_once, shown_ledger_bytes, shown_mark, shown_records
from tests.interop.table import proves

# Entries added one by one, each a group of one block. Behind the end of a recycled file there are then whole
# old groups, which a reader must not take for groups of the file.
LARGE_BYTES = 3_000
LARGE_COUNT_MAX = 3_000
LARGE_COUNT_JAVA = 400
PAUSE_EVERY = 20
ENTRY_HEADER_BYTES = 32  # Java's tools show the bytes after it
SETTINGS = {
    "journalMaxSizeMB": 1,
    "logSizeLimit": 1_000_000,
    "flushInterval": 200,
    "gcWaitTime": 3_600_000,
}

SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
Entries = dict[tuple[int, int], bytes]


@attrs.frozen
class Files:
    """The files of one stopped bookie, and the entries that had been written to it."""

    tools: Tools
    home: Path
    entries: Entries  # payloads
    codecs: dict[int, EntryCodec]

    @property
    def journals(self) -> list[Path]:
        return sorted(self.home.glob("journal/current/*.txn"))

    @property
    def logs(self) -> list[Path]:
        return sorted(self.home.glob("ledgers/current/*.log"))

    @property
    def mark(self) -> Path:
        return self.home / "ledgers" / "current" / "lastMark"

    def payload(self, ledger_id: int, data: bytes) -> bytes:
        """The payload of a stored entry without its header; the digest is not checked."""
        return data[self.codecs[ledger_id].digest_type.size_bytes :]


@pytest.fixture(scope="session")
def ours(originals: Originals, driver: Driver) -> Files:
    """Files of our bookie. Its newest journal is a recycled file, with older records behind its end."""
    return _left_by(originals, driver, "ours")


@pytest.fixture(scope="session")
def theirs(originals: Originals, driver: Driver) -> Files:
    """Files of Apache's bookie."""
    return _left_by(originals, driver, "java")


def _left_by(originals: Originals, driver: Driver, kind: Kind) -> Files:
    root = f"/files-of-{kind}"
    driver.ask("init_cluster", uri=originals.uri(root, layout="hierarchical"))
    cluster = Cluster(originals, root)
    (bookie,) = cluster.add(kind, **SETTINGS)
    entries: Entries = {}
    codecs: dict[int, EntryCodec] = {}

    async def fill() -> None:
        with trio.fail_after(TEST_TIMEOUT_S):
            async with our_client(cluster) as client, our_client(cluster) as other:

                async def begin(digest: DigestType) -> WriteHandle:
                    writer = await client.create(
                        ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=digest, password=PASSWORD
                    )
                    codecs[writer.ledger_id] = EntryCodec(digest, PASSWORD)
                    return writer

                async def add(writer: WriteHandle, payload: bytes) -> None:
                    entries[writer.ledger_id, await writer.append(payload)] = payload

                large = await begin(DigestType.CRC32C)
                journals = bookie.home / "journal" / "current"
                recycled_at = 0
                for number in range(LARGE_COUNT_MAX):
                    spares = set(journals.glob("spare-*"))
                    await add(large, (b"%d " % number * LARGE_BYTES)[:LARGE_BYTES])
                    if number > LARGE_COUNT_JAVA and kind == "java":
                        break
                    # A spare file has become the next journal.
                    if spares - set(journals.glob("spare-*")):
                        recycled_at = number
                        break
                    if number % PAUSE_EVERY == 0:
                        await trio.sleep(0.02)  # time for a checkpoint
                else:
                    pytest.fail("no journal file was recycled")
                assert kind == "java" or recycled_at > 0
                for digest in DigestType:
                    writer = await begin(digest)
                    for number in range(3):
                        await add(writer, b"entry %d under %s" % (number, digest.name.encode()))
                    await writer.write_explicit_lac()
                    await add(writer, b"")
                reader = await other.open(writer.ledger_id, password=PASSWORD)  # fences it
                assert reader.last_confirmed == 3

    trio.run(fill)
    cluster.stop()
    return Files(Tools(originals, cluster), bookie.home, entries, codecs)


def part_of(data: bytes, size: int, offset: int) -> bytes:
    return data[offset : offset + size]


def inspect(*arguments: str) -> list[dict[str, Any]]:
    """Run our command on a file; return the JSON documents that it prints."""
    command = [sys.executable, "-m", "dlog.cli.main", "inspect", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_TIMEOUT_S)
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@attrs.frozen
class Comparable:
    """The parts of a record that the tools of both sides show."""

    offset: int
    ledger_id: int
    entry_id: int  # or the number of a special record
    size_bytes: int
    lac: int | None  # of an entry
    key: str | None
    is_fence: bool
    data: bytes  # of an entry


def as_java_shows(record: ShownRecord) -> Comparable:
    assert record.offset is not None
    is_entry = record.entry_id >= 0
    return Comparable(
        record.offset,
        record.ledger_id,
        record.entry_id,
        record.size_bytes,
        record.lac if is_entry else None,
        record.key,
        record.is_fence,
        record.data if is_entry else b"",  # it shows an explicit LAC as an entry, and truncates it
    )


def as_we_show(document: dict[str, Any]) -> Comparable:
    data = base64.b64decode(document["data_base64"])
    kind = document["kind"]
    special = {"ledger key": SPECIAL_KEY, "fence": SPECIAL_FENCE, "explicit LAC": SPECIAL_EXPLICIT_LAC}
    return Comparable(
        document["offset"],
        document["ledger_id"],
        document["entry_id"] if kind == "entry" else special[kind],
        document["size_bytes"],
        document["lac"] if kind == "entry" else None,
        data[20:].hex() if kind == "ledger key" else None,
        kind == "fence",
        data[ENTRY_HEADER_BYTES:] if kind == "entry" else b"",
    )


def compared(
    files: Files, what: str, paths: Sequence[Path], run_java: Callable[[Path], str]
) -> list[Comparable]:
    """The records of the files by Java's tool; they must be equal to those by ours."""
    records = []
    for path, output in zip(paths, at_once(*(partial(run_java, path) for path in paths)), strict=True):
        shown_by_java = [as_java_shows(record) for record in shown_records(output)]
        options = ["--data", "--show-secrets"] if what == "journal" else ["--data"]
        assert shown_by_java == [as_we_show(document) for document in inspect(what, str(path), *options)]
        records += shown_by_java
    return records


def check_journals(files: Files) -> None:
    # Not the shell's readjournal: it prints bytes as text in every format.
    records = compared(
        files,
        "journal",
        files.journals,
        lambda path: files.tools.bkctl("bookie", "readjournal", "-m", "-e", "hex", "-f", str(path)),
    )
    fences = [record.ledger_id for record in records if record.is_fence]
    assert fences == [max(files.codecs)]
    keys = {record.ledger_id: record.key for record in records if record.key is not None}
    assert set(keys) >= set(files.codecs) - {
        min(files.codecs)
    }  # the journal with the first key may be deleted
    assert set(keys.values()) == {master_key(PASSWORD).hex()}
    assert sum(record.entry_id == SPECIAL_EXPLICIT_LAC for record in records) == len(DigestType)
    entries = [record for record in records if record.entry_id >= 0]
    assert all(
        files.payload(record.ledger_id, record.data) == files.entries[record.ledger_id, record.entry_id]
        for record in entries
    )
    small = {ids for ids, payload in files.entries.items() if len(payload) < LARGE_BYTES}
    assert {(record.ledger_id, record.entry_id) for record in entries} >= small


def check_logs(files: Files) -> None:
    logs = [path for path in files.logs if path.stat().st_size]
    records = compared(
        files,
        "entry-log",
        logs,
        lambda path: files.tools.shell("-entryformat", "hex", "readlog", "-msg", str(path)),
    )
    assert {
        (record.ledger_id, record.entry_id): files.payload(record.ledger_id, record.data)
        for record in records
    } == files.entries
    maps = at_once(*(partial(files.tools.shell, "readlogmetadata", str(path)) for path in logs))
    together: Counter[int] = Counter()
    for path, output in zip(logs, maps, strict=True):
        (shown,) = inspect("map", str(path))
        ledgers = {each["ledger_id"]: each["size_bytes"] for each in shown["ledgers"]}
        assert ledgers == shown_ledger_bytes(output)
        together.update(ledgers)
    expected: Counter[int] = Counter()
    for record in records:
        expected[record.ledger_id] += LENGTH_BYTES + record.size_bytes
    assert together == expected


def check_mark(files: Files) -> None:
    (mark,) = inspect("mark", str(files.mark))
    assert shown_mark(files.tools.shell("lastmark")) == (mark["journal_id"], mark["offset"])
    assert mark["offset"] > 0


@proves(11, "they read our journal")
def test_java_reads_our_journal_record_for_record(ours: Files) -> None:
    last = inspect("journal", str(ours.journals[-1]))[-1]
    assert any(ours.journals[-1].read_bytes()[last["offset"] + last["size_bytes"] + 8192 :])
    check_journals(ours)
    check_mark(ours)


@proves(11, "they read our entry logs")
def test_java_reads_our_index_files_slot_for_slot(originals: Originals, driver: Driver) -> None:
    """The rest of the last page is a hole. Apache's bookie looks for the last entry in a whole page."""
    root = "/index-files-of-ours"
    driver.ask("init_cluster", uri=originals.uri(root, layout="hierarchical"))
    cluster = Cluster(originals, root)
    (bookie,) = cluster.add("ours", ledgerStorageClass=SORTED, flushInterval=200)
    counts: dict[int, int] = {}

    async def fill() -> None:
        with trio.fail_after(TEST_TIMEOUT_S):
            async with our_client(cluster) as client:
                for count in (1, 400, 1025):
                    writer = await client.create(
                        ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD
                    )
                    for _ in range(count):
                        await writer.append(b"x")
                    await writer.close()
                    counts[writer.ledger_id] = count

    trio.run(fill)
    cluster.stop()
    tools = Tools(originals, cluster)
    outputs = at_once(*(partial(tools.shell, "ledger", str(ledger_id)) for ledger_id in counts))
    for (ledger_id, count), output in zip(counts.items(), outputs, strict=True):
        data = page_file_path(bookie.home / "ledgers" / "current", ledger_id).read_bytes()
        assert len(data) == 1024 + 8192 * -(-count // 1024)
        found: dict[int, tuple[int, int]] = {}
        for one in page_file_ranges(partial(part_of, data), ledger_id):
            found.update(zip(one.entry_ids, map(split_location, one.locations), strict=True))
        shown = re.findall(r"entry (\d+)\s*:\s*\(log:\s*(\d+), pos: (\d+)\)", output)
        assert {int(entry_id): (int(log), int(at)) for entry_id, log, at in shown} == found
        assert len(found) == count


@proves(11, "they read our entry logs")
def test_java_reads_our_entry_logs_entry_for_entry(ours: Files) -> None:
    assert len(ours.logs) > 1
    check_logs(ours)


@proves(11, "ours read theirs")
def test_our_tools_read_their_files_as_java_does(theirs: Files) -> None:
    check_journals(theirs)
    check_logs(theirs)
    check_mark(theirs)
