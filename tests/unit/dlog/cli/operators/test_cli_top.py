"""`dlog top` with the arguments of a shell, on a directory."""

# covers: dlog/cli/operators/top.py

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlog.cli.main import main
from dlog.cli.operators.top import _tables

pytestmark = pytest.mark.slow


def test_one_look_shows_bookies_and_logs_with_rates(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = (tmp_path / "namespace").as_uri()
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"first\nsecond\n")
    assert main(["write", "orders", str(lines), "--create", "--uri", uri]) == 0
    capfd.readouterr()
    assert main(["top", "--once", "--json", "--uri", uri]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [each["state"] for each in found["overview"]["bookies"]] == ["writable"]
    assert [(each["name"], each["records"]) for each in found["streams"]["streams"]] == [("orders", 2)]
    # The second look knows the rate.
    assert [each["records_per_s"] for each in found["streams"]["streams"]] == [0.0]
    assert main(["top", "--once", "--uri", uri]) == 0
    shown = capfd.readouterr().out
    assert "0 under-replicated ledgers" in shown
    assert "orders" in shown
    # A running balance is on the first line.
    balance = {"host": "ops1", "began_ms": 5, "moves": 9, "moves_done": 4, "bytes": 9, "bytes_done": 4}
    found["overview"]["balance"] = balance
    assert "a balance runs: 4 of 9 moves" in _tables(found)[0]
