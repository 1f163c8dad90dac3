"""`dlog log check|repair|recover|heal`, called with the arguments of a shell."""

# covers: dlog/cli/logs/repair.py

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

import dlog
import dlog.blocking
from dlog.cli.main import main
from dlog.context import EMBEDDED_NAMESPACE_PATH
from tests.fakes.log_paths import paths_of

Run = pytest.CaptureFixture[str]
pytestmark = pytest.mark.slow


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Run) -> str:
    """A namespace with a log of two segments."""
    uri = (tmp_path / "namespace").as_uri()
    monkeypatch.setenv("DLOG_URI", uri)
    line = tmp_path / "line.txt"
    line.write_text("0\n")
    for _ in range(2):
        assert main(["write", "orders", str(line), "--create"]) == 0
    capfd.readouterr()
    return uri


def put(uri: str, path: str, value: bytes) -> None:
    async def go() -> None:
        async with dlog.open_namespace(uri) as namespace:
            await namespace.context.store.put(path, value)

    trio.run(go)


def test_a_damaged_log_is_checked_and_repaired_after_a_question(
    uri: str, capfd: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["log", "check", "orders", "--read-only"]) == 0
    assert "consistent" in capfd.readouterr().err
    assert main(["log", "repair", "orders", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["done"] == []
    put(uri, paths_of(EMBEDDED_NAMESPACE_PATH, "orders").segments_path, b"1")
    put(uri, paths_of(EMBEDDED_NAMESPACE_PATH, "orders").max_txid_path, b"?")
    # 1 is less than the greatest number, 2; writers would refuse the log after its next segment.
    assert main(["log", "check", "orders", "--metadata-only", "--json"]) == 7
    (found,) = json.loads(capfd.readouterr().out)
    assert [each["kind"] for each in found["findings"]] == ["max_seqno_wrong", "max_txid_wrong"]
    assert found["findings"][0]["repair"] == "write 2"
    asked: list[str] = []

    def yes(text: str, **_more: object) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr("click.confirm", yes)
    assert main(["log", "repair", "orders"]) == 0
    assert asked == ["Repair orders like this?"]
    assert "orders: done: write 2" in capfd.readouterr().err
    assert main(["log", "check", "orders"]) == 0
    with dlog.blocking.open_namespace(uri) as namespace:
        assert namespace.repair.check("orders").is_consistent
        assert namespace.repair.apply("orders").done == ()
        assert namespace.repair.recover("orders") == []


def test_what_cannot_be_repaired_is_told_with_the_exit_code(uri: str, capfd: Run) -> None:
    put(uri, paths_of(EMBEDDED_NAMESPACE_PATH, "orders").segments_path, b"9")
    assert main(["log", "repair", "orders", "--yes"]) == 7
    printed = capfd.readouterr().err
    assert "not repairable: segments 3 to 9 may be lost" in printed
    assert "nothing to repair" in printed


def test_a_log_is_recovered_and_one_with_a_writer_is_refused(uri: str, capfd: Run) -> None:
    assert main(["log", "recover", "orders", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"orders": []}
    assert main(["log", "heal", "orders", "--keep", "0", "--json"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out) == {"orders": []}
    assert "orders: healed 0 segments" in printed.err
    with dlog.blocking.open_namespace(uri) as namespace, namespace.open_writer("orders"):
        for command in ("recover", "repair"):
            arguments = ["log", command, "orders", *(["--yes"] if command == "repair" else [])]
            put_back = paths_of(EMBEDDED_NAMESPACE_PATH, "orders").max_txid_path
            if command == "repair":
                put(uri, put_back, b"0")
            assert main(arguments) == 5
    assert main(["log", "check", "nothing"]) == 3
