"""`dlog log orphans`, called with the arguments of a shell."""

# covers: dlog/cli/logs/orphans.py

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

import dlog
from dlog.cli.main import main
from dlog.context import EMBEDDED_NAMESPACE_PATH
from ledger.policy import LogMark

Run = pytest.CaptureFixture[str]
pytestmark = pytest.mark.slow


@pytest.fixture
def ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Run) -> tuple[int, int]:
    """Two ledgers of no log beside a log of one segment: one with the mark of a log, and one without."""
    uri = (tmp_path / "namespace").as_uri()
    monkeypatch.setenv("DLOG_URI", uri)
    line = tmp_path / "line.txt"
    line.write_text("0\n")
    assert main(["write", "orders", str(line), "--create"]) == 0
    capfd.readouterr()

    async def make() -> tuple[int, int]:
        async with dlog.open_namespace(uri) as namespace:
            ids = []
            for custom in (LogMark(EMBEDDED_NAMESPACE_PATH, "orders").custom, None):
                made = await namespace.context.client.create(
                    ensemble_size=1, write_quorum=1, ack_quorum=1, custom=custom
                )
                await made.close()
                ids.append(made.ledger_id)
            return ids[0], ids[1]

    return trio.run(make)


def found(capfd: Run, *arguments: str) -> list[int]:
    assert main(["log", "orphans", "--older-than", "0", "--json", *arguments]) == 0
    return [each["ledger_id"] for each in json.loads(capfd.readouterr().out)]


def test_orphans_are_listed_and_deleted_after_a_question(
    ledgers: tuple[int, int], capfd: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked, unmarked = ledgers
    assert main(["log", "orphans"]) == 0
    assert capfd.readouterr().err == "no orphan ledgers\n"
    assert found(capfd) == [marked, unmarked]
    assert found(capfd, "--read-only") == [marked, unmarked]
    assert main(["log", "orphans", "--older-than", "0"]) == 0
    assert "this namespace" in capfd.readouterr().out
    monkeypatch.setattr("click.confirm", lambda *_args, **_more: pytest.fail("asked"))
    assert main(["log", "orphans", "--older-than", "0", "--delete", "--yes", "--json"]) == 0
    (outcome,) = json.loads(capfd.readouterr().out)
    assert outcome == {"ledger_id": marked, "is_deleted": True, "reason": ""}
    assert found(capfd) == [unmarked]
    asked: list[str] = []

    def yes(text: str, **_more: object) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr("click.confirm", yes)
    assert main(["log", "orphans", str(unmarked), "--older-than", "0", "--delete"]) == 0
    assert asked == ["Delete 1 ledger permanently?"]
    capfd.readouterr()
    assert found(capfd) == []
    capfd.readouterr()
    assert main(["read", "orders"]) == 0
    assert capfd.readouterr().out == "0\n"


def test_a_ledger_that_a_log_needs_is_kept_although_it_is_named(ledgers: tuple[int, int], capfd: Run) -> None:
    assert main(["log", "orphans", "0", "--older-than", "0", "--delete", "--yes"]) == 1
    assert "ledger 0 was kept: a log names it" in capfd.readouterr().err
    for wrong in (["--yes"], ["--delete", "--read-only"], ["--older-than", "soon"]):
        assert main(["log", "orphans", *wrong]) == 2
