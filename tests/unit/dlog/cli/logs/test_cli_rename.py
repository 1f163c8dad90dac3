"""`dlog log rename`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlog.cli.main import main


@pytest.mark.slow
def test_the_command_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLOG_URI", f"file://{tmp_path}")
    assert main(["log", "create", "one", "taken"]) == 0
    assert main(["log", "rename", "one", "shop/two"]) == 0
    assert "renamed one to shop/two" in capfd.readouterr().err
    assert main(["log", "rename", "shop/two", "three", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"old": "shop/two", "new": "three"}
    for arguments, code, message in [
        (("one", "four"), 3, "it was renamed to 'shop/two'; open it by that name"),
        (("three", "taken"), 4, "choose another new name"),
        (("three", "three"), 5, "its name already"),
        (("three", "a b"), 2, "is not allowed"),
    ]:
        assert main(["log", "rename", *arguments]) == code
        assert message in capfd.readouterr().err
    assert main(["log", "list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == ["taken", "three"]
