"""Each fragment in docs/newsfragments is well formed, and the CHANGELOG stays short."""

from __future__ import annotations

import re

import pytest

from tests.places import ROOT

FOLDER = ROOT / "docs" / "newsfragments"
CHANGELOG_LINES_MAX = 40  # of the section of one version
LINES_MAX = 5
NAME = re.compile(r"(?:\d+|[a-z]+(?:-[a-z0-9]+){1,2})\.(\w+)\.md")
KINDS = re.findall(r"^\| `(\w+)` \|", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)[^):]*\)")


def faults(name: str, text: str) -> list[str]:
    """The faults of a fragment, for a message; none if it is well formed."""
    found = []
    match = NAME.fullmatch(name)
    if match is None or match[1] not in KINDS:
        found.append(f"the name is not NAME.KIND.md with one of the kinds {', '.join(KINDS)}")
    paragraph = text.strip()
    if not 1 <= len(paragraph.splitlines()) <= LINES_MAX or "\n\n" in paragraph:
        found.append(f"it is not one paragraph of 1 to {LINES_MAX} lines")
    if not re.match(r"[A-Z`]", paragraph) or not paragraph.endswith("."):
        found.append("it is not a whole sentence")
    found += [f"no file {link}" for link in LINK.findall(text) if not (ROOT / link).exists()]
    return found


def test_each_fragment_is_well_formed() -> None:
    wrong = {
        path.name: problems
        for path in sorted(FOLDER.iterdir())
        if path.name != "README.md" and (problems := faults(path.name, path.read_text("utf-8")))
    }
    assert wrong == {}


def test_the_kinds_are_those_of_the_page() -> None:
    assert KINDS == ["breaking", "feature", "bugfix", "deprecated"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("31.bugfix.md", "A reader that lost its session returns each record once."),
        ("rename-logs.feature.md", "`Namespace.rename_log` renames a log\n([guide](docs/guide.md#words)).\n"),
    ],
)
def test_a_good_fragment_passes(name: str, text: str) -> None:
    assert faults(name, text) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("31.md", "A sentence."),
        ("31.misc.md", "A sentence."),
        ("Fix.bugfix.md", "A sentence."),
        ("31.bugfix.rst", "A sentence."),
        ("31.bugfix.md", ""),
        ("31.bugfix.md", "fixed a bug"),
        ("31.bugfix.md", "One paragraph.\n\nAnd another."),
        ("31.bugfix.md", "Line\n" * 6 + "end."),
        ("31.bugfix.md", "See [a page](docs/nowhere.md)."),
    ],
)
def test_a_bad_fragment_is_refused(name: str, text: str) -> None:
    assert faults(name, text)


def test_the_section_of_a_version_is_short() -> None:
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert sections
    assert [one.splitlines()[0] for one in sections if len(one.splitlines()) > CHANGELOG_LINES_MAX] == []
