"""Words that make a reader stop stay out of the pages, the docstrings, the comments and the names.

Text in backticks or in a fenced block is code or output, and is left alone.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.places import ROOT
from tests.source_tree import Module, modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

# "Behind" is a place in space, or a lag: for time and for order, "after" is plain.
_BEHIND_IS_RIGHT = (
    r"leav\w+|left|lags?|falls|most|is|be|little|never|damaged or|queue|wait|waiters|interface|index|state|"
    r"store|tasks|disk|parts|work|process|offsets|Measurements|RocksDB"
)
BANNED = {
    "Source:": re.compile(r"^\w+Source:", re.MULTILINE),  # a class was renamed, and this heading with it
    "again": re.compile(r"\banew\b"),
    "continues": re.compile(r"\b(?:goes|go|went|going)\s+on\b(?!\s+here)"),
    "this many, this long": re.compile(
        r"\b(?:after|for|about|at (?:most|least)|than|with|waits?|while|every|takes?|leaves?)\s+"
        r"so\s+(?:many|long|much)\b(?!\s+(?:as|that|because)\b)"
    ),
    "a checker, a verdict": re.compile(r"\bjudgements?\b"),
    "a limit, retries": re.compile(r"\bpatience\b"),
    "during what, or until when": re.compile(
        r"\bmeanwhile the\b|\b(?:acknowledged|continues?|fenced|gathers|keeps?|missed|reads?|serves?|takes?|"
        r"waits?|works?|written)\s+meanwhile\b",
        re.IGNORECASE,
    ),
    "reported, asked, given": re.compile(r"\btold\b"),
}
# The docstring of a class names a thing: "The result of a copy", not "What a copy did".
_OF_A_CLASS = re.compile(r"(?:What|Who|Whoever|That which)\b")
NAMES = re.compile(r"\b_?(?:judge_ledger|judge_fragment|patience)\b", re.IGNORECASE)
_CODE = re.compile(r"```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def _behind(text: str) -> Iterator[str]:
    """Uses of "behind" without a word in front of it, in the same clause, that makes it right."""
    allowed = re.compile(rf"\b(?:{_BEHIND_IS_RIGHT})\b[^.;]{{0,28}}$", re.IGNORECASE)
    for match in re.finditer(r"\bbehind\b", text):
        if not allowed.search(text[max(0, match.start() - 45) : match.start()]):
            yield text[max(0, match.start() - 30) : match.end() + 20]


def faults(text: str) -> list[str]:
    """What a text should not say, and what to say instead."""
    plain = _CODE.sub("`…`", text)
    found = [f"{at!r}: say after" for at in _behind(plain)]
    for instead, pattern in BANNED.items():
        found += [f"{match[0]!r}: say {instead}" for match in pattern.finditer(plain)]
    return found


def _comments_and_docstrings(module: Module) -> Iterator[tuple[int, str]]:
    docstrings = {
        node.value.lineno
        for node in module.nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in docstrings
        if token.type == tokenize.COMMENT or is_docstring:
            yield token.start[0], token.string


def test_the_pages_are_plain() -> None:
    pages = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")})
    wrong = [
        f"{page.relative_to(ROOT)}: {fault}" for page in pages for fault in faults(page.read_text("utf-8"))
    ]
    assert wrong == []


def test_comments_and_docstrings_are_plain() -> None:
    wrong = [
        f"{module.path}:{line}: {fault}"
        for module in modules()
        for line, text in _comments_and_docstrings(module)
        for fault in faults(text)
    ]
    assert wrong == []


def test_the_docstring_of_a_class_names_a_thing() -> None:
    wrong = [
        f"{module.path}:{node.lineno}: {node.name}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and _OF_A_CLASS.match(ast.get_docstring(node) or "")
    ]
    assert wrong == []


def test_names_are_those_of_the_field() -> None:
    assert [f"{one.path}: {name}" for one in modules() for name in NAMES.findall(one.text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "The positions behind what was returned.",
        "The page is stored anew.",
        "The writer goes on at the target.",
        "A connection is closed after so long.",
        "It waits so long for a round.",
        "The judgement of histories.",
        "A bookie is told which ledgers exist.",
        "Nothing is acknowledged\nmeanwhile.",
        "Meanwhile the loop serves no peer.",
    ],
)
def test_a_sentence_that_makes_a_reader_stop_is_found(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "A server may lag behind the one of the session before.",
        "No watch is left behind.",
        "It waits as long as the disk is full.",
        "So many viewers cost as much as one.",
        "See `test_a_writer_goes_on`.",
        "A ledger that was deleted meanwhile is left out.",
    ],
)
def test_a_plain_sentence_is_left_alone(text: str) -> None:
    assert faults(text) == []
