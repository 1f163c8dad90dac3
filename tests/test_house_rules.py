"""The house's rules, held by the syntax trees: rooms of libraries, shells, names, the length of a file.

A rule that is wrong is changed here, in plain sight, together with the code that needs it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.source_tree import PACKAGES, ROOTS, Import, modules

LINES_MAX = 500  # of code
TEST_LINES_MAX = 700  # a test file mirrors one module, and has as many cases as that needs

# The demo counts its records by Spark as a user's program would.
SPARK_ROOT = "dlog/cli/demo/spark_count.py"

# A library and the only rooms that may know it. A prefix ending in "/" is a whole directory.
ONLY_IN = {
    "kazoo": ("namespace/zookeeper.py", "namespace/zookeeper_threads.py"),
    "sqlite3": (
        "namespace/sqlite_store/tree.py",
        "namespace/sqlite_store/database.py",
        "namespace/sqlite_store/failures.py",
        "namespace/sqlite_store/repair.py",
        "dlog/cli/bench/peers/sqlite.py",
    ),
    "pyspark": ("spark_integration/", SPARK_ROOT, "dlog/cli/bench/spark/"),
    "pyarrow": ("spark_integration/", "dlog/read/record_batch.py", "dlog/cli/bench/spark/floor.py"),
    "rocksdict": ("bookie/",),
    "click": ("dlog/cli/",),
    "rich": ("dlog/cli/",),
    "crc32c": ("ledger/", "bookie/", "dlog/testing/disk.py"),
    "google": ("ledger/",),
    "snappy": ("dlog/",),
    "cramjam": ("dlog/",),
    "h11": ("bookie/http/exchange.py", "bookie/http/server.py"),
    "cryptography": ("dlog/", "ledger/", "bookie/"),
    "asyncio": ("dlog/aio/",),
    "cattrs": ("dlog/typed.py",),
    "opentelemetry": ("ledger/statistics/tracing.py",),
    "pytest": ("dlog/testing/plugin/",),
    "hypothesis": ("dlog/testing/strategies.py",),
    "anyio": (),
    "multiprocessing": (),
    "pickle": ("spark_integration/",),
}

# The only reader of the system's clock; all else goes by the clock of the event loop.
WALL_CLOCK_ROOM = "namespace/clock.py"

# On behalf of logs one function deletes ledgers, after a check. Commands on ledgers delete what they name.
DELETE_LEDGERS = ("dlog/ownership/deletion.py", "dlog/cli/operators/ledger.py", "dlog/cli/bench/work/")
LEDGER_CLIENT = re.compile(r"(^|[._])(client|catalog)$|(^|[._])ledgers$")

# Everything that moves bytes. Formats, rules, machines and values are the rest, and import none of these.
SHELLS: tuple[str, ...] = (
    "ledger/blocking.py",
    "ledger/deploy/",
    "ledger/tasks/failure_domain.py",
    "ledger/write/sink.py",
    "ledger/tasks/loop_thread.py",
    "ledger/tasks/service_tasks.py",
    "ledger/tasks/thread_calls.py",
    "dlog/connect.py",
    "dlog/ledgers.py",
    "dlog/explain/collecting.py",
    "dlog/page/page.py",
    "dlog/page/snapshots.py",
    "dlog/metadata/cursor_nodes.py",
    "dlog/metadata/properties/node.py",
    "dlog/metadata/retention_node.py",
    "dlog/read/cursors.py",
    "dlog/read/entry_verifier.py",
    "dlog/read/gap_finder.py",
    "dlog/repair/ledger_references.py",
    "dlog/repair/log_reading.py",
    "dlog/repair/mending.py",
    "dlog/repair/orphans.py",
    "dlog/write/opening.py",
    "bookie/__main__.py",
    "bookie/cluster/access.py",
    "bookie/identity/restored_disks.py",
    "bookie/cluster/startup_check.py",
    "bookie/http/",
    "bookie/server/connection.py",
    "bookie/requests/deferred_replies.py",
    "bookie/server/deferred_work.py",
    "bookie/cluster/bound_metadata.py",
    "bookie/gc/compactor.py",
    "bookie/cluster/cluster_removal.py",
    "bookie/identity/cookie_check.py",
    "bookie/storage/directory_set.py",
    "bookie/storage/directory_store.py",
    "bookie/disk/descriptors.py",
    "bookie/disk/disk.py",
    "bookie/disk/real_disk.py",
    "bookie/disk/rocksdb.py",
    "bookie/disk/read_only.py",
    "bookie/disk/overlay.py",
    "bookie/disk_watch.py",
    "bookie/entrylog/writer.py",
    "bookie/entrylog/ids.py",
    "bookie/entrylog/reader.py",
    "bookie/storage/entry_reads.py",
    "bookie/storage/checkpointer.py",
    "bookie/storage/failure.py",
    "bookie/storage/opening.py",
    "bookie/gc/collector.py",
    "bookie/index/apache_databases.py",
    "bookie/index/apache_refusal.py",
    "bookie/index/index_factory.py",
    "bookie/identity/incarnation.py",
    "bookie/offline/directory_format.py",
    "bookie/offline/index_places.py",
    "bookie/offline/index_rebuild.py",
    "bookie/offline/index_source.py",
    "bookie/index/index_view.py",
    "bookie/cluster/autorecovery.py",
    "bookie/ledger_metadata/gone_ledgers.py",
    "bookie/healing/damage_healing.py",
    "bookie/healing/index_healing.py",
    "bookie/healing/integrity.py",
    "bookie/journal/journal.py",
    "bookie/journal/files.py",
    "bookie/journal/journals.py",
    "bookie/journal/last_mark.py",
    "bookie/journal/last_synced.py",
    "bookie/storage/directory_files.py",
    "bookie/healing/limbo.py",
    "bookie/ledger_metadata/digest_types.py",
    "bookie/ledger_metadata/log_permissions.py",
    "bookie/ledger_metadata/live_ledgers.py",
    "bookie/ledger_metadata/new_ledger_check.py",
    "bookie/damage/consistency_check.py",
    "bookie/damage/conversion_check.py",
    "bookie/gc/log_collector.py",
    "bookie/entrylog/summary.py",
    "bookie/entrylog/open_log.py",
    "bookie/requests/long_polls.py",
    "bookie/server/reply_queue.py",
    "bookie/server/sending.py",
    "bookie/auth/reloading.py",
    "bookie/server/early_tokens.py",
    "bookie/server/handshake.py",
    "bookie/requests/turns.py",
    "bookie/disk/reader_pool.py",
    "bookie/index/page_files.py",
    "bookie/index/page_index.py",
    "bookie/index/page_repair.py",
    "bookie/ledger_metadata/over_replicated.py",
    "bookie/damage/rebuild.py",
    "bookie/cluster/registration.py",
    "bookie/journal/replay.py",
    "bookie/disk/reserve.py",
    "bookie/listening.py",
    "bookie/main.py",
    "bookie/damage/scrubber.py",
    "bookie/server/server.py",
    "bookie/storage/storage.py",
    "dlog/aio/",
    "dlog/blocking/",
    "dlog/cli/",
    "dlog/cluster/",
    "dlog/read/entries.py",
    "dlog/read/chain_end.py",
    "dlog/read/log_reader.py",
    "dlog/read/read_ahead.py",
    "dlog/read/read_only_log.py",
    "dlog/read/verifier.py",
    "dlog/write/log_writer.py",
    "dlog/operations/access_administration.py",
    "dlog/access_control/nodes.py",
    "dlog/operations/administration.py",
    "dlog/federation/federated_store.py",
    "dlog/operations/maintenance.py",
    "dlog/operations/namespace_base.py",
    "dlog/namespace_handle.py",
    "dlog/operations/promoting.py",
    "dlog/promotion/nodes.py",
    "dlog/promotion/promoted_log.py",
    "dlog/promotion/promoter.py",
    "dlog/promotion/segment_copy.py",
    "dlog/promotion/sides.py",
    "dlog/promotions.py",
    "dlog/operations/renaming.py",
    "dlog/bulk/attaching.py",
    "dlog/bulk/detached.py",
    "dlog/bulk/ledgers.py",
    "dlog/operations/batches.py",
    "dlog/operations/queries.py",
    "dlog/retry_policy.py",
    "dlog/shards/creation.py",
    "dlog/shards/reader.py",
    "dlog/shards/writer.py",
    "dlog/testing/clock.py",
    "dlog/testing/disk.py",
    "dlog/testing/recording.py",
    "dlog/testing/world.py",
    "dlog/groups/member.py",
    "dlog/wal/snapshots.py",
    "dlog/wal/write_ahead_log.py",
    "dlog/write/full_ensemble.py",
    "dlog/write/lock_watch.py",
    "dlog/write/pending.py",
    "dlog/write/segment_roller.py",
    "dlog/write/segment_sender.py",
    "dlog/write/segment_lifecycle.py",
    "dlog/write/space.py",
    "ledger/write/adv_handle.py",
    "ledger/write/timed_handle.py",
    "dlog/write/observed_writer.py",
    "dlog/read/observed_reader.py",
    "ledger/audit.py",
    "ledger/tasks/background.py",
    "ledger/catalog/catalog.py",
    "ledger/catalog/cluster_backup.py",
    "ledger/catalog/connection_retry.py",
    "ledger/client.py",
    "ledger/write/closing.py",
    "ledger/context.py",
    "ledger/write/confirmations.py",
    "ledger/write/deferred_sync.py",
    "ledger/transport/dial.py",
    "ledger/write/explicit_lac.py",
    "ledger/write/lac_hints.py",
    "ledger/handle.py",
    "ledger/transport/handshake.py",
    "ledger/read/lac_poll.py",
    "ledger/read/standing_poll.py",
    "ledger/read/lac_query.py",
    "ledger/read/local_reads.py",
    "ledger/read/payloads_ahead.py",
    "ledger/read/log_file.py",
    "ledger/transport/bookie_connection.py",
    "ledger/placement/locations.py",
    "ledger/placement/membership.py",
    "ledger/catalog/metadata_update.py",
    "ledger/recovery/opening.py",
    "ledger/replication/auditor.py",
    "ledger/replication/autorecovery.py",
    "ledger/decommission/drain.py",
    "ledger/replication/election.py",
    "ledger/decommission/bookie_recovery.py",
    "ledger/fragments/entry_lists.py",
    "ledger/decommission/evacuation.py",
    "ledger/replication/fragment_copy.py",
    "ledger/fragments/ledger_check.py",
    "ledger/replication/ledger_restorer.py",
    "ledger/replication/marks.py",
    "ledger/fragments/registered.py",
    "ledger/decommission/removal.py",
    "ledger/replication/worker.py",
    "ledger/transport/pipe.py",
    "ledger/transport/socket_stream.py",
    "ledger/placement/placer.py",
    "ledger/read/handle.py",
    "ledger/transport/bookie_requests.py",
    "ledger/recovery/driver.py",
    "ledger/write/overdue.py",
    "ledger/write/window.py",
    "ledger/write/repair_steps.py",
    "ledger/read/replica_check.py",
    "ledger/read/replica_copy.py",
    "ledger/read/speculative_read.py",
    "ledger/read/replica_reads.py",
    "ledger/tasks/task_errors.py",
    "ledger/tasks/next_turn.py",
    "ledger/tasks/timers.py",
    "ledger/transport/transport.py",
    "ledger/write/handle.py",
    "namespace/lock.py",
    "dlog/metadata/logs.py",
    "dlog/ownership/deletion.py",
    "dlog/ownership/identity.py",
    "dlog/metadata/node_reads.py",
    "dlog/metadata/origin.py",
    "dlog/metadata/policies.py",
    "dlog/metadata/rename_nodes.py",
    "dlog/metadata/segment_nodes.py",
    "namespace/memory.py",
    "namespace/sessions/renewing_store.py",
    "namespace/sessions/session.py",
    "namespace/sqlite_store/store.py",
    "namespace/sqlite_store/reader.py",
    "namespace/sqlite_store/repair.py",
    "namespace/forwarding.py",
    "namespace/read_only.py",
    "namespace/sqlite_store/tree.py",
    "namespace/zookeeper.py",
    "spark_integration/batch.py",
    "spark_integration/arrow.py",
    "spark_integration/client.py",
    "spark_integration/interpreter.py",
    "spark_integration/pipelines/archives/archiving.py",
    "spark_integration/pipelines/archives/directory.py",
    "spark_integration/pipelines/archives/export.py",
    "spark_integration/pipelines/archives/restoring.py",
    "spark_integration/pipelines/archives/segment_files.py",
    "spark_integration/pipelines/archives/union.py",
    "spark_integration/pipelines/compacting/compactor.py",
    "spark_integration/pipelines/compacting/files.py",
    "spark_integration/pipelines/compacting/parts.py",
    "spark_integration/pipelines/compacting/rows.py",
    "spark_integration/pipelines/copying/copier.py",
    "spark_integration/pipelines/copying/parts.py",
    "spark_integration/pipelines/copying/state.py",
    "spark_integration/pipelines/places.py",
    "spark_integration/pipelines/resuming.py",
    "spark_integration/pipelines/session.py",
    "spark_integration/pipelines/verifying/parts.py",
    "spark_integration/pipelines/verifying/report_file.py",
    "spark_integration/pipelines/verifying/verifier.py",
    "spark_integration/ranges.py",
    "spark_integration/source.py",
    "spark_integration/stream.py",
    "spark_integration/sink/committing.py",
    "spark_integration/sink/parts.py",
    "spark_integration/sink/writers.py",
)

# Settings of a whole are made of the settings of its parts, which stand beside the parts.
SETTINGS = (
    "bookie/config/autorecovery_settings.py",
    "bookie/config/bookie_config.py",
    "bookie/config/gc_settings.py",
    "bookie/config/server_settings.py",
    "bookie/storage/config.py",
)

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
        )
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
        for node in ast.walk(module.tree)
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
        for node in ast.walk(module.tree)
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


# They read the bytes of secrets: the rule itself, and a digest of a key store, of which nothing else is kept.
SECRET_READERS = ("namespace/secret_file.py", "bookie/http/secrets.py", "dlog/cli/bench/")
KEY_LOADERS = ("namespace/key_work.py", "ledger/auth/java_stores.py")
_SECRET_WORDS = re.compile(r"token|passw|secret|jaas|credential|key_?(file|store)")
_READS = {"open", "read_text", "read_bytes", "load_cert_chain"}


def test_secrets_are_read_in_one_place() -> None:
    wrong = []
    for module in modules():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in _READS:
                continue
            place = SECRET_READERS if name != "load_cert_chain" else KEY_LOADERS
            named = " ".join(ast.unparse(part) for part in (node.func, *node.args[:1])).lower()
            is_secret = name == "load_cert_chain" or _SECRET_WORDS.search(named)
            if is_secret and not module.lives_in(place):
                wrong.append(f"{module.path}:{node.lineno}: use namespace.secret_file")
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


def test_no_file_is_too_long() -> None:
    lengths = {module.path: _lines_of_code(module.text) for module in modules()}
    too_long = {path: length for path, length in lengths.items() if length > LINES_MAX}
    for file in (ROOT / "tests").rglob("*.py"):
        length = _lines_of_code(file.read_text("utf-8"))
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


def test_every_assert_says_which_line_of_ours_makes_it_true() -> None:
    """In a comment on its line or on the line above. No value of a peer, a file or a store reaches one."""
    wrong = []
    for module in modules():
        lines = ["", *module.text.splitlines()]
        wrong += [
            f"{module.path}:{node.lineno}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Assert)
            and not any("  # " in line for line in lines[node.lineno : (node.end_lineno or 0) + 1])
            and not lines[node.lineno - 1].lstrip().startswith("# ")
        ]
    assert wrong == []


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
        lines, caught = ["", *module.text.splitlines()], _recursion_is_caught(module.tree)
        wrong += [
            f"{module.path}:{node.lineno}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("json.loads", "json.load")
            and not module.lives_in(("dlog/cli/bench/", "dlog/cli/demo/"))  # they read their own processes
            and node not in caught
            and "  # " not in lines[node.lineno]
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
