"""The site of the documents: it builds, its links find their headings, its API pages show each export."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import dlog
import ledger
from tests.places import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built as `make docs` builds them."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", str(ROOT / ".ci" / "mkdocs.yml")]
    built = subprocess.run(
        [*command, "--site-dir", str(target)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return target


@pytest.mark.parametrize(
    ("page", "package", "names"), [("dlog", "dlog", dlog.__all__), ("ledger", "ledger", ledger.__all__)]
)
def test_the_api_page_shows_every_export(site: Path, page: str, package: str, names: list[str]) -> None:
    text = (site / "api" / f"{page}.html").read_text("utf-8")
    shown = set(re.findall(rf'id="{package}\.(\w+)"', text))
    # These have pages of their own.
    submodules = {"aio", "backup", "blobs", "blocking", "cluster", "events", "groups", "shards"}
    submodules |= {"typed", "wal"}
    assert set(names) - submodules - shown == set()


def test_a_link_to_a_heading_finds_it(site: Path) -> None:
    texts = {path: path.read_text("utf-8") for path in site.rglob("*.html")}
    names = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    wrong, count = [], 0
    for path, text in texts.items():
        for target, name in re.findall(r'href="([\w./-]*)#([^"]+)"', text):
            page = (path.parent / target).resolve() if target else path
            count += 1
            if page in names and unquote(name) not in names[page]:
                wrong.append(f"{path.relative_to(site)}: {target}#{name}")
    assert count > 100
    assert wrong == []
