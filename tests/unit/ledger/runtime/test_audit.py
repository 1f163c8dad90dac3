"""The audit log: what is recorded, what an act may not do without a record, and attacks on the file."""

# covers: ledger/runtime/own_user.py

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog
from dlog.cli.main import main
from ledger.errors import AuditError
from ledger.runtime.audit import FILE_VARIABLE, audited, audited_async


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "audit.log"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    return path


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_says_when_by_whom_what_and_with_which_result(file: Path) -> None:
    with audited("delete log", "orders"):
        pass
    with pytest.raises(KeyError), audited("delete log", "orders", identity="HTTP 192.0.2.1"):
        raise KeyError("gone")
    done, failed = lines_of(file)
    assert sorted(done) == ["act", "identity", "pid", "result", "target", "time"]
    assert done["time"].endswith("Z")
    assert (done["act"], done["target"], done["result"], done["pid"]) == (
        "delete log",
        "orders",
        "done",
        os.getpid(),
    )
    assert "@" in done["identity"]
    assert (failed["identity"], failed["result"]) == ("HTTP 192.0.2.1", "failed: KeyError: 'gone'")
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_cancelled_act_is_recorded(file: Path) -> None:
    with trio.CancelScope() as scope:
        async with audited_async("delete log", "orders"):
            scope.cancel()
            await trio.lowlevel.checkpoint()
    (line,) = lines_of(file)
    assert line["result"] == "cancelled"


def test_a_target_adds_no_line_and_no_control_character(file: Path) -> None:
    with audited("delete log", 'a\n{"act": "forged"}\x1b[2J\u202e' + "x" * 10_000):
        pass
    (line,) = lines_of(file)
    assert line["target"].startswith("a\n{")
    text = file.read_text()
    assert text.isascii()
    assert "\x1b" not in text
    assert len(text) < 6_000


def plant(kind: str, file: Path, victim: Path) -> None:
    if kind == "link":
        file.symlink_to(victim)
    else:
        file.mkdir()


@pytest.mark.parametrize("kind", ["link", "directory"])
async def test_an_act_that_cannot_be_recorded_does_not_begin(kind: str, file: Path, tmp_path: Path) -> None:
    """A planted link leads no line into another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    plant(kind, file, victim)
    acts = []
    with pytest.raises(AuditError, match="nothing was done"), audited("delete log", "orders"):
        acts.append("sync")
    with pytest.raises(AuditError, match="nothing was done"):
        async with audited_async("delete log", "orders"):
            acts.append("async")
    uri = (tmp_path / "namespace").as_uri()
    async with dlog.open_namespace(uri) as namespace:
        await namespace.create_log("orders")
        with pytest.raises(dlog.DLogError, match="nothing was done"):
            await namespace.delete_log("orders")
        assert await namespace.list_logs() == ["orders"]
    assert acts == []
    assert victim.read_text() == "precious\n"


def test_without_a_file_the_logger_gets_the_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    caplog.set_level(logging.INFO, logger="dlog.audit")
    with audited("delete log", "orders"):
        pass
    (record,) = caplog.records
    assert json.loads(record.message)["target"] == "orders"


@pytest.mark.slow
def test_commands_that_change_things_are_recorded_and_readers_are_not(file: Path, tmp_path: Path) -> None:
    uri = (tmp_path / "namespace").as_uri()
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    assert main(["log", "create", "orders", "--uri", uri]) == 0
    assert main(["write", "orders", str(lines), "--uri", uri]) == 0
    assert main(["read", "orders", "--uri", uri]) == 0
    assert main(["log", "list", "--uri", uri]) == 0
    assert main(["log", "purge", "orders", "--dry-run", "--uri", uri]) == 0
    assert not file.exists()
    assert main(["log", "truncate", "orders", "--before", "latest", "--uri", uri]) == 0
    assert main(["log", "purge", "orders", "--uri", uri]) == 0
    assert main(["ledger", "read", "0", "--recover", "--service", uri]) == 0
    assert main(["log", "delete", "orders", "--yes", "--uri", uri]) == 0
    assert main(["log", "delete", "orders", "--yes", "--uri", uri]) == 3
    assert [(line["act"], line["result"].partition(":")[0]) for line in lines_of(file)] == [
        ("truncate log", "done"),
        ("purge log", "done"),
        ("recover ledger", "done"),
        ("delete log", "done"),
        ("delete log", "failed"),
    ]
