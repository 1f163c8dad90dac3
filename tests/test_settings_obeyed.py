"""Every field of a configuration is read by what obeys it, and not only by what parses it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.source_tree import Module, modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

PARSERS = ("bookie/config/", "dlog/settings/", "ledger/settings/")


def _config_fields() -> Iterator[tuple[str, str, str]]:
    """The module, class and name of each field of an attrs class whose name ends in ``Config``."""
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config") and node.decorator_list:
                for line in node.body:
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                        yield module.path, node.name, line.target.id


def _reads(module: Module) -> set[str]:
    return {
        node.attr
        for node in module.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_there_are_configurations() -> None:
    assert {"ServerConfig", "StorageConfig", "NamespaceConfig", "PlacementConfig"} <= {
        one for _, one, _ in _config_fields()
    }


def test_each_field_of_a_configuration_is_read_by_what_obeys_it() -> None:
    read = set[str]().union(*(_reads(one) for one in modules() if not one.lives_in(PARSERS)))
    unread = [f"{path}: {class_}.{field}" for path, class_, field in _config_fields() if field not in read]
    assert unread == [], "nothing outside of the parsers reads them"
