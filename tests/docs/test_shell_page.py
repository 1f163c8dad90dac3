"""docs/shell.md against the names of Apache's commands and the commands of `dlog`; commands in messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from dlog.cli.main import COMMANDS, program
from tests.places import ROOT
from tests.source_tree import Module, modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

PAGE = ROOT / "docs" / "shell.md"
# One name a line, with its program: from BookieShell.class of 4.17.3 and 4.18.0, and the groups of BKCtl.
APACHE = Path(__file__).with_name("apache_commands.txt")
_NAMED = re.compile(r"`dlog ([^`]+)`")
_WORD = re.compile(r"[a-z][a-z0-9-]*")


def command_of(words: list[str]) -> click.Command | None:
    """The command that the first words name; None if there is none."""
    command: click.Command = program
    for word in words:
        if not isinstance(command, click.Group):
            return command  # the word is an argument
        found = command.get_command(click.Context(command), word)
        if found is None:
            return None
        command = found
    return command


def is_known(text: str) -> bool:
    """True if the text behind `dlog` names a command, and each long option is one of it."""
    words: list[str] = []
    for word in text.split():
        if not _WORD.fullmatch(word):
            break
        words.append(word)
    command = command_of(words)
    if command is None:
        return False
    if command.context_settings.get("ignore_unknown_options"):
        return True  # the options are those of another program
    options = {name for one in (*command.params, *program.params) for name in one.opts} | {"--help"}
    return all(name in options for name in re.findall(r"(?<!\S)(--[a-z-]+)", text))


def rows() -> dict[str, tuple[str, str]]:
    """Each name of Apache's, with its program, to our commands and the remarks."""
    found = {}
    for program_name, part in zip(
        ("shell", "bkctl"), PAGE.read_text("utf-8").split("\n## ")[1:3], strict=True
    ):
        for name, ours, remarks in re.findall(r"^\| `([^`]+)` \| (.+?) \| (.*?) ?\|$", part, re.M):
            found[f"{program_name} {name}"] = (ours, remarks)
    return found


def test_every_command_of_apache_has_a_row() -> None:
    found = rows()
    assert set(found) == set(APACHE.read_text("utf-8").split("\n")[:-1])
    for name, (ours, remarks) in found.items():
        if ours == "none":
            assert remarks, f"{name} has neither a command nor a reason"
        else:
            assert re.fullmatch(r"(`dlog [^`]+`(, )?)+", ours), name


def alternatives(text: str) -> list[str]:
    """The commands of ``start|stop NAME``: one for each word between the bars."""
    text = text.replace("\\|", "|")
    for word in text.split():
        if not re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", word):
            if not _WORD.fullmatch(word):
                break
            continue
        return [text.replace(word, one, 1) for one in word.split("|")]
    return [text]


def commands_in(text: str) -> list[str]:
    """What a page names as commands: behind `dlog` in backticks, and in blocks at the start of a line."""
    named = _NAMED.findall(text)
    for block in re.findall(r"^```(?:text|sh|console)?\n(.*?)^```", text, re.M | re.S):
        lines = re.findall(r"^(?:\$ )?dlog (.+)$", block.replace("\\\n", " "), re.M)
        named += [re.split(r"\s#\s|\s{2,}", line)[0] for line in lines]
    return [one for name in named for one in alternatives(name)]


# Texts in the format of logs that begin like a command.
NO_COMMANDS = {"payload 1", "hash chain 1"}
PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.slow
def test_commands_that_pages_name_exist() -> None:
    found = {page: commands_in((ROOT / page).read_text("utf-8")) for page in PAGES}
    wrong = [
        f"{page}: dlog {one}"
        for page, named in found.items()
        for one in named
        if one not in NO_COMMANDS and not is_known(one)
    ]
    assert wrong == []
    assert sum(map(len, found.values())) > 300


def texts_of(module: Module) -> list[str]:
    """The strings of a module that are no docstrings; a value in an f-string becomes VALUE."""
    found = []
    docs = {
        id(node.body[0].value)
        for node in module.nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in module.nodes:
        if isinstance(node, ast.JoinedStr):
            found.append(
                "".join(str(one.value) if isinstance(one, ast.Constant) else "VALUE" for one in node.values)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            found.append(node.value)
    return found


@pytest.mark.slow
def test_commands_that_messages_name_exist() -> None:
    named, wrong = 0, []
    for module in modules():
        for text in texts_of(module):
            for one in _NAMED.findall(text):
                named += 1
                if not is_known(one):
                    wrong.append(f"{module.path}: dlog {one}")
    assert named > 30
    assert wrong == []


def test_a_wrong_command_or_option_is_recognised() -> None:
    assert not is_known("bookie nothing")
    assert not is_known("bookie recover VALUE --nothing")
    assert is_known("bookie recover VALUE --dry-run")
    assert commands_in("`dlog daemon start\\|burn NAME`\n```text\ndlog nothing --at all\n```\n") == [
        "daemon start NAME",
        "daemon burn NAME",
        "nothing --at all",
    ]
    assert not is_known("daemon burn NAME")
    assert set(COMMANDS) >= {"bookie", "bookies", "ledger", "autorecovery"}
