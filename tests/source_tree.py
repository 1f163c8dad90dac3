"""The modules of the product as syntax trees, with their imports, for tests of rules."""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections.abc import Iterator, Sequence

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


@attrs.frozen(slots=False)
class Module:
    """A source file of the product, parsed when a test asks: pytest's collection should read no trees."""

    path: str  # relative to the project, with slashes
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return _trees()[self.path]

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, the outer ones first, as ``ast.walk`` gives them."""
        return tuple(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self.nodes))

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]

    @property
    def dotted(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def lives_in(self, rooms: tuple[str, ...]) -> bool:
        return any(self.path == room or (room.endswith("/") and self.path.startswith(room)) for room in rooms)


def _imports(nodes: Sequence[ast.AST]) -> Iterator[Import]:
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
            found.append(Module(file.relative_to(ROOT).as_posix(), file.read_text("utf-8")))
    return tuple(found)


@functools.cache
def _trees() -> dict[str, ast.Module]:
    """All trees. The collector of garbage would walk those that are there for each few more: it waits."""
    gc.disable()
    try:
        return {module.path: ast.parse(module.text, module.path) for module in modules()}
    finally:
        gc.enable()


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
