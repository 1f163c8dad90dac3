"""The house's rules, held by the syntax trees: who may import whom, what lives in which room, how long a
file is.

A rule that is wrong is changed here, in plain sight, together with the code that needs it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("namespace", "ledger", "bookie", "dlog", "spark_integration")
LINES_MAX = 500
TEST_LINES_MAX = 700  # a test file mirrors one module, and has as many cases as that needs

# Package -> our other packages it may import. Arrows point down.
MAY_IMPORT = {
    "namespace": set[str](),
    "ledger": {"namespace"},
    "bookie": {"ledger", "namespace"},
    "dlog": {"ledger", "namespace"},
    "spark_integration": {"dlog"},
}
# Where programs are assembled: these may import everything below a command, bookies included.
ROOTS = ("dlog/embedded.py", "dlog/embedded_garbage.py", "dlog/connect.py", "dlog/cluster/", "dlog/cli/")
# The demo counts its records by Spark as a user's program would.
SPARK_ROOT = "dlog/cli/demo/spark_count.py"

# A library and the only rooms that may know it. A prefix ending in "/" is a whole directory.
ONLY_IN = {
    "kazoo": ("namespace/zookeeper.py",),
    "sqlite3": ("namespace/sqlite_tree.py",),
    "pyspark": ("spark_integration/", SPARK_ROOT),
    "pyarrow": ("spark_integration/",),
    "rocksdict": ("bookie/",),
    "click": ("dlog/cli/",),
    "rich": ("dlog/cli/",),
    "crc32c": ("ledger/", "bookie/"),
    "google": ("ledger/",),
    "snappy": ("dlog/",),
    "cramjam": ("dlog/",),
    "starlette": ("bookie/",),
    "hypercorn": ("bookie/",),
    "prometheus_client": ("bookie/",),
    "asyncio": (),
    "anyio": (),
    "multiprocessing": (),
    "pickle": ("spark_integration/",),
}

# Everything that moves bytes. Formats, rules, machines and values are the rest, and import none of these.
SHELLS: tuple[str, ...] = (
    "bookie/__main__.py",
    "bookie/admission.py",
    "bookie/admin.py",
    "bookie/answers.py",
    "bookie/bound_metadata.py",
    "bookie/compactor.py",
    "bookie/cookie_check.py",
    "bookie/directory_set.py",
    "bookie/directory_store.py",
    "bookie/disk.py",
    "bookie/disk_read_only.py",
    "bookie/disk_watch.py",
    "bookie/entry_log.py",
    "bookie/entry_log_ids.py",
    "bookie/entry_log_reader.py",
    "bookie/entry_reads.py",
    "bookie/epochs.py",
    "bookie/gc.py",
    "bookie/index_kinds.py",
    "bookie/incarnation.py",
    "bookie/index_rebuild.py",
    "bookie/index_view.py",
    "bookie/integrity.py",
    "bookie/journal.py",
    "bookie/journal_files.py",
    "bookie/journals.py",
    "bookie/last_mark.py",
    "bookie/last_synced.py",
    "bookie/ledger_directory.py",
    "bookie/limbo.py",
    "bookie/live_ledgers.py",
    "bookie/local_check.py",
    "bookie/log_collector.py",
    "bookie/log_summary.py",
    "bookie/open_log.py",
    "bookie/outbox.py",
    "bookie/reader_pool.py",
    "bookie/page_files.py",
    "bookie/page_index.py",
    "bookie/over_replicated.py",
    "bookie/rebuild.py",
    "bookie/registration.py",
    "bookie/replay.py",
    "bookie/reserve.py",
    "bookie/run.py",
    "bookie/scrubber.py",
    "bookie/server.py",
    "bookie/storage.py",
    "dlog/blocking.py",
    "dlog/cli/",
    "dlog/cluster/",
    "dlog/connect.py",
    "dlog/embedded.py",
    "dlog/embedded_garbage.py",
    "dlog/log_reader.py",
    "dlog/log_source.py",
    "dlog/log_writer.py",
    "dlog/loop_thread.py",
    "dlog/namespace_handle.py",
    "dlog/nursery.py",
    "dlog/patience.py",
    "dlog/pending.py",
    "dlog/segment_keeper.py",
    "dlog/segments.py",
    "ledger/adv_handle.py",
    "ledger/background.py",
    "ledger/catalog.py",
    "ledger/client.py",
    "ledger/closing.py",
    "ledger/cluster.py",
    "ledger/confirmations.py",
    "ledger/deferred_sync.py",
    "ledger/dial.py",
    "ledger/explicit_lac.py",
    "ledger/handle.py",
    "ledger/handshake.py",
    "ledger/lac_poll.py",
    "ledger/line.py",
    "ledger/locations.py",
    "ledger/membership.py",
    "ledger/metadata_update.py",
    "ledger/opening.py",
    "ledger/pending_adds.py",
    "ledger/pipe.py",
    "ledger/placer.py",
    "ledger/read_handle.py",
    "ledger/questions.py",
    "ledger/recovery_run.py",
    "ledger/repair.py",
    "ledger/replica_copy.py",
    "ledger/replica_race.py",
    "ledger/replica_reads.py",
    "ledger/timers.py",
    "ledger/transport.py",
    "ledger/write_handle.py",
    "namespace/lock.py",
    "namespace/logs.py",
    "namespace/memory.py",
    "namespace/session.py",
    "namespace/sqlite.py",
    "namespace/sqlite_tree.py",
    "namespace/zookeeper.py",
    "spark_integration/batch.py",
    "spark_integration/client.py",
    "spark_integration/source.py",
    "spark_integration/stream.py",
)

# Settings of a whole are made of the settings of its parts, which stand beside the parts.
SETTINGS = ("bookie/config.py", "bookie/gc_settings.py", "bookie/storage_config.py")

FORBIDDEN_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "misc",
    "manager",
    "managers",
    "shared",
    "base",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
MACHINE_PATH = re.compile(r"(?<![\w}.\]*])/(work|root|home|tmp)\b")
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

    def lives_in(self, rooms: tuple[str, ...]) -> bool:
        return any(self.path == room or (room.endswith("/") and self.path.startswith(room)) for room in rooms)


def _imports(tree: ast.Module) -> Iterator[Import]:
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
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


def _file_of(imported: Import) -> set[str]:
    """The files an import may mean: ``from a.b import c`` is ``a/b.py``, or ``a/b/c.py``."""
    path = imported.module.replace(".", "/")
    return {f"{path}.py", f"{path}/__init__.py"} | {f"{path}/{name}.py" for name in imported.names}


def test_the_trees_are_found() -> None:
    assert {module.package for module in modules()} == set(PACKAGES)


def test_imports_between_packages_point_down() -> None:
    wrong = []
    for module in modules():
        allowed = {module.package} | MAY_IMPORT[module.package]
        if module.lives_in(ROOTS):
            allowed |= {"bookie"}
        if module.path == SPARK_ROOT:
            allowed |= {"spark_integration"}
        wrong += [
            f"{module.path}:{imported.line} imports {imported.module}"
            for imported in module.imports
            if imported.module.partition(".")[0] in set(PACKAGES) - allowed
        ]
    assert wrong == []


def test_spark_knows_only_the_public_surface_of_dlog() -> None:
    wrong = [
        f"{module.path}:{imported.line} imports {imported.module}"
        for module in modules()
        if module.package == "spark_integration"
        for imported in module.imports
        if imported.module.startswith(("dlog.cli", "dlog.cluster", "dlog.embedded", "dlog.connect"))
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_stays_in_its_room(library: str) -> None:
    wrong = [
        f"{module.path}:{imported.line}"
        for module in modules()
        for imported in module.imports
        if imported.module.partition(".")[0] == library and not module.lives_in(ONLY_IN[library])
    ]
    assert wrong == []


def test_every_third_party_library_has_been_thought_about() -> None:
    import sys

    known = (
        set(ONLY_IN) | set(PACKAGES) | {"attrs", "trio", "outcome", "grpc_tools"} | sys.stdlib_module_names
    )
    wrong = [
        f"{module.path}:{imported.line} imports {imported.module}"
        for module in modules()
        for imported in module.imports
        if imported.module.partition(".")[0] not in known
    ]
    assert wrong == []


def test_trio_is_imported_only_by_shells() -> None:
    # The store seam names trio.Event as the type of a watch; it awaits nothing.
    allowed = (*SHELLS, "namespace/store.py")
    wrong = [
        module.path
        for module in modules()
        if any(imported.module.partition(".")[0] == "trio" for imported in module.imports)
        and not module.lives_in(allowed)
    ]
    assert wrong == []


def test_what_decides_does_not_import_what_moves_bytes() -> None:
    shells = {module.path for module in modules() if module.lives_in(SHELLS)}
    wrong = []
    for module in modules():
        # A package's front door re-exports, and programs are assembled at the roots.
        if module.path.endswith("__init__.py") or module.lives_in((*SHELLS, *ROOTS, *SETTINGS)):
            continue
        wrong += [
            f"{module.path}:{imported.line} imports {imported.module}"
            for imported in module.imports
            if _file_of(imported) & shells and not imported.for_types_only
        ]
    assert wrong == []


def test_the_list_of_shells_names_files_that_exist() -> None:
    paths = {module.path for module in modules()}
    assert [
        room for room in SHELLS if room not in paths and not any(path.startswith(room) for path in paths)
    ] == []


def test_packages_are_not_imported_whole() -> None:
    # A local variable called ``ledger`` or ``bookie`` must hide nothing.
    wrong = [
        f"{module.path}:{imported.line}"
        for module in modules()
        for imported in module.imports
        if imported.module in {"namespace", "ledger", "bookie"} and not imported.names
    ]
    assert wrong == []


def test_nobody_imports_another_modules_underscore() -> None:
    wrong = [
        f"{module.path}:{imported.line} takes {name} from {imported.module}"
        for module in modules()
        for imported in module.imports
        for name in imported.names
        if imported.module.partition(".")[0] in PACKAGES
        and name.startswith("_")
        and not name.startswith("__")
    ]
    assert wrong == []


def test_no_module_is_called_after_nothing() -> None:
    names = {Path(module.path).stem: module.path for module in modules()}
    assert {names[name] for name in FORBIDDEN_NAMES & set(names)} == set()
    directories = {part for module in modules() for part in Path(module.path).parts[:-1]}
    assert directories & FORBIDDEN_NAMES == set()


def test_no_file_is_too_long() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in modules()}
    too_long = {path: length for path, length in lengths.items() if length > LINES_MAX}
    for file in (ROOT / "tests").rglob("*.py"):
        length = len(file.read_text("utf-8").splitlines())
        if length > TEST_LINES_MAX:
            too_long[file.relative_to(ROOT).as_posix()] = length
    assert too_long == {}


def test_nothing_is_left_unfinished() -> None:
    wrong = [
        f"{module.path}:{number}"
        for module in modules()
        for number, line in enumerate(module.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert wrong == []


def test_no_path_of_somebodys_machine_is_in_the_product() -> None:
    wrong = [
        f"{module.path}:{number}"
        for module in modules()
        for number, line in enumerate(module.text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert wrong == []


def test_every_module_says_what_it_is() -> None:
    assert [module.path for module in modules() if not ast.get_docstring(module.tree)] == []


def test_everything_public_says_what_it_does() -> None:
    wrong = [
        f"{module.path}:{node.lineno} {node.name}"
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and not module.path.endswith("wire/messages.py")  # a reply is named by its request
    ]
    assert wrong == []


def test_every_package_has_a_readme() -> None:
    assert [package for package in PACKAGES if not (ROOT / package / "README.md").exists()] == []


def test_every_test_file_has_its_own_name_among_its_kind() -> None:
    for kind in (ROOT / "tests").iterdir():
        names = [file.name for file in kind.rglob("test_*.py")]
        assert sorted({name for name in names if names.count(name) > 1}) == []
