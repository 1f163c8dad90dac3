"""`dlog log properties` and patterns of `dlog log list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dlog
import dlog.blocking
from dlog.cli.main import main


@pytest.mark.slow
def test_properties_and_names_are_shown_and_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLOG_URI", f"file://{tmp_path}")
    assert main(["log", "create", "orders-1", "orders-2", "old/orders-3", "bills"]) == 0
    capfd.readouterr()
    assert main(["log", "properties", "bills"]) == 0
    assert capfd.readouterr().err == "bills has no properties\n"
    assert main(["log", "properties", "bills", "owner=shop", "note=a=b", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"note": "a=b", "owner": "shop"}
    assert main(["log", "properties", "bills", "--delete", "note"]) == 0
    assert capfd.readouterr().out.split() == ["owner", "shop"]
    assert main(["log", "properties", "bills", "owner"]) == 2
    assert "is no KEY=VALUE" in capfd.readouterr().err
    assert main(["log", "properties", "bills", "a=1", "--delete", "a"]) == 2
    assert main(["log", "properties", "nothing"]) == 3
    capfd.readouterr()
    for pattern, names in [
        ("orders-*", ["orders-1", "orders-2"]),
        ("*orders-?", ["old/orders-3", "orders-1", "orders-2"]),
        ("orders-[2-9]", ["orders-2"]),
        ("ORDERS*", []),
        ("old", ["old/orders-3"]),
    ]:
        assert main(["log", "list", pattern, "--json"]) == 0
        assert json.loads(capfd.readouterr().out) == names
    with dlog.blocking.open_namespace(f"file://{tmp_path}") as namespace:
        assert namespace.list_logs("old", pattern="*-3") == ["old/orders-3"]
        seen = namespace.properties.get("bills")
        assert namespace.properties.change("bills", {"owner": None}, expected=seen).values == {}
        with pytest.raises(dlog.PropertiesConflictError):
            namespace.properties.change("bills", {"owner": "x"}, expected=seen)
        namespace.delete_log("bills")
