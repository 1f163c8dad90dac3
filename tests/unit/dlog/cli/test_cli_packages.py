"""The packages of the command: which one may import which, and that their initialisers import nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dlog.cli.main import ENTRY_POINTS, SECTIONS
from tests.places import ROOT

CLI = ROOT / "dlog" / "cli"
PACKAGES = ("logs", "operators", "demo", "bench", "terminal")


def cli_packages_imported_by(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    return {name.split(".")[2] for name in imported if name.startswith("dlog.cli.")}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_itself_and_terminal_only(package: str) -> None:
    wrong = {
        file.name: others
        for file in (CLI / package).rglob("*.py")
        if (others := cli_packages_imported_by(file) - {package, "terminal"})
    }
    assert wrong == {}


def test_initialisers_import_nothing_so_that_help_is_quick() -> None:
    for file in CLI.rglob("__init__.py"):
        assert len(ast.parse(file.read_text("utf-8")).body) == 1, file


def test_the_table_of_commands_names_modules_that_exist() -> None:
    modules = [
        module for commands in SECTIONS.values() for module, _ in commands.values() if module != ENTRY_POINTS
    ]
    assert [module for module in modules if not (ROOT / f"{module.replace('.', '/')}.py").exists()] == []
