"""`dlog daemon`: what it refuses; and the units of docs/running.md. With real programs: ``tests/crash``."""

# covers: dlog/cli/operators/daemon.py

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest

from dlog.cli.main import main, program
from dlog.cluster.daemons import Daemons
from tests.places import ROOT

UNITS = re.findall(r"```text\n(\[Unit\].*?)```", (ROOT / "docs/running.md").read_text(), re.DOTALL)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLOG_DAEMONS", str(tmp_path / "daemons"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "daemons"


@pytest.mark.slow
def test_a_bookie_that_cannot_start_is_a_failure_with_its_reason(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["daemon", "start", "bookie", "--config", str(tmp_path / "missing.conf")]) == 1
    assert "missing.conf cannot be read" in capsys.readouterr().err
    assert Daemons(directory).all() == []


@pytest.mark.parametrize("arguments", [["start", "spark"], ["start", "--name", "a/b", "bookie"], ["start"]])
def test_what_is_no_program_or_no_name_is_a_usage_error(directory: Path, arguments: list[str]) -> None:
    assert main(["daemon", *arguments]) == 2


def test_the_units_start_programs_that_exist() -> None:
    assert len(UNITS) == 2
    for text in UNITS:
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(text)
        assert unit["Service"]["Type"] == "notify"
        executable, name, *arguments = shlex.split(unit["Service"]["ExecStart"])
        assert executable.endswith("/dlog")
        found = program.get_command(None, name)  # type: ignore[arg-type]
        assert found is not None
        found.make_context(name, arguments)  # raises for an option that it does not have
