"""One list of pages: docs/index.md has it, the navigation of the site repeats it, README opens its doors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.places import ROOT

DOORS = ("Learn", "Build", "Operate", "Inside")
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")
INDEX = (DOCS / "index.md").read_text("utf-8")


def section(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def listed(door: str) -> list[tuple[str, str]]:
    """Titles and pages of a door on the first page of the site."""
    return [(title.strip("`"), page) for title, page in LINK.findall(section(INDEX, door))]


def flat(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Titles and pages of a part of the navigation, with those of its own parts."""
    found: list[tuple[str, str]] = []
    for item in items:
        for title, value in item.items():
            found += flat(value) if isinstance(value, list) else [(title, value)]
    return found


def navigation() -> list[dict[str, Any]]:
    text = (ROOT / ".ci" / "mkdocs.yml").read_text("utf-8")
    nav: list[dict[str, Any]] = yaml.safe_load(text)["nav"]
    return nav


def test_the_navigation_has_the_doors_in_order_below_the_first_page() -> None:
    assert [title for item in navigation() for title in item] == ["DLog", *DOORS]


@pytest.mark.parametrize("door", DOORS)
def test_a_door_of_the_navigation_has_the_pages_of_the_index_in_its_order(door: str) -> None:
    parts = {title: value for item in navigation() for title, value in item.items()}
    assert flat(parts[door]) == listed(door)


def test_every_page_is_behind_one_door() -> None:
    pages = sorted(page for door in DOORS for _, page in listed(door))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"}
    assert pages == sorted(page for page in there if not page.startswith("newsfragments/"))


def test_readme_links_the_index_and_the_first_page_of_each_door() -> None:
    links = LINK.findall(section((ROOT / "README.md").read_text("utf-8"), "Where to go next"))
    assert links[0] == ("All pages", "docs/index.md")
    assert links[1:5] == [(title, f"docs/{page}") for title, page in (listed(door)[0] for door in DOORS)]


def test_the_first_page_installs_and_shows_before_it_lists() -> None:
    heads = [INDEX.index(f"\n## {head}\n") for head in ("Install", "An example", *DOORS)]
    assert heads == sorted(heads)
    assert "pip install" in section(INDEX, "Install")
    assert "```python" in section(INDEX, "An example")
