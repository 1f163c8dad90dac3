"""Each command that a page or a message names exists, with the options that it is given there."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import attrs
import click
import pytest

from dlog.cli.main import program as commands
from tests.bench.__main__ import program as benchmarks
from tests.places import ROOT
from tests.source_tree import modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

_PROGRAMS = {"dlog": commands, "python -m tests.bench": benchmarks}
_BEGIN = "|".join(_PROGRAMS)
_NAMED = re.compile(rf"`((?:{_BEGIN}) [^`]+)`")
_FENCE = re.compile(r"^```(?:sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(rf"^(?:\$ )?((?:{_BEGIN}) [^|;&#>\n]*)", re.MULTILINE)
_NO_COMMANDS = ("dlog hash chain 1", "dlog payload 1")  # texts that go into a digest
_WORD = re.compile(r"[a-z][a-z0-9-]*")


@attrs.frozen(order=True)
class Named:
    """A command line in a page or in a message."""

    text: str
    place: str


def _in_pages() -> Iterator[Named]:
    for page in sorted(
        {
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            *ROOT.glob("*/README.md"),
            *(ROOT / "tests").rglob("*.md"),
        }
    ):
        text = page.read_text("utf-8")
        place = str(page.relative_to(ROOT))
        for found in _NAMED.findall(_FENCE.sub("", text)):
            yield Named(found, place)
        for block in _FENCE.findall(text):
            for found in _LINE.findall(block.replace("\\\n", " ")):
                yield Named(found.strip(), place)


def _in_messages() -> Iterator[Named]:
    """The literal parts of strings; what is filled in becomes an argument."""
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.JoinedStr):
                parts = [str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values]
                text = "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            for found in _NAMED.findall(text):
                yield Named(found, module.path)


@functools.cache
def _named() -> list[Named]:
    return sorted({one for one in (*_in_pages(), *_in_messages()) if one.text not in _NO_COMMANDS})


def _fault(line: str) -> str | None:
    """Why there is no such command line."""
    name, program = next((name, one) for name, one in _PROGRAMS.items() if line.startswith(f"{name} "))
    words = re.split(r"\s{2,}", line.removeprefix(name).strip())[0].split()  # a description follows spaces
    context = click.Context(program)
    command: click.Command = program
    at = 0
    while at < len(words):
        word = words[at]
        if word.startswith("-"):
            if isinstance(command, click.Group) and command is program:
                at += 2  # an option of the program, with its value
                continue
            break
        if not isinstance(command, click.Group):
            break
        names = re.split(r"[|,]", word)
        if not all(_WORD.fullmatch(name) for name in names):
            return None  # `dlog ...`, `dlog COMMAND`
        for name in names:
            if command.get_command(context, name) is None:
                return f"{command.name} has no command {name!r}"
        found = command.get_command(context, names[0])
        assert found is not None
        command = found
        at += 1
        if len(names) > 1:
            return None
    known = {
        name
        for one in (command, program)
        for each in one.get_params(context)
        for name in (*each.opts, *each.secondary_opts)
    }
    if command.context_settings.get("ignore_unknown_options"):
        return None  # the words after it are those of another command
    for word in words[at:]:
        option = re.match(r"\[?(--[a-z][a-z0-9-]*)", word)
        if option and option[1] not in known:
            return f"{command.name} has no option {option[1]}"
    return None


@pytest.mark.slow
def test_commands_are_named() -> None:
    assert len(_named()) > 300


@pytest.mark.slow
def test_every_named_command_exists() -> None:
    faults = [f"{one.place}: `{one.text}`: {fault}" for one in _named() if (fault := _fault(one.text))]
    assert faults == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert _fault("dlog bookie formatt") is not None
    assert _fault("dlog bookie format --yess") is not None
    assert _fault("python -m tests.bench idel") is not None
    assert _fault("python -m tests.bench idle --loggs 3") is not None
    assert _fault("dlog log check LOG --json") is None
