"""The modules of the product as syntax trees, with their imports, for tests of rules."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import attrs

from tests.places import ROOT

PACKAGES = ("ledger", "bookie", "namespace", "dlog", "spark_integration")
# Where programs are assembled: these may import everything below a command, bookies included.
ROOTS = ("dlog/cluster/", "dlog/cli/", "dlog/testing/")
GENERATED = re.compile(r"_pb2\.pyi?$")


@attrs.frozen
class Import:
    """One imported module, with the names taken from it."""

    module: str
    names: tuple[str, ...]
    line: int
    for_types_only: bool  # under ``if TYPE_CHECKING``


@attrs.frozen
class Module:
    """A source file of the product."""

    path: str  # relative to the project, with slashes
    text: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]

    @property
    def dotted(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def lives_in(self, rooms: tuple[str, ...]) -> bool:
        return any(self.path == room or (room.endswith("/") and self.path.startswith(room)) for room in rooms)


def _imports(tree: ast.Module) -> Iterator[Import]:
    nodes = list(ast.walk(tree))
    for_types = {
        inner
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno, node in for_types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write the package's name"
            names = tuple(alias.name for alias in node.names)
            yield Import(node.module or "", names, node.lineno, node in for_types)


@functools.cache
def modules() -> tuple[Module, ...]:
    found = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if GENERATED.search(file.name):
                continue
            text = file.read_text("utf-8")
            tree = ast.parse(text, str(file))
            path = file.relative_to(ROOT).as_posix()
            found.append(Module(path, text, tree, tuple(_imports(tree))))
    return tuple(found)


@functools.cache
def dependencies() -> dict[str, frozenset[str]]:
    """Each of our modules to those it imports, anywhere in its text and for whatever purpose."""
    known = {module.dotted for module in modules()}
    graph = {}
    for module in modules():
        targets = set()
        for imported in module.imports:
            inner = {f"{imported.module}.{name}" for name in imported.names} & known
            targets |= inner
            folder = ROOT / imported.module.replace(".", "/")
            if imported.module in known and not all(
                (folder / f"{name}.py").exists() for name in imported.names or ("",)
            ):
                targets.add(imported.module)
        graph[module.dotted] = frozenset(targets - {module.dotted})
    return graph
