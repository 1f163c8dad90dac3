"""`dlog cluster --hosts`: options, output and exit codes; `dlog zookeeper`."""

# covers: dlog/cli/running/hosts.py
# covers: dlog/cli/running/zookeeper.py

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlog.cli.main import main
from dlog.cli.terminal.exit_codes import ExitCode

# It stands for `dlog` on each host. It fails for what the file "failing" names.
DLOG = """#!/bin/sh
case "$*" in *"$(cat "{failing}")"*) echo "dlog: a reason" >&2; exit 1;; esac
case "$1 $2" in
    "daemon status") echo '[]';;
    "daemon start") echo '{{"pid": 7, "log": "/a.log"}}';;
esac
"""


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """The file with the words of the commands that fail."""
    program, path = tmp_path / "dlog", tmp_path / "failing"
    program.write_text(DLOG.format(failing=path))
    program.chmod(0o755)
    path.write_text("nothing")
    host = f'[hosts.m%d]\naddress = "10.0.0.%d"\ndirectory = "{tmp_path}/m%d"\nzookeeper = %d\n'
    hosts = "".join(host % (number, number, number, number) for number in (1, 2))
    (tmp_path / "hosts.toml").write_text(f'[defaults]\ndlog = "{program}"\nhttp_port = 8000\n{hosts}')
    return path


def run(failing: Path, *arguments: str) -> int:
    return main(["cluster", *arguments, "--hosts", str(failing.with_name("hosts.toml"))])


@pytest.mark.slow
def test_a_start_prints_programs_pages_and_the_uri(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing, "start") == ExitCode.OK
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 7
    assert "page on m2: http://127.0.0.1:8000/page#token=" in printed.err
    assert "export DLOG_URI='distributedlog://10.0.0.1:2181;10.0.0.2:2181/dlog'" in printed.err
    assert run(failing, "start", "--json") == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["failed_step"] is None
    assert [each["state"] for each in document["programs"]] == ["started"] * 6
    assert document["pages"][0]["page"].startswith("http://127.0.0.1:8000/page#token=")


def test_a_failed_start_says_where_what_and_what_to_do(
    failing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing.write_text("m2/zoo.cfg")
    assert run(failing, "start") == ExitCode.FAILED
    printed = capsys.readouterr()
    assert "m2: start zookeeper: a reason\n    command on m2: " in printed.err
    assert "the step that failed: start ZooKeeper. What has started goes on" in printed.err
    assert "dlog cluster stop --hosts" in printed.err
    assert "token" not in printed.err
    failing.write_text("--version")
    assert run(failing, "start", "--json") == ExitCode.FAILED
    printed = capsys.readouterr()
    assert "Nothing was started" in printed.err
    assert [each["host"] for each in json.loads(printed.out)["failures"]] == ["m1", "m2"]


def test_a_status_fails_if_a_program_does_not_run(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing, "status", "--only", "m2") == ExitCode.FAILED
    assert capsys.readouterr().out.count("not started") == 3


def test_a_stop_says_what_failed(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing, "stop") == ExitCode.OK
    failing.write_text("stop bookie")
    assert run(failing, "stop", "--json") == ExitCode.FAILED
    printed = capsys.readouterr()
    assert "m1: stop bookie: a reason" in printed.err
    assert [each["state"] for each in json.loads(printed.out)["programs"]] == ["stopped"] * 4


def test_a_host_out_of_reach_has_a_code_of_its_own(failing: Path) -> None:
    path = failing.with_name("hosts.toml")
    path.write_text(path.read_text().replace("http_port = 8000", 'run = ["no-such-program"]'))
    assert run(failing, "start") == ExitCode.UNAVAILABLE
    assert run(failing, "status") == ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    "arguments",
    [
        ["start", "--bookies", "4"],
        ["start", "--directory", "d"],
        ["stop", "--directory", "d"],
        ["status", "--only", "m9"],
    ],
)
def test_what_makes_no_sense_for_hosts_is_a_usage_error(failing: Path, arguments: list[str]) -> None:
    assert run(failing, *arguments) == ExitCode.USAGE
    assert main(["cluster", "status", "--only", "m1"]) == ExitCode.USAGE


def test_a_bad_file_is_a_usage_error(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing.with_name("hosts.toml").write_text("[hosts.m1]\nadress = 'a'\n")
    assert run(failing, "start") == ExitCode.USAGE
    assert "host 'm1': unknown key 'adress'; did you mean address?" in capsys.readouterr().err


def test_a_zookeeper_without_a_configuration_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["zookeeper", "--config", str(tmp_path / "zoo.cfg")]) == ExitCode.USAGE
    assert "zoo.cfg cannot be read" in capsys.readouterr().err
