"""The question before a command that cannot be undone: only a yes lets it go on."""

# covers: dlog/cli/terminal/questions.py
# covers: dlog/cli/terminal/signals.py

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dlog.cli.main import main, program
from dlog.cli.terminal.questions import confirm

DELETE = ["log", "delete", "orders"]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("DLOG_URI", (tmp_path / "namespace").as_uri())
    assert main(["log", "create", "orders"]) == 0
    return CliRunner()


def has_orders(capfd: pytest.CaptureFixture[str]) -> bool:
    capfd.readouterr()
    assert main(["log", "list"]) == 0
    return capfd.readouterr().out == "orders\n"


@pytest.mark.slow
def test_a_yes_lets_the_command_go_on(runner: CliRunner, capfd: pytest.CaptureFixture[str]) -> None:
    assert runner.invoke(program, DELETE, input="y\n", obj={}).exit_code == 0
    assert not has_orders(capfd)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("n\n", 1, "nothing was done"),
        ("\n", 1, "nothing was done"),
        ("perhaps\n", 2, "stdin ended before an answer; nothing was done. Give --yes"),
        ("", 2, "stdin ended before an answer; nothing was done. Give --yes"),
    ],
)
def test_without_a_yes_nothing_is_done(
    runner: CliRunner, capfd: pytest.CaptureFixture[str], answer: str, code: int, message: str
) -> None:
    result = runner.invoke(program, DELETE, input=answer, obj={})
    assert (result.exit_code, message in result.stderr) == (code, True)
    assert has_orders(capfd)


@pytest.mark.slow
def test_yes_beforehand_asks_nothing(runner: CliRunner, capfd: pytest.CaptureFixture[str]) -> None:
    result = runner.invoke(program, [*DELETE, "--yes"], input="", obj={})
    assert (result.exit_code, "?" in result.output) == (0, False)
    assert not has_orders(capfd)


def test_ctrl_c_at_the_question_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    with pytest.raises(click.Abort):
        confirm("Go on?")
