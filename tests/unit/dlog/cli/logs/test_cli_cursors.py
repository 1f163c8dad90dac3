"""`dlog cursor`, `dlog log retention` and `dlog log retain`, called with the arguments of a shell."""

# covers: dlog/cli/logs/cursor.py
# covers: dlog/cli/logs/retention.py
# covers: dlog/cli/terminal/amounts.py

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from dlog.cli.main import main
from dlog.cli.terminal.amounts import age_text, parse_age, parse_size, size_text

Run = pytest.CaptureFixture[str]


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Run) -> None:
    """A log of three records, each in a segment of its own."""
    monkeypatch.setenv("DLOG_URI", (tmp_path / "namespace").as_uri())
    line = tmp_path / "line.txt"
    for number in range(3):
        line.write_text(f"{number}\n")
        assert main(["write", "orders", str(line), "--create", "--txid-from", str(number)]) == 0
    capfd.readouterr()


@pytest.mark.slow
def test_cursors_are_set_listed_shown_and_deleted(orders: None, capfd: Run) -> None:
    assert main(["cursor", "list", "orders", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == []
    assert main(["cursor", "set", "orders", "billing", "--at", "2:0:0"]) == 0
    assert main(["cursor", "set", "orders", "audit", "--at", "earliest"]) == 0
    assert main(["cursor", "set", "orders", "new", "--at", "latest"]) == 0
    capfd.readouterr()
    assert main(["cursor", "list", "orders", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [(each["cursor"], each["lag"]) for each in found] == [("audit", 3), ("billing", 2), ("new", 0)]
    assert main(["cursor", "show", "orders", "billing", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"cursor": "billing", "position": "2:0:0", "lag": 2}
    assert main(["cursor", "list", "orders"]) == 0
    assert "billing" in capfd.readouterr().out
    assert main(["cursor", "show", "orders", "billing"]) == 0
    assert "2:0:0" in capfd.readouterr().out
    assert main(["cursor", "delete", "orders", "billing", "nothing"]) == 0
    assert capfd.readouterr().err == "deleted cursor billing\nthere is no cursor nothing\n"
    assert main(["cursor", "show", "orders", "billing"]) == 3
    assert "dlog cursor list orders" in capfd.readouterr().err


@pytest.mark.slow
def test_retention_is_shown_set_applied_and_removed(orders: None, capfd: Run) -> None:
    assert main(["log", "retention", "orders"]) == 0
    assert "until they are truncated" in capfd.readouterr().err
    assert main(["log", "retention", "orders", "--size", "2", "--keep-unread", "--json"]) == 0
    rule = {"age_s": None, "size_bytes": 2, "keep_unread": True}
    assert json.loads(capfd.readouterr().out) == rule
    assert main(["log", "retention", "orders"]) == 0
    assert "2B" in capfd.readouterr().out
    assert main(["cursor", "set", "orders", "billing", "--at", "2:0:0"]) == 0
    capfd.readouterr()
    assert main(["log", "retain", "--all", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"orders": 1}
    assert main(["log", "retention", "orders", "--age", "7d", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"age_s": 604800, "size_bytes": None, "keep_unread": False}
    assert main(["log", "retain", "orders", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"orders": 0}
    assert main(["log", "retention", "orders", "--forever", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) is None


BAD_ARGUMENTS: list[tuple[list[str], int]] = [
    (["cursor", "list", "nothing"], 3),
    (["cursor", "set", "orders", "a/b", "--at", "earliest"], 2),
    (["cursor", "set", "orders", "a", "--at", "17"], 2),
    (["log", "retention", "nothing", "--age", "1d"], 3),
    (["log", "retention", "orders", "--age", "0d"], 2),
    (["log", "retention", "orders", "--age", "7"], 2),
    (["log", "retention", "orders", "--age", "999999999w"], 2),
    (["log", "retention", "orders", "--size", "-1"], 2),
    (["log", "retention", "orders", "--size", "1X"], 2),
    (["log", "retention", "orders", "--forever", "--age", "1d"], 2),
    (["log", "retain"], 2),
    (["log", "retain", "orders", "--all"], 2),
    (["log", "retain", "nothing"], 3),
]


@pytest.mark.slow
def test_bad_arguments_are_refused_and_change_nothing(orders: None, capfd: Run) -> None:
    for arguments, code in BAD_ARGUMENTS:
        assert main(arguments) == code, arguments
        assert capfd.readouterr().err, arguments
        assert main(["log", "retention", "orders", "--json"]) == 0
        assert json.loads(capfd.readouterr().out) is None, arguments


def test_ages_and_sizes_have_units() -> None:
    assert [parse_age(text) for text in ("90s", "2m", "36h", "7d", "1w")] == [
        datetime.timedelta(seconds=each) for each in (90, 120, 129_600, 604_800, 604_800)
    ]
    sizes = [parse_size(text) for text in ("1000", "2K", "3MB", "4GiB", "5T")]
    assert sizes == [1000, 2 << 10, 3 << 20, 4 << 30, 5 << 40]


def test_ages_and_sizes_are_shown_as_the_options_take_them() -> None:
    ages = [age_text(each) for each in (90, 120.0, 129_600.0, 604_800, 0.5)]
    assert ages == ["90s", "2m", "36h", "7d", "0.5s"]
    sizes = [1000, 2 << 10, 3 << 20, 5 << 40, (1 << 30) + 1]
    texts = [size_text(each) for each in sizes]
    assert texts == ["1000B", "2KiB", "3MiB", "5TiB", "1073741825B"]
    assert [parse_size(each) for each in texts] == sizes
