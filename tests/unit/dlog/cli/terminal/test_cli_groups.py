"""Groups of commands: no summary is cut off, and a misspelt command gets the nearest one."""

# covers: dlog/cli/terminal/groups.py

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from dlog.cli.main import COMMANDS, main, program


def groups() -> list[tuple[str, ...]]:
    context = click.Context(program)
    waiting: list[tuple[tuple[str, ...], click.Command | None]]
    waiting = [((name,), program.get_command(context, name)) for name in COMMANDS]
    found = []
    for path, command in waiting:
        if isinstance(command, click.Group):
            found.append(path)
            waiting += [((*path, one), command.get_command(context, one)) for one in command.commands]
    return found


@pytest.mark.parametrize("path", groups(), ids=" ".join)
def test_a_group_lists_whole_sentences(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(program, [*path, "--help"], obj={})
    commands = result.output.partition("\nCommands:\n")[2]
    assert result.exit_code == 0
    assert commands
    assert "..." not in commands


@pytest.mark.parametrize(
    ("line", "near"),
    [(["cursors"], "cursor"), (["log", "shwo"], "show"), (["bookie", "cookie", "creat"], "create")],
)
def test_a_misspelt_command_gets_the_nearest_one(
    line: list[str], near: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 2
    assert f"No such command '{line[-1]}'. Did you mean '{near}'?" in capfd.readouterr().err


def test_a_command_like_no_other_has_no_nearest(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "No such command 'xyzzy'.\n" in capfd.readouterr().err
