"""A dotted name of the product in a page or a docstring exists, so that a reader can import it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.source_tree import PACKAGES, modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

NAME = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+){{2,}})")
# Names of loggers and of properties of a log.
OTHER_NAMES = {"ledger.metadata_store.zookeeper.kazoo", "dlog.shards.hash", "dlog.shards.state"}


def texts() -> Iterator[tuple[str, str]]:
    pages: set[Path] = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")}
    for page in sorted(pages):
        yield page.relative_to(ROOT).as_posix(), page.read_text("utf-8")
    for module in modules():
        yield module.path, module.text


def is_of_a_module(name: str) -> bool:
    """False for the names of metrics, events and settings, which have dots too."""
    package, part = name.split(".")[:2]
    return (ROOT / package / part).is_dir() or (ROOT / package / f"{part}.py").exists()


def exists(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        owner, _, attribute = name.rpartition(".")
        return bool(owner) and exists(owner) and has_attribute(owner, attribute)
    return True


def has_attribute(owner: str, attribute: str) -> bool:
    try:
        found: object = importlib.import_module(owner)
    except ModuleNotFoundError:
        module, _, outer = owner.rpartition(".")
        found = getattr(importlib.import_module(module), outer)
    return hasattr(found, attribute)


def test_every_dotted_name_exists() -> None:
    named = {
        (where, name)
        for where, text in texts()
        for name in NAME.findall(text)
        if is_of_a_module(name) and name not in OTHER_NAMES
    }
    assert len(named) > 100
    assert sorted((where, name) for where, name in named if not exists(name)) == []


@pytest.mark.parametrize(
    "name", ["ledger.replication.drain_bookie", "dlog.cli.config", "bookie.nothing.at_all"]
)
def test_a_name_that_moved_away_is_noticed(name: str) -> None:
    assert not exists(name)
