"""`dlog bookie rebuild-index` and its neighbours: directories of a bookie that does not run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from bookie.config import load_config
from bookie.disk import RealDisk
from bookie.ledgers import UNKNOWN_KEY
from bookie.storage import Storage, open_storage
from dlog.cli.main import main


@attrs.frozen
class Answer:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        (line,) = self.out.splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found


Dlog = Callable[..., Answer]


@pytest.fixture
def dlog(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dlog:
    monkeypatch.delenv("DLOG_DEBUG", raising=False)

    def run(*arguments: str) -> Answer:
        code = main(arguments)
        captured = capfd.readouterr()
        return Answer(code, captured.out, captured.err)

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
        first = storage.create_ledger(1, b"key one")
        for entry_id in range(10):
            storage.stage_entry(first, entry_id, entry_id - 1, body(1, entry_id))
        second = storage.create_ledger(2, b"key two")
        storage.stage_entry(second, 5, 4, body(2, 5))
        storage.stage_fence(second)
        storage.submit(lambda error: None)

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


def test_a_lost_index_is_rebuilt_and_told_of(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "ledgers/current/index")
    answer = dlog("bookie", "rebuild-index", "--config", str(config), "--json")
    assert answer.code == 0
    (found,) = answer.document["directories"]
    assert (found["entries"], found["ledgers"], found["fenced_ledgers"]) == (11, 2, 2)
    assert (found["damage"], found["entry_logs"]) == ([], 1)

    async def check(storage: Storage) -> None:
        assert await storage.entry_ids(1) == list(range(10))
        record = storage.ledger(1)
        assert record is not None
        assert (record.fenced, record.master_key) == (True, UNKNOWN_KEY)
        assert await storage.read(2, 5) == body(2, 5)

    served(config, check)


def test_the_index_is_exchanged_for_the_other_kind(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text() + "ledgerStorageClass=SortedLedgerStorage\n")
    answer = dlog("bookie", "rebuild-index", "--config", str(config))
    assert answer.code == 0
    assert "fenced ledgers" in answer.out
    assert (tmp_path / "ledgers/current/0/1/1.idx").exists()

    async def check(storage: Storage) -> None:
        first, second = storage.ledger(1), storage.ledger(2)
        assert first is not None
        assert second is not None
        assert (first.fenced, second.fenced, first.master_key) == (False, True, b"key one")
        assert await storage.read(1, 9) == body(1, 9)

    served(config, check)


def test_damage_changes_nothing_and_has_its_code(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    log = tmp_path / "ledgers/current/0.log"
    data = bytearray(log.read_bytes())
    data[1024:1028] = b"\xff\xff\xff\x00"
    log.write_bytes(data)
    answer = dlog("bookie", "rebuild-index", "--config", str(config))
    assert answer.code == 7
    assert "0.log: length" in answer.err
    answer = dlog("bookie", "rebuild-index", "--config", str(config), "--accept-damage", "--json")
    assert answer.code == 0
    assert len(answer.document["directories"][0]["damage"]) == 1


def test_a_running_bookie_is_left_alone(dlog: Dlog, config: Path) -> None:
    answers = []

    async def meanwhile(storage: Storage) -> None:
        answers.append(dlog("bookie", "rebuild-index", "--config", str(config)))

    served(config, meanwhile)
    assert answers[0].code == 5
    assert "in use by another process" in answers[0].err


def test_a_wrong_command_line_does_nothing(dlog: Dlog, config: Path, tmp_path: Path) -> None:
    assert dlog("bookie").code == 2
    assert dlog("bookie", "rebuild-index").code == 2
    assert dlog("bookie", "--config", str(config), "rebuild-index").code == 2
    config.write_text(config.read_text().replace("/ledgers\n", "/elsewhere\n"))
    assert dlog("bookie", "rebuild-index", "--config", str(config)).code in (2, 3)
    assert not (tmp_path / "elsewhere").exists()
