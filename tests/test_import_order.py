"""The order of imports: down in the order of ``docs/architecture.md``, without a circle.

A rule that is wrong is changed here, in plain sight, together with the code that needs it.
"""

from __future__ import annotations

import functools
import re

import pytest

from tests.places import ROOT
from tests.source_tree import PACKAGES, ROOTS, dependencies, modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once


@functools.cache
def layers() -> dict[str, tuple[int, str]]:
    """Each module or sub-package to its height in the order of ``docs/architecture.md``, and its room."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    block = re.search(r"^```imports\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block, "docs/architecture.md has no block ```imports"
    found: dict[str, tuple[int, str]] = {}
    for height, line in enumerate(line for line in block[1].splitlines() if line.strip()):
        package, room, *members = line.split()
        for member in members:
            place = package if member == "__init__" else f"{package}.{member.rstrip('/')}"
            assert place not in found, f"{place} has two places in docs/architecture.md"
            found[place] = (height, f"{package} {room}")
    return found


def _place_of(name: str) -> str | None:
    """The entry of ``layers`` that a dotted module belongs to."""
    parts = name.split(".")
    for length in (2, 1):
        if len(parts) >= length and ".".join(parts[:length]) in layers():
            return ".".join(parts[:length])
    return None


def test_the_order_of_imports_names_every_module() -> None:
    dotted = [module.dotted for module in modules()]
    assert [
        name
        for name in dotted
        if _place_of(name) is None or (name.count(".") and _place_of(name) in PACKAGES)
    ] == []
    places = {_place_of(name) for name in dotted}
    assert sorted(set(layers()) - {place for place in places if place}) == []


def test_imports_point_down_in_the_order_of_the_architecture_page() -> None:
    wrong = []
    for module in modules():
        here = _place_of(module.dotted)
        assert here is not None
        for target in dependencies()[module.dotted]:
            there = _place_of(target)
            assert there is not None
            if here != there and layers()[there][0] > layers()[here][0]:
                wrong.append(f"{module.dotted} ({layers()[here][1]}) imports {target} ({layers()[there][1]})")
    assert wrong == []


def test_no_package_imports_from_a_floor_above() -> None:
    """Not even a neighbour's: ``bookie`` and ``namespace`` stand side by side."""
    floors = {"ledger": 0, "bookie": 1, "namespace": 1, "dlog": 2, "spark_integration": 3}
    assert set(floors) == set(PACKAGES)
    wrong = [
        f"{module.path}:{imported.line} imports {imported.module}"
        for module in modules()
        for imported in module.imports
        if (there := imported.module.partition(".")[0]) in floors
        and there != module.package
        and floors[there] >= floors[module.package]
    ]
    assert wrong == []


def test_bookies_are_known_only_where_programs_are_assembled() -> None:
    wrong = [
        f"{module.path}:{imported.line} imports {imported.module}"
        for module in modules()
        if module.package != "bookie" and not module.lives_in(ROOTS)
        for imported in module.imports
        if imported.module.partition(".")[0] == "bookie"
    ]
    assert wrong == []


def test_there_is_no_import_circle() -> None:
    # Imports for types alone count: they are as hard to read as any.
    graph = dependencies()
    finished: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> tuple[str, ...]:
        if name in path:
            return (*path[path.index(name) :], name)
        if name in finished:
            return ()
        for target in sorted(graph[name]):
            circle = walk(target, (*path, name))
            if circle:
                return circle
        finished.add(name)
        return ()

    for name in graph:
        assert walk(name, ()) == ()


def test_spark_knows_only_the_public_surface_of_dlog() -> None:
    wrong = [
        f"{module.path}:{imported.line} imports {imported.module}"
        for module in modules()
        if module.package == "spark_integration" and not module.lives_in(("spark_integration/commands/",))
        for imported in module.imports
        if imported.module.startswith(("dlog.cli", "dlog.cluster", "dlog.connect"))
    ]
    assert wrong == []
