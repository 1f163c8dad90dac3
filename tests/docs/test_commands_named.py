"""Each command line in a page or a message is one that its program parses, with all options and values."""

from __future__ import annotations

import ast
import functools
import re
import shlex
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
_PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]*\b|%[a-z]")
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
    words = _words(re.split(r"\s{2,}", line.removeprefix(name).strip())[0])  # a description follows spaces
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
    if command.context_settings.get("ignore_unknown_options"):
        return None  # the words after it are those of another command
    return _fault_of_words(command, program, words[at:])


def _fault_of_words(command: click.Command, program: click.Command, words: list[str]) -> str | None:
    """Why the command does not take these words after its name; missing ones are no fault."""
    own = click.Context(command)
    parser = command.make_parser(own)
    every = command.get_params(own)
    known = {name for param in every for name in (*param.opts, *param.secondary_opts)}
    for param in program.get_params(own):  # they stand anywhere
        if known.isdisjoint(param.opts):
            param.add_to_parser(parser, own)
            every.append(param)
    try:
        given, extra, _ = parser.parse_args([one for word in words for one in _plain(word)])
        for param in every:
            for value in _values(given.get(str(param.name)), param):
                param.type.convert(value, param, own)
    except click.UsageError as exc:
        if "requires an argument" in exc.message:
            return None  # the option is named, not used
        return f"{command.name}: {exc.format_message()}"
    return f"{command.name} takes no {extra[0]!r}" if extra else None


def _words(text: str) -> list[str]:
    text = re.split(r"\s[<>]\s", text.replace("\\|", "|"))[0]  # a row of a table; a file for stdin or stdout
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()  # a quotation ends in another line


def _plain(word: str) -> list[str]:
    """A word without the marks of a synopsis: ``[--option``, ``N]``, ``NAME...``, ``--one|--other``"""
    plain = re.sub(r"[\[\]()]|\.\.\.|…", "", word)
    parts = plain.split("|") if plain.startswith(("-", "|")) else [plain]
    return [part for part in parts if part]


def _values(given: object, param: click.Parameter) -> Iterator[str]:
    """The values that are no placeholders, nor paths: those of an example are not there."""
    if not isinstance(param.type, click.Path | click.File):
        for each in given if isinstance(given, list | tuple) else [given]:
            if isinstance(each, str) and not _PLACEHOLDER.search(each):
                yield from each.split("|") if isinstance(param.type, click.Choice) else [each]


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


def test_a_value_that_does_not_parse_is_found() -> None:
    assert _fault("dlog bench latency --level stream") is None
    assert _fault("dlog bench latency --level strem") is not None
    assert _fault("dlog bench latency --level stream|strem") is not None
    assert _fault("dlog bench latency --records N") is None
    assert _fault("dlog bench latency --records many") is not None
    assert _fault("dlog bookies list --rw|--ro") is None
    assert _fault("dlog bookies list --rw=yes") is not None
    assert _fault("dlog bookies list 7") is not None
    assert _fault("dlog ledger show 7") is None
    assert _fault("dlog ledger show seven") is not None
    assert _fault("python -m tests.bench idle --logs 1.5") is not None
