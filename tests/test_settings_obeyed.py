"""Every field of a configuration is read by what obeys it, and not only by what parses it.

A read counts if the object before the dot is of the field's class, as far as annotations and plain
assignments tell. So a field is not taken for another one of its name.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.source_tree import modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

PARSERS = ("bookie/config/", "dlog/settings/", "ledger/settings/")
Nodes = Mapping[type[ast.AST], Sequence[Any]]  # of one module, by kind
Field = tuple[str, str]  # the class and the name
_Classes = defaultdict[str, set[str]]  # by the name of a variable or an attribute


def _by_kind(nodes: Iterable[ast.AST]) -> Nodes:
    found = defaultdict[type[ast.AST], list[ast.AST]](list)
    for node in nodes:
        found[type(node)].append(node)
    return found


def _config_fields(nodes: Nodes) -> Iterator[Field]:
    """The fields of each attrs class whose name ends in ``Config``."""
    for node in nodes.get(ast.ClassDef, ()):
        if node.name.endswith("Config") and node.decorator_list:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield node.name, line.target.id


class Reads:
    """Which fields of configurations are read, in all modules."""

    def __init__(self, trees: Mapping[str, Nodes]) -> None:
        self.fields = {field for nodes in trees.values() for field in _config_fields(nodes)}
        self._classes = {class_ for class_, _ in self.fields}
        self._names = {name for _, name in self.fields}
        self._declared: _Classes = defaultdict(set)  # of fields and results, whatever the module
        self._assigned: _Classes = defaultdict(set)  # of attributes, whatever the module
        self._own: dict[str, _Classes] = {path: defaultdict(set) for path in trees}  # of one module
        for path, nodes in trees.items():
            self._declare(self._own[path], nodes)
        for path, nodes in trees.items():
            for _ in range(2):  # a name may come from one that is assigned below it
                self._assign(self._own[path], nodes)

    def of(self, path: str, nodes: Nodes) -> set[Field]:
        """The fields that a module reads."""
        found, own = set[Field](), self._own[path]
        for node in nodes.get(ast.Attribute, ()):
            if node.attr in self._names and isinstance(node.ctx, ast.Load):
                found |= {(class_, node.attr) for class_ in self._classes_of(node.value, own)}
        for node in nodes.get(ast.ClassDef, ()):
            if node.name in self._classes:
                found |= {(node.name, name) for name in _own_reads(node)}
        return found

    def _declare(self, own: _Classes, nodes: Nodes) -> None:
        for node in nodes.get(ast.arg, ()):
            own[node.arg] |= self._named(node.annotation)
        for node in nodes.get(ast.AnnAssign, ()):
            own[_name_of(node.target)] |= self._named(node.annotation)
        for node in (*nodes.get(ast.FunctionDef, ()), *nodes.get(ast.AsyncFunctionDef, ())):
            self._declared[node.name] |= self._named(node.returns)
        for node in nodes.get(ast.ClassDef, ()):
            for line in node.body:
                if isinstance(line, ast.AnnAssign):
                    self._declared[_name_of(line.target)] |= self._named(line.annotation)

    def _assign(self, own: _Classes, nodes: Nodes) -> None:
        for node in nodes.get(ast.Assign, ()):
            for target in node.targets:
                self._bind(own, target, node.value)
        for node in nodes.get(ast.NamedExpr, ()):
            self._bind(own, node.target, node.value)

    def _bind(self, own: _Classes, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its_value in zip(target.elts, value.elts, strict=False):
                self._bind(own, one, its_value)
            return
        classes = self._classes_of(value, own)
        own[_name_of(target)] |= classes
        if isinstance(target, ast.Attribute):
            self._assigned[target.attr] |= classes

    def _classes_of(self, value: ast.expr, own: _Classes) -> set[str]:
        """The configurations that a value may be."""
        match value:
            case ast.Name(id=name):
                return own[name] | ({name} & self._classes)
            case ast.Attribute(attr=name):
                return own[name] or self._declared[name] | self._assigned[name]
            case ast.Call(func=ast.Attribute(attr="evolve"), args=[first, *_]):
                return self._classes_of(first, own)
            case ast.Call(func=called):
                name = _name_of(called)
                return ({name} & self._classes) or self._declared[name]
            case ast.BoolOp(values=values):
                return set[str]().union(*(self._classes_of(one, own) for one in values))
            case ast.IfExp(body=one, orelse=other):
                return self._classes_of(one, own) | self._classes_of(other, own)
            case ast.Await(value=inner) | ast.NamedExpr(value=inner):
                return self._classes_of(inner, own)
        return set()

    def _named(self, annotation: ast.expr | None) -> set[str]:
        """The configurations in an annotation."""
        if annotation is None:
            return set()
        if isinstance(annotation, ast.Name):
            return {annotation.id} & self._classes
        return self._classes.intersection(re.findall(r"\w+", ast.unparse(annotation)))


def _own_reads(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and _name_of(inner.value) == "self":
            yield inner.attr


def _name_of(node: ast.expr) -> str:
    """The name of a variable, or of an attribute; empty for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def unread(reads: Reads, trees: Mapping[str, Nodes]) -> set[Field]:
    read = set[Field]().union(
        *(reads.of(path, nodes) for path, nodes in trees.items() if not path.startswith(PARSERS))
    )
    return reads.fields - read


def test_each_field_of_a_configuration_is_read_by_what_obeys_it() -> None:
    trees = {one.path: _by_kind(one.nodes) for one in modules()}
    reads = Reads(trees)
    classes = {class_ for class_, _ in reads.fields}
    assert {"ServerConfig", "StorageConfig", "NamespaceConfig", "PlacementConfig"} <= classes
    assert unread(reads, trees) == set(), "nothing outside of the parsers reads them"


def test_a_field_is_not_taken_for_another_one_of_its_name() -> None:
    config = "@attrs.frozen\nclass {}Config:\n    limit: int\n    name: str\n"
    trees = {
        "bookie/one.py": config.format("One"),
        "bookie/two.py": config.format("Two"),
        "bookie/config/parser.py": "def parse(two: TwoConfig):\n    return two.limit, two.name\n",
        "bookie/user.py": (
            "class User:\n"
            "    def __init__(self, one: OneConfig | None, two: TwoConfig):\n"
            "        self._one, self._two = one or OneConfig(), two\n"
            "    def use(self):\n"
            "        return self._one.limit, self._two.name\n"
        ),
    }
    nodes = {path: _by_kind(ast.walk(ast.parse(text))) for path, text in trees.items()}
    assert unread(Reads(nodes), nodes) == {("OneConfig", "name"), ("TwoConfig", "limit")}
