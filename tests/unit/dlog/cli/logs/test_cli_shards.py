"""`dlog log create --shards` and `dlog log delete --sharded`."""

from __future__ import annotations

import pytest

from dlog.cli.main import main
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.testing import open_world


def test_a_sharded_log_is_created_once_and_deleted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_world() as world:
        monkeypatch.setenv("DLOG_URI", world.uri)
        assert main(["log", "create", "s", "--shards", "2"]) == 0
        assert capfd.readouterr().err == "created s with 2 shards\n"
        assert main(["log", "list"]) == 0
        assert capfd.readouterr().out.split() == ["s/shard-00000", "s/shard-00001"]
        assert main(["log", "create", "s", "--shards", "2"]) == ExitCode.EXISTS
        assert main(["log", "create", "s", "--shards", "2", "--exist-ok"]) == 0
        capfd.readouterr()
        assert main(["log", "create", "s", "--shards", "3", "--exist-ok"]) == ExitCode.EXISTS
        assert "has 2 shards, not 3" in capfd.readouterr().err
        assert main(["log", "create", "s", "--shards", "0"]) == ExitCode.USAGE
        assert main(["log", "delete", "s", "--sharded", "--yes"]) == 0
        capfd.readouterr()
        assert main(["log", "delete", "s", "--sharded", "--yes"]) == ExitCode.NOT_FOUND
        assert "no sharded log" in capfd.readouterr().err
        assert main(["log", "list"]) == 0
        assert capfd.readouterr().out == ""
