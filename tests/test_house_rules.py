"""The house's rules, held by the syntax trees: rooms of libraries, shells, names, the length of a file.

A rule that is wrong is changed here, in plain sight, together with the code that needs it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house_lists import (
    DELETE_LEDGERS,
    FACADES,
    FORBIDDEN_NAMES,
    HANDED_ON,
    KEY_LOADERS,
    KNOWS_PROMOTION,
    LEDGER_CLIENT,
    LONG_FUNCTIONS,
    MANY_ARGUMENTS,
    ONLY_IN,
    PRIVATE_REACHES,
    SECRET_READERS,
    SETTINGS,
    SHARED_CLASS_NAMES,
    SHELLS,
    SHOWN_CAUSES,
    SMALL_MODULES,
    WALL_CLOCK_ROOM,
)
from tests.places import ROOT
from tests.source_tree import PACKAGES, ROOTS, Import, dependencies, modules

pytestmark = pytest.mark.xdist_group("source tree")  # parsed once

LINES_MAX = 500  # of code
SMALL_LINES = 60  # of code; a module with fewer belongs into its only importer, if that stands beside it
TEST_LINES_MAX = 700  # a test file mirrors one module, and has as many cases as that needs
FUNCTION_LINES = 60  # a longer one is in the list, with its bar
ARGUMENTS_MAX = 7  # more that travel together are one value
MANY_ARGUMENTS_MAX = 20  # of the list, over all packages

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
MACHINE_PATH = re.compile(r"(?<![\w}.\]*])/(work|root|home|tmp)\b")


def _file_of(imported: Import) -> set[str]:
    """The files an import may mean: ``from a.b import c`` is ``a/b.py``, or ``a/b/c.py``."""
    path = imported.module.replace(".", "/")
    return {f"{path}.py", f"{path}/__init__.py"} | {f"{path}/{name}.py" for name in imported.names}


def test_the_trees_are_found() -> None:
    assert {module.package for module in modules()} == set(PACKAGES)


def test_every_sub_package_says_what_it_is_and_exports_its_public_names() -> None:
    wrong = []
    for module in modules():
        if not module.path.endswith("__init__.py") or module.path.startswith("dlog/cli/"):
            continue
        docstring = ast.get_docstring(module.tree) or ""
        exports = any(
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
            for node in module.tree.body
        ) or "ledger.runtime.lazy_names" in {
            node.module for node in module.nodes if isinstance(node, ast.ImportFrom)
        }
        if not 1 <= len(docstring.splitlines()) <= 10 and module.path.count("/") > 1:
            wrong.append(f"{module.path}: its docstring has {len(docstring.splitlines())} lines, not 1 to 10")
        if not exports and module.path.count("/") > 1:
            wrong.append(f"{module.path}: it exports nothing")
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


def test_the_wall_clock_is_read_in_one_place() -> None:
    wrong = [
        f"{module.path}:{node.lineno}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("time", "time"), ("time", "time_ns")}
        and module.path != WALL_CLOCK_ROOM
    ]
    assert wrong == []


def test_ledgers_of_logs_are_deleted_by_one_function() -> None:
    wrong = [
        f"{module.path}:{node.lineno} uses {ast.unparse(node)}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Attribute)
        and module.package in ("dlog", "spark_integration")
        and not module.lives_in(DELETE_LEDGERS)
        and (
            node.attr == "delete_unchanged"
            or (node.attr == "delete" and LEDGER_CLIENT.search(ast.unparse(node.value)))
        )
    ]
    assert wrong == []


def test_trio_is_imported_only_by_shells() -> None:
    # The store seam names trio.Event as the type of a watch; it awaits nothing.
    allowed = (*SHELLS, "ledger/metadata_store/store.py")
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


_SECRET_WORDS = re.compile(r"token|passw|secret|jaas|credential|key_?(file|store)")
_READS = {"open", "read_text", "read_bytes", "load_cert_chain"}


def test_secrets_are_read_in_one_place() -> None:
    wrong = []
    for module in modules():
        for node in module.nodes:
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in _READS:
                continue
            place = SECRET_READERS if name != "load_cert_chain" else KEY_LOADERS
            named = " ".join(ast.unparse(part) for part in (node.func, *node.args[:1])).lower()
            is_secret = name == "load_cert_chain" or _SECRET_WORDS.search(named)
            if is_secret and not module.lives_in(place):
                wrong.append(f"{module.path}:{node.lineno}: use ledger.runtime.secret_file")
    assert wrong == []


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


FACES = ("dlog/aio/", "dlog/blocking/", "ledger/blocking.py", "ledger/runtime/tasks/blocking_face.py")


def _private_reaches(tree: ast.Module) -> list[int]:
    """Lines that use a private name of another object, also by its text."""
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.ClassDef)} | {"self", "cls"}
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute):
            name, of = node.attr, node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            name, of = getattr(node.args[1], "value", ""), node.args[0]
        else:
            continue
        is_private = str(name).startswith("_") and not str(name).startswith("__")
        if is_private and not (isinstance(of, ast.Name) and of.id in own):
            found.append(node.lineno)
    return found


def test_a_private_reach_is_found() -> None:
    text = (
        "class A:\n  def f(self, b):\n    self._a\n    A._c\n    b._d\n    self._a._e\n    getattr(b, '_f')\n"
    )
    assert sorted(_private_reaches(ast.parse(text))) == [5, 6, 7]


def test_no_face_reaches_a_private_name_of_another_object() -> None:
    """Readers, writers and handles of trio have the public calls that the faces need."""
    wrong = [
        f"{module.path}:{line}"
        for module in modules()
        if module.lives_in(FACES)
        for line in _private_reaches(module.tree)
    ]
    assert wrong == []


def _foreign_reaches(tree: ast.Module) -> list[tuple[int, str]]:
    """Private names of objects that the module defines nowhere: of classes of other modules."""
    nodes = list(ast.walk(tree))
    own, libraries = set(), {"self", "cls"}
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                own.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Import(names=names):
                libraries |= {each.asname or each.name for each in names}  # as in os._exit
    return [
        (node.lineno, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in own
        and ast.unparse(node.value) not in libraries
    ]


def test_a_reach_into_another_module_is_found() -> None:
    text = "import os\n\nclass A:\n  def f(self, b):\n    self._a = b._a\n    b.c._d()\n    os._exit(1)\n"
    assert _foreign_reaches(ast.parse(text)) == [(6, "_d")]


def test_no_module_reaches_a_private_name_of_an_object_of_another_module() -> None:
    found = {
        f"{module.path} {name}": line for module in modules() for line, name in _foreign_reaches(module.tree)
    }
    assert {place: line for place, line in found.items() if place not in PRIVATE_REACHES} == {}
    assert sorted(set(PRIVATE_REACHES) - set(found)) == [], "the list names places that are gone"


def test_no_module_is_called_after_nothing() -> None:
    names = {Path(module.path).stem: module.path for module in modules()}
    assert {names[name] for name in FORBIDDEN_NAMES & set(names)} == set()
    directories = {part for module in modules() for part in Path(module.path).parts[:-1]}
    assert directories & FORBIDDEN_NAMES == set()


def _lines_of_code(text: str) -> int:
    """Lines without blank ones, comments, docstrings and imports: a sentence costs no line of code."""
    off: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            off.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if number not in off and line.strip() and line.lstrip()[0] != "#")


def test_lines_of_code_leave_out_what_explains_and_imports() -> None:
    text = '"""A module.\n\nIn lines.\n"""\n\nimport os\n# why\nx = """a\nb"""\n'
    text += '\ndef f():\n    """Docs."""\n    return os\n'
    assert _lines_of_code(text) == 4


def _is_too_long(text: str, lines_max: int) -> bool:
    return text.count("\n") >= lines_max and _lines_of_code(text) > lines_max


def test_no_file_is_too_long() -> None:
    too_long = [module.path for module in modules() if _is_too_long(module.text, LINES_MAX)]
    for file in (ROOT / "tests").rglob("*.py"):
        if _is_too_long(file.read_text("utf-8"), TEST_LINES_MAX):
            too_long.append(file.relative_to(ROOT).as_posix())
    assert too_long == []


def _belongs_into_its_importer() -> set[str]:
    importers: dict[str, list[str]] = {}
    for importer, imported in dependencies().items():
        for each in imported:
            importers.setdefault(each, []).append(importer)
    paths = {module.dotted: module.path for module in modules()}
    found = set()
    for module in modules():
        ours = importers.get(module.dotted, [])
        # A package's front door has no code, and a program is started by its name.
        if len(ours) != 1 or paths[ours[0]].endswith("__init__.py") or "__" in module.path:
            continue
        if (
            Path(paths[ours[0]]).parent == Path(module.path).parent
            and _lines_of_code(module.text) < SMALL_LINES
        ):
            found.add(module.path)
    return found


def test_a_small_module_with_one_importer_beside_it_is_part_of_that() -> None:
    """Unless it is a format, a rule or a machine, or the list has another reason."""
    found = _belongs_into_its_importer()
    assert sorted(found - set(SMALL_MODULES)) == []
    assert sorted(set(SMALL_MODULES) - found) == [], "the list names modules that are gone or have grown"


def test_a_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for module in modules():
        if module.lives_in(FACADES):
            continue
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module.path)
    found = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert {name: paths for name, paths in found.items() if name not in SHARED_CLASS_NAMES} == {}
    assert sorted(set(SHARED_CLASS_NAMES) - set(found)) == [], "the list names classes that are renamed"


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    found = function.args
    names = [each.arg for each in (*found.posonlyargs, *found.args, *found.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls", "task_status")])


def _long_signatures(tree: ast.AST, owner: str = "") -> list[str]:
    found: list[str] = []
    for node in ast.iter_child_nodes(tree):
        name = f"{owner}{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _arguments(node) > ARGUMENTS_MAX:
            found.append(name)
        is_named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        found += _long_signatures(node, f"{name}." if is_named else owner)
    return found


def test_arguments_that_travel_together_are_one_value() -> None:
    found = {f"{module.path} {name}" for module in modules() for name in _long_signatures(module.tree)}
    assert sorted(found - set(MANY_ARGUMENTS)) == []
    assert sorted(set(MANY_ARGUMENTS) - found) == [], "the list names functions that are gone"
    assert len(MANY_ARGUMENTS) <= MANY_ARGUMENTS_MAX


def _long_functions(tree: ast.AST, owner: str = "") -> dict[str, int]:
    """The functions with more than ``FUNCTION_LINES``, from ``def`` to the last line."""
    found: dict[str, int] = {}
    for node in ast.iter_child_nodes(tree):
        name = f"{owner}{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                found[name] = lines
        is_named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        found |= _long_functions(node, f"{name}." if is_named else owner)
    return found


def test_no_function_is_too_long() -> None:
    found = {
        f"{module.path} {name}": lines
        for module in modules()
        for name, lines in _long_functions(module.tree).items()
    }
    assert sorted(set(found) - set(LONG_FUNCTIONS)) == []
    assert sorted(set(LONG_FUNCTIONS) - set(found)) == [], "the list names functions that are gone"
    assert {name: lines for name, lines in found.items() if lines > LONG_FUNCTIONS[name]} == {}


def test_nothing_is_left_unfinished() -> None:
    wrong = [
        f"{module.path}:{number}"
        for module in modules()
        for number, line in enumerate(module.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert wrong == []


def test_every_assert_says_which_line_of_ours_makes_it_true() -> None:
    """In a comment on its line or on the line above. No value of a peer, a file or a store reaches one."""
    wrong = []
    for module in modules():
        lines = ["", *module.text.splitlines()]
        wrong += [
            f"{module.path}:{node.lineno}"
            for node in module.nodes
            if isinstance(node, ast.Assert)
            and not any("  # " in line for line in lines[node.lineno : (node.end_lineno or 0) + 1])
            and not lines[node.lineno - 1].lstrip().startswith("# ")
        ]
    assert wrong == []


# Calls that change something, by the first word of their names.
EFFECTS = {
    *(
        "next",
        "pop",
        "popleft",
        "popitem",
        "setdefault",
        "update",
        "add",
        "append",
        "extend",
        "insert",
        "remove",
    ),
    *(
        "discard",
        "clear",
        "acquire",
        "release",
        "send",
        "recv",
        "receive",
        "read",
        "readline",
        "write",
        "submit",
    ),
    *(
        "take",
        "put",
        "wait",
        "waitpid",
        "close",
        "open",
        "start",
        "stop",
        "run",
        "join",
        "communicate",
        "settle",
    ),
    *("kill", "create", "delete", "set", "commit", "flush", "sync", "seek", "fetch", "feed", "begin", "end"),
}


def _has_effect(node: ast.AST) -> bool:
    """True for what may change something: an await, an assignment, or a call of a name that says so."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if isinstance(node.func, ast.Name) and name == "set":
            return False
        return name in EFFECTS or name.startswith(tuple(f"{effect}_" for effect in EFFECTS))
    return isinstance(node, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom)


@pytest.mark.parametrize(
    ("asserted", "has_effect"),
    [
        ("await reply()", True),
        ("(found := find())", True),
        ("next(rest, None) is None", True),
        ("self.queue.popleft() == 1", True),
        ("os.waitpid(child, 0)[1] == 0", True),
        ("len(set(names)) == len(names)", False),
        ("self.is_taken(entry_id)", False),
    ],
)
def test_an_assert_with_an_effect_is_found(asserted: str, has_effect: bool) -> None:
    assert any(map(_has_effect, ast.walk(ast.parse(asserted)))) is has_effect


def test_no_assert_has_an_effect_that_optimised_python_leaves_out() -> None:
    """Of the product and of what tests use; in test modules pytest keeps asserts."""
    files = [(module.path, module.text) for module in modules()]
    for file in (ROOT / "tests").rglob("*.py"):
        if not file.name.startswith("test_"):
            files.append((file.relative_to(ROOT).as_posix(), file.read_text("utf-8")))
    wrong = [
        f"{path}:{node.lineno}"
        for path, text in files
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assert) and any(map(_has_effect, ast.walk(node.test)))
    ]
    assert wrong == []


REPORTS = {
    "report_contained",
    "contained_error",
    "note_fault",
    "half_made",
    "report",
}  # by line, counter and name
ANY_CLASS = {"Exception", "BaseException"}


def _swallows(node: ast.AST) -> bool:
    """True for what ends errors of any class, and neither raises nor reports them."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name.endswith("suppress") and bool(ANY_CLASS & set(map(ast.unparse, node.args)))
    if not isinstance(node, ast.ExceptHandler):
        return False
    inner = [each for line in node.body for each in ast.walk(line)]
    calls = {
        getattr(each.func, "attr", getattr(each.func, "id", ""))
        for each in inner
        if isinstance(each, ast.Call)
    }
    is_any = node.type is None or any(
        isinstance(each, ast.Name) and each.id in ANY_CLASS for each in ast.walk(node.type)
    )
    return is_any and not calls & REPORTS and not any(isinstance(each, ast.Raise) for each in inner)


def _functions(tree: ast.Module) -> dict[ast.AST, str]:
    """The function around each node; of one in a method, both."""
    found: dict[ast.AST, str] = {}
    for outer in ast.walk(tree):  # from the outside in
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{found[outer]}.{outer.name}" if outer in found else outer.name
            found |= dict.fromkeys(ast.walk(outer), name)
    return found


def late_updates(tree: ast.AST) -> list[int]:
    """The lines of updates in place that read a value of several tasks, wait, and then store it."""
    lines = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        shared = {
            name for node in ast.walk(function) if isinstance(node, ast.Nonlocal) for name in node.names
        }
        updates = (node for node in ast.walk(function) if isinstance(node, ast.AugAssign))
        for node in updates:
            is_shared = not isinstance(node.target, ast.Name) or node.target.id in shared
            if is_shared and any(isinstance(one, ast.Await) for one in ast.walk(node.value)):
                lines.add(node.lineno)
    return sorted(lines)


@pytest.mark.parametrize(
    ("statement", "is_late"),
    [
        ("nonlocal all_done; all_done &= await copy()", True),
        ("self.count += await mark()", True),
        ("found.count += len(await mark())", True),
        ("count += await mark()", False),  # of one task
        ("nonlocal count; more = await mark(); count += more", False),
    ],
)
def test_a_late_update_is_found(statement: str, is_late: bool) -> None:
    assert bool(late_updates(ast.parse(f"async def f():\n    {statement}"))) == is_late


def test_no_update_in_place_waits_between_its_read_and_its_write() -> None:
    """Another task may have changed the value meanwhile; its change would be lost."""
    late = [f"{module.path}:{line}" for module in modules() for line in late_updates(module.tree)]
    assert not late, "wait first, then update: " + ", ".join(late)


def test_an_error_of_any_class_is_raised_again_or_reported_in_one_way() -> None:
    """By ``ledger.runtime.tasks.failure_domain`` or ``bookie.storage.failure``. The list has the others."""
    found = set()
    for module in modules():
        if swallowing := [node for node in module.nodes if _swallows(node)]:
            names = _functions(module.tree)
            found |= {f"{module.path} {names[node]}" for node in swallowing}
    assert sorted(found - set(HANDED_ON)) == []
    assert sorted(set(HANDED_ON) - found) == [], "the list names places that are gone"


def _recursion_is_caught(tree: ast.Module) -> set[ast.AST]:
    """What stands in a ``try`` that turns both errors of the JSON parser into one of ours."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            caught = " ".join(ast.unparse(each.type) for each in node.handlers if each.type is not None)
            if "ValueError" in caught and "RecursionError" in caught:
                found.update(inner for line in node.body for inner in ast.walk(line))
    return found


def test_json_of_nodes_files_and_peers_may_nest_as_deep_as_it_likes() -> None:
    """A text of ours says so on its line."""
    wrong = []
    for module in modules():
        if "json.load" not in module.text:
            continue
        lines, caught = ["", *module.text.splitlines()], _recursion_is_caught(module.tree)
        wrong += [
            f"{module.path}:{node.lineno}"
            for node in module.nodes
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("json.loads", "json.load")
            and not module.lives_in(("dlog/cli/demo/",))  # they read their own processes
            and node not in caught
            and "  # " not in lines[node.lineno]
        ]
    assert wrong == []


DIGITS = re.compile(r"\.is(digit|decimal|numeric)\(\)")


def test_digits_have_a_bounded_number_before_they_are_parsed() -> None:
    """``int`` refuses more than 4,300, with an error of its own. Else a comment says why there are few."""
    wrong = []
    for module in modules():
        lines = ["", *module.text.splitlines()]
        wrong += [
            f"{module.path}:{number}"
            for number, line in enumerate(lines)
            if DIGITS.search(line)
            and "len(" not in line
            and "  # " not in line
            and not lines[number - 1].lstrip().startswith("# ")
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


def test_promotion_is_known_at_one_seam() -> None:
    """Writers, readers and calls ask a ``LogLocation`` where their log is."""
    found = {
        module.path
        for module in modules()
        if not module.lives_in(("dlog/promotion/",))
        and "promot" in (ROOT / module.path).read_text("utf-8").lower()
    }
    assert sorted(found - KNOWS_PROMOTION) == []
    assert sorted(KNOWS_PROMOTION - found) == []
    assert len(KNOWS_PROMOTION) <= 10


def test_a_namespace_is_composed_and_its_faces_reach_no_private_name_of_it() -> None:
    trees = {module.path: module.tree for module in modules()}
    (namespace,) = (
        node
        for node in trees["dlog/namespace_handle.py"].body
        if isinstance(node, ast.ClassDef) and node.name == "Namespace"
    )
    bases = [ast.unparse(base) for base in namespace.bases]
    assert bases == ["ProcessBound"], "what it offers more is an object that it holds"
    wrong = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees.items()
        if path.startswith(("dlog/", "spark_integration/"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and re.search(r"(^|[._])(namespace|inner|ns|context)$", ast.unparse(node.value))
        and node.attr not in ("_inner", "_bridge", "_loop", "_opened")  # of a face, for its own package
    ]
    assert wrong == []


def test_no_message_is_printed_twice() -> None:
    """``raise Error(f"...: {exc}") from exc`` prints the cause's message twice: it is ``from None``."""

    def found(node: ast.AST, caught: tuple[str | None, ...]) -> list[int]:
        if isinstance(node, ast.ExceptHandler):
            caught = (*caught, node.name)
        inner = [line for each in ast.iter_child_nodes(node) for line in found(each, caught)]
        return [node.lineno, *inner] if isinstance(node, ast.Raise) and repeats(node, caught) else inner

    def repeats(node: ast.Raise, caught: tuple[str | None, ...]) -> bool:
        if node.exc is None or not isinstance(node.cause, ast.Name) or node.cause.id not in caught:
            return False
        taken = [
            each
            for inner in ast.walk(node.exc)
            if isinstance(inner, ast.FormattedValue | ast.Call)
            for each in ast.iter_child_nodes(inner)
        ]
        of_system = [
            each.value
            for each in ast.walk(node.exc)
            if isinstance(each, ast.Attribute) and each.attr == "strerror"
        ]
        return any(isinstance(each, ast.Name) and each.id == node.cause.id for each in (*taken, *of_system))

    rooms = ("dlog/", "ledger/", "namespace/", "bookie/embedded/")
    wrong = [
        f"{module.path}:{line}"
        for module in modules()
        if module.lives_in(rooms) and not module.lives_in(ROOTS) and module.path not in SHOWN_CAUSES
        for line in found(module.tree, ())
    ]
    assert wrong == []
