"""``dlog promote``: options, output and exit codes, from one directory to another."""

# covers: dlog/cli/logs/promote.py

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dlog
import dlog.blocking
from dlog.cli.main import main
from dlog.cli.terminal.exit_codes import ExitCode


@pytest.fixture
def source(tmp_path: Path) -> str:
    uri = (tmp_path / "old").as_uri()
    with dlog.blocking.open_namespace(uri) as namespace:
        for log in ("orders", "returns"):
            with namespace.open_writer(log, create=True) as writer:
                writer.append_many([b"1", b"2", b"3"])
    return uri


@pytest.mark.slow
def test_logs_are_promoted_shown_and_purged(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = (tmp_path / "new").as_uri()
    assert main(["promote", source, "--status"]) == ExitCode.OK
    assert "no log is promoted" in capsys.readouterr().err
    assert main(["promote", source, "--to", target, "--log", "orders", "--json"]) == ExitCode.OK
    printed = capsys.readouterr()
    (status,) = json.loads(printed.out)
    assert status == {
        "log": "orders",
        "target": target,
        "phase": "done",
        "is_purged": False,
        "segments": 1,
        "segments_copied": 1,
        "takes_records": target,
    }
    assert "orders: copy segments, then hand over" in printed.err
    assert main(["promote", source, "--undo", "--log", "orders"]) == ExitCode.IN_USE
    assert "cannot be undone" in capsys.readouterr().err
    assert main(["promote", source, "--to", target]) == ExitCode.OK, "those that are left"
    assert "target" in capsys.readouterr().out
    assert main(["promote", source, "--purge", "--yes", "--json"]) == ExitCode.OK
    assert [each["is_purged"] for each in json.loads(capsys.readouterr().out)] == [True, True]
    with dlog.blocking.open_namespace(target) as namespace:
        assert [namespace.count_records(log) for log in ("orders", "returns")] == [3, 3]
    with dlog.blocking.open_namespace(source) as namespace:
        status_now = namespace.promotion.status("orders")
        assert status_now is not None
        assert (status_now.segments, status_now.is_purged) == (0, True)
        assert namespace.count_records("orders") == 3


@pytest.mark.slow
def test_a_log_at_the_target_and_a_promotion_to_undo_have_their_exit_codes(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = (tmp_path / "new").as_uri()
    with dlog.blocking.open_namespace(target) as namespace:
        namespace.create_log("orders")
    assert main(["promote", source, "--to", target, "--log", "orders"]) == ExitCode.EXISTS
    assert main(["promote", source, "--to", target, "--log", "absent"]) == ExitCode.NOT_FOUND
    assert main(["promote", source, "--undo", "--log", "orders"]) == ExitCode.IN_USE
    assert "nothing to undo" in capsys.readouterr().err
    assert main(["promote", source, "--undo", "--to", target, "--log", "returns"]) == ExitCode.OK
    capsys.readouterr()
    assert main(["promote", source, "--resume", "--json"]) == ExitCode.OK
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--to", "file:///x", "--status"],
        ["--to", "file:///x", "--resume"],
        ["--to", "file:///x", "--purge"],
    ],
)
def test_options_that_exclude_each_other_are_refused(options: list[str]) -> None:
    assert main(["promote", "file:///nowhere", *options]) == ExitCode.USAGE
    assert not Path("/nowhere").exists()
