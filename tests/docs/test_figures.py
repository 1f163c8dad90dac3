"""A figure stands in one place: speed in docs/performance.md; and the pages name what exists."""

from __future__ import annotations

import re

from tests.places import ROOT

_SPEED = re.compile(r"\d[\d,.]*\s*(?:ms\b|us\b|records/s|entries/s|MB/s|MiB/s)")
_REGISTRY = re.compile(r"pip install '?dlog-streams")


def test_readme_quotes_no_figure_of_speed() -> None:
    assert _SPEED.findall((ROOT / "README.md").read_text("utf-8")) == []


def test_no_text_tells_to_install_from_a_registry_that_does_not_have_it() -> None:
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/**/*.py")]
    named = [
        str(path.relative_to(ROOT))
        for path in places
        if ".venv" not in path.parts and _REGISTRY.search(path.read_text("utf-8"))
    ]
    assert named == []
