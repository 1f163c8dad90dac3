"""A package's names are those that it imports for type checkers; each is imported when it is first used."""

from __future__ import annotations

import compileall
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

PACKAGE = """
import logging
from typing import TYPE_CHECKING
from ledger.digest import Entry as _Entry

if TYPE_CHECKING:
    from ledger.digest import DigestType as DigestType
    from shop import orders as orders

if not TYPE_CHECKING:

    def __getattr__(name):
        from ledger.runtime.lazy_names import lazy_name

        return lazy_name(__name__, name)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A package with two names: one of another module, and a module of its own."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "orders.py").write_text("from ledger.digest import Entry\n")
    return folder


def run(shop: Path, program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{shop.parent}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
def test_the_names_are_those_imported_for_type_checkers(shop: Path) -> None:
    assert run(shop, "import shop; print(*shop.__all__)") == ["DigestType", "orders"]
    assert run(shop, "from shop import *; print(DigestType.__module__, orders.__name__)") == [
        "ledger.digest",
        "shop.orders",
    ]


def test_a_module_that_was_imported_before_is_still_among_the_names(shop: Path) -> None:
    assert run(shop, "import shop.orders; print(*shop.__all__)") == ["DigestType", "orders"]


def test_no_name_is_imported_before_it_is_used(shop: Path) -> None:
    program = (
        "import sys, shop; shop.DigestType; print('shop.orders' in sys.modules, 'DigestType' in vars(shop))"
    )
    assert run(shop, program) == ["False", "True"]


def test_a_name_that_is_not_offered_is_an_attribute_error(shop: Path) -> None:
    program = """
import shop
for name in ("Entry", "TYPE_CHECKIN", "__path_hooks__"):
    try:
        getattr(shop, name)
    except AttributeError as error:
        print(str(error).replace(" ", "_"))
"""
    assert run(shop, program) == [
        f"module_'shop'_has_no_attribute_'{name}'" for name in ("Entry", "TYPE_CHECKIN", "__path_hooks__")
    ]


def test_a_package_without_its_source_has_the_same_names(shop: Path) -> None:
    assert compileall.compile_dir(shop, quiet=1, legacy=True)
    for file in shop.glob("*.py"):
        file.unlink()
    assert run(shop, "import shop; print(*shop.__all__, shop.DigestType.__name__)") == [
        "DigestType",
        "orders",
        "DigestType",
    ]


@pytest.mark.slow
def test_the_names_are_found_where_pytest_loads_the_package_itself(shop: Path) -> None:
    # It rewrites the asserts of all modules in a distribution that has a plugin, as ours has.
    (shop.parent / "conftest.py").write_text("import pytest\n\npytest.register_assert_rewrite('shop')\n")
    (shop.parent / "test_shop.py").write_text(
        "import shop\n\n"
        "def test_it():\n"
        "    assert type(shop.__spec__.loader).__name__ == 'AssertionRewritingHook'\n"
        "    assert shop.__all__ == ['DigestType', 'orders'] and shop.DigestType.__name__ == 'DigestType'\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=shop.parent,
        env={"PYTHONPATH": f"{shop.parent}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert "1 passed" in run.stdout, run.stdout + run.stderr
