"""`dlog bookie rebuild-index`, `check` and `show-ledger` on the directories of a stopped bookie."""

# covers: bookie/damage/conversion_check.py
# covers: bookie/offline/index_places.py
# covers: bookie/offline/index_source.py
# covers: dlog/cli/operators/bookie/command.py

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from bookie.config.bookie_config import load_config
from bookie.disk.real_disk import RealDisk
from bookie.ledger_record import UNKNOWN_KEY
from bookie.storage.opening import open_storage
from bookie.storage.storage import Storage
from dlog.cli.main import main
from tests.places import GOLDEN_FILES

GOLDEN = GOLDEN_FILES / "bookie_files"


@attrs.frozen
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        (line,) = self.out.splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


Dlog = Callable[..., CommandResult]


@pytest.fixture
def dlog(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dlog:
    monkeypatch.delenv("DLOG_DEBUG", raising=False)

    def run(*arguments: str) -> CommandResult:
        code = main(arguments)
        captured = capfd.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A stopped bookie's configuration: ledgers 1 (entries 0 to 9) and 2 (entry 5, fenced)."""
    path = tmp_path / "bk_server.conf"
    path.write_text(
        "metadataServiceUri=zk+null://localhost:1/ledgers\n"
        f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n"
    )

    async def fill(storage: Storage) -> None:
        batch = storage.new_batch()
        first = storage.create_ledger(batch, 1, b"key one")
        for entry_id in range(10):
            storage.stage_entry(batch, first, entry_id, entry_id - 1, body(1, entry_id))
        second = storage.create_ledger(batch, 2, b"key two")
        storage.stage_entry(batch, second, 5, 4, body(2, 5))
        storage.stage_fence(batch, second)
        storage.submit(batch, lambda error: None)

    served(path, fill)
    return path


def body(ledger_id: int, entry_id: int) -> bytes:
    numbers = (ledger_id, entry_id, entry_id - 1, 0)
    return b"".join(n.to_bytes(8, "big", signed=True) for n in numbers) + b"payload"


def served(path: Path, work: Callable[[Storage], Any]) -> None:
    async def serve() -> None:
        async with open_storage(RealDisk(), load_config(path).storage) as storage:
            await work(storage)

    trio.run(serve)


@pytest.mark.slow
def test_a_lost_index_is_rebuilt_and_reported(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "ledgers/current/index")
    result = dlog("bookie", "rebuild-index", "--config", str(config), "--json")
    assert result.code == 0
    (found,) = result.document["directories"]
    assert (found["entries"], found["ledgers"], found["fenced_ledgers"]) == (11, 2, 2)
    assert (found["damage"], found["entry_logs"]) == ([], 1)

    async def check(storage: Storage) -> None:
        assert await storage.entry_ids(1) == list(range(10))
        record = storage.ledger(1)
        assert record is not None
        assert (record.fenced, record.master_key) == (True, UNKNOWN_KEY)
        assert await storage.read(2, 5) == body(2, 5)

    served(config, check)


@pytest.mark.slow
def test_the_index_becomes_apaches_databases_and_ours_again(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    result = dlog("bookie", "convert-index", "--to", "databases", "--accept-damage", "--config", str(config))
    assert result.code == 2
    assert "cannot be made from a damaged entry log" in result.err
    result = dlog("bookie", "convert-index", "--to", "databases", "--config", str(config))
    assert result.code == 0, result.err
    assert "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage" in result.err
    assert (tmp_path / "ledgers/current/locations/CURRENT").read_bytes().startswith(b"MANIFEST-")
    checked = dlog("bookie", "check", "--config", str(config), "--json")
    assert (checked.code, checked.document["problems"]) == (0, 0)
    assert checked.document["directories"][0]["entries"] > 0
    result = dlog("bookie", "convert-index", "--to", "pages", "--config", str(config), "--json")
    assert result.document["directories"][0]["fenced_ledgers"] == 0
    served(config, lambda storage: storage.flush())


@pytest.mark.slow
def test_the_index_is_replaced_by_the_other_kind(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    result = dlog("bookie", "convert-index", "--to", "chunks", "--config", str(config))
    assert result.code == 0
    assert "fenced ledgers" in result.out
    assert "needs ledgerStorageClass=DbLedgerStorage" in result.err
    assert not (tmp_path / "ledgers/current/0/1/1.idx").exists()
    absent_key = config.read_text()
    config.write_text(absent_key + "ledgerStorageClass=DbLedgerStorage\n")
    served(config, lambda storage: storage.flush())
    result = dlog("bookie", "convert-index", "--to", "pages", "--config", str(config))
    assert result.code == 0
    assert (tmp_path / "ledgers/current/0/1/1.idx").exists()
    config.write_text(absent_key)

    async def check(storage: Storage) -> None:
        first, second = storage.ledger(1), storage.ledger(2)
        assert first is not None
        assert second is not None
        assert (first.fenced, second.fenced, first.master_key) == (False, True, b"key one")
        assert await storage.read(1, 9) == body(1, 9)

    served(config, check)


@pytest.mark.slow
def test_a_damaged_entry_log_stops_the_rebuild_with_its_code(
    dlog: Dlog, config: Path, tmp_path: Path
) -> None:
    log = tmp_path / "ledgers/current/0.log"
    data = bytearray(log.read_bytes())
    data[1024:1028] = b"\xff\xff\xff\x00"
    log.write_bytes(data)
    result = dlog("bookie", "rebuild-index", "--config", str(config))
    assert result.code == 7
    assert "0.log: length" in result.err
    result = dlog("bookie", "rebuild-index", "--config", str(config), "--accept-damage", "--json")
    assert result.code == 0
    assert len(result.document["directories"][0]["damage"]) == 1


@pytest.mark.slow
def test_the_check_finds_a_missing_entry(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    result = dlog("bookie", "check", "--config", str(config), "--json")
    assert (result.code, result.document["problems"]) == (0, 0)
    assert result.document["directories"][0]["entries"] == 11
    log = tmp_path / "ledgers/current/0.log"
    log.write_bytes(log.read_bytes()[:1100])
    result = dlog("bookie", "check", "--config", str(config))
    assert result.code == 7
    assert "entry 1:9" in result.err
    assert "problems" in result.out


@pytest.mark.slow
def test_a_ledger_is_shown_without_its_key(dlog: Dlog, config: Path) -> None:
    result = dlog("bookie", "show-ledger", "2", "--config", str(config), "--json", "--entries")
    ledger, entry = map(json.loads, result.out.splitlines())
    assert (ledger["fenced"], ledger["entries"], ledger["last_entry"], ledger["lac"]) == (True, 1, 5, 4)
    assert (entry["entry_id"], entry["log"]) == (5, "0.log")
    assert "key two" not in result.out
    assert dlog("bookie", "show-ledger", "2", "--config", str(config)).code == 0
    assert dlog("bookie", "show-ledger", "77", "--config", str(config)).code == 3


def test_an_index_file_is_read_by_either_name(dlog: Dlog, tmp_path: Path) -> None:
    for command in (("inspect", "index"), ("bookie", "read-index")):
        for name in ("4.17.3-Sorted-restarted", "4.18.0-Interleaved-restarted"):
            first, *lines = (GOLDEN / f"{name}-2.idx.hex").read_text().splitlines()
            data = bytearray(int(first.removeprefix("size ")))
            for line in lines:
                offset, content = line.split()
                data[int(offset, 16) : int(offset, 16) + len(content) // 2] = bytes.fromhex(content)
            file = tmp_path / "2.idx"
            file.write_bytes(data)
            result = dlog(*command, str(file), "--json")
            header, *entries = map(json.loads, result.out.splitlines())
            assert header == {"ledger": 2, "has_master_key": True, "fenced": False, "explicit_lac": 1}
            assert [entry["entry_id"] for entry in entries] == [0, 1, 2, 3]
            assert dlog(*command, str(file)).out.count("entry ") == 4
    file.write_bytes(b"nothing of the kind")
    assert dlog("inspect", "index", str(file)).code == 7
    wrong = tmp_path / "2.log"
    wrong.write_bytes(b"")
    assert dlog("inspect", "index", str(wrong)).code == 2


@pytest.mark.slow
def test_inspect_commands_have_the_names_of_apaches_shell(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    (journal,) = (tmp_path / "journal/current").glob("*.txn")
    result = dlog("bookie", "read-log", str(tmp_path / "ledgers/current/0.log"), "--json")
    assert len(result.out.splitlines()) == 11
    assert dlog("bookie", "read-journal", str(journal), "--json").code == 0


@pytest.mark.slow
def test_a_running_bookie_is_not_changed(dlog: Dlog, config: Path) -> None:
    results = []

    async def meanwhile(storage: Storage) -> None:
        await storage.flush()
        results.append(dlog("bookie", "rebuild-index", "--config", str(config)))
        results.append(dlog("bookie", "check", "--config", str(config)))
        results.append(dlog("bookie", "show-ledger", "1", "--config", str(config), "--json"))

    served(config, meanwhile)
    assert [result.code for result in results] == [5, 5, 0]
    assert "in use by another process" in results[0].err
    assert "the bookie runs" in results[2].err
    assert results[2].document["entries"] == 10


def test_a_wrong_command_line_does_nothing(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    assert dlog("bookie").code == 2
    assert dlog("bookie", "rebuild-index").code == 2
    assert dlog("bookie", "--config", str(config), "rebuild-index").code == 2
    config.write_text(config.read_text().replace("/ledgers\n", "/elsewhere\n"))
    assert dlog("bookie", "rebuild-index", "--config", str(config)).code in (2, 3)
    assert not (tmp_path / "elsewhere").exists()
