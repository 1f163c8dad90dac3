"""Each module of the product has the test file of its name, or a line in a test file says that it covers it.

The test of ``dlog/write/shell.py`` is ``tests/unit/dlog/write/test_shell.py``. Another test file may
have a line for each module that it covers, below its docstring: ``# covers: dlog/write/shell.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from pathlib import PurePosixPath

import pytest

from tests.places import ROOT
from tests.source_tree import modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

COVERS = re.compile(r"^# covers: (.*)$", re.MULTILINE)


def faults(paths: Set[str], tests: Mapping[str, str]) -> list[str]:
    """The modules without a test, and the lines that cover nothing, by the texts of all test files."""
    found, covered = [], set()
    for test, text in tests.items():
        for path in COVERS.findall(text):
            if path not in paths:
                found.append(f"{test}: it covers {path!r}, which is no module")
            covered.add(path)
    return found + [
        f"{path}: no {own_test(path)}, and no line that covers it in another test"
        for path in sorted(paths - covered)
        if own_test(path) not in tests
    ]


def own_test(path: str) -> str:
    module = PurePosixPath(path)
    return f"tests/unit/{module.parent}/test_{module.name}"


def test_each_module_is_covered_by_a_test() -> None:
    tests = {
        file.relative_to(ROOT).as_posix(): file.read_text("utf-8")
        for file in (ROOT / "tests").rglob("test_*.py")
        if file.name != "test_modules_are_covered.py"
    }
    paths = {one.path for one in modules() if not one.path.endswith("__init__.py")}
    assert faults(paths, tests) == []


SHELL, OWN, OTHER = "dlog/write/shell.py", "tests/unit/dlog/write/test_shell.py", "tests/unit/test_other.py"


@pytest.mark.parametrize(
    "tests", [{OWN: ""}, {OTHER: f'"""Some tests."""\n\n# covers: {SHELL}\n\nimport os\n'}]
)
def test_a_module_is_found_by_its_name_or_by_a_line(tests: dict[str, str]) -> None:
    assert faults({SHELL}, tests) == []


@pytest.mark.parametrize(
    "tests",
    [
        {},
        {OTHER: ""},
        {OTHER: f"covers: {SHELL}"},
        {OWN: "# covers: dlog/write/gone.py"},
    ],
    ids=["no test", "a test of something else", "no comment", "a module that is gone"],
)
def test_a_module_that_nothing_covers_and_a_line_that_covers_nothing_are_found(tests: dict[str, str]) -> None:
    assert len(faults({SHELL}, tests)) == 1
