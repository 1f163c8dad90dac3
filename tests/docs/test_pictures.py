"""The pictures of the pages are those that docs/pictures/make.py makes, and each stands in a page."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

from tests.places import ROOT

FOLDER = ROOT / "docs" / "pictures"
IMAGE = re.compile(r"!\[([^\]]+)\]\(([^)]+\.svg)\)")


def test_the_committed_pictures_are_those_that_the_script_makes() -> None:
    pictures = runpy.run_path(str(FOLDER / "make.py"))["PICTURES"]
    made = {name: make().svg() for name, make in pictures.items()}
    assert {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.svg")} == made


def test_each_picture_is_a_document_that_loads_nothing() -> None:
    for path in FOLDER.glob("*.svg"):
        text = path.read_text("utf-8")
        ElementTree.fromstring(text)
        assert "href" not in text
        assert "@import" not in text


def test_each_picture_stands_in_a_page_of_the_site_and_no_page_names_another_one() -> None:
    pages: list[Path] = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
    shown = {
        ((page.parent / target).resolve(), page.is_relative_to(ROOT / "docs"))
        for page in pages
        for _, target in IMAGE.findall(page.read_text("utf-8"))
    }
    assert {path for path, _ in shown} == {path.resolve() for path in FOLDER.glob("*.svg")}
    assert {path for path, in_site in shown if in_site} == {path for path, _ in shown}
