"""The rights matrix: each principal tries each public call, and ``docs/security.md`` says what happens."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

import dlog
import dlog.aio
import dlog.blocking
from dlog.backup.calls import BackupCalls
from dlog.blobs import BlobReader, BlobWriter
from dlog.blobs.calls import BlobCalls
from dlog.bulk import DetachedSegmentWriter
from dlog.groups import GroupMember, join_group
from dlog.namespace_handle import Namespace
from dlog.operations.access import AccessCalls
from dlog.operations.batches import BatchCalls
from dlog.operations.policy import PolicyCalls
from dlog.operations.properties import PropertyCalls
from dlog.operations.repairs import RepairCalls
from dlog.operations.retention import RetentionCalls
from dlog.promotion.calls import PromotionCalls
from dlog.shards import ShardedReader, ShardedWriter
from dlog.testing import open_world
from dlog.testing.world import World
from dlog.wal import WalStandby, WriteAheadLog, follow_wal, open_wal
from ledger.metadata_store.store import MetadataStore
from namespace.policy import Policy, Right, Rule
from tests.effort import sampled
from tests.places import ROOT
from tests.source_tree import modules
from tests.unit.dlog.rights import CALLS, Call, Place

PAGE = ROOT / "docs" / "security.md"
TRIO = SimpleNamespace(**{name: getattr(dlog.shards, name) for name in dlog.shards.__all__})
TRIO.join_group, TRIO.open_wal, TRIO.follow_wal = join_group, open_wal, follow_wal

# The principals of the matrix; each has its rule on the logs "NAME/*", and no other one.
RULES: dict[str | None, tuple[Right, ...]] = {
    None: (),  # no principal is configured, so it is the user of the system
    "stranger": (),
    "elsewhere": (Right.ADMIN,),  # of a log that no call is about
    "reader": (Right.READ,),
    "committer": (Right.COMMIT,),
    "committer-of-mine": (Right.COMMIT,),  # the cursors "mine*"; the calls move "c"
    "writer": (Right.WRITE,),
    "administrator": (Right.ADMIN,),
    "operator": (Right.ADMIN,),  # of all logs
}
POLICY = Policy(
    (
        Rule("operator", "*", frozenset({Right.ADMIN})),
        Rule("elsewhere", "else", frozenset({Right.ADMIN})),
        Rule("committer-of-mine", "committer-of-mine/*", frozenset({Right.COMMIT}), "mine*"),
        Rule("committer-of-mine", ".blobs/committer-of-mine/*", frozenset({Right.READ})),
        *(
            Rule(name, f"{prefix}{name}/*", frozenset(RULES[name]))
            for prefix in ("", ".blobs/")
            for name in ("reader", "committer", "writer", "administrator")
        ),
    )
)


# As the page says it, apart from the code.
INCLUDED = {
    Right.READ: {Right.READ},
    Right.COMMIT: {Right.COMMIT, Right.READ},
    Right.WRITE: {Right.WRITE, Right.READ},
    Right.ADMIN: set(Right),
}


def may(principal: str | None, right: Right | None, call: Call) -> bool:
    """What the table says."""
    if right is None or principal == "operator":
        return True
    if call.on_all or principal in (None, "stranger", "elsewhere"):
        return False
    if right is Right.COMMIT and principal == "committer-of-mine":
        return call.cursor is None
    return any(right in INCLUDED[each] for each in RULES[principal])


def config_of(principal: str | None) -> dlog.NamespaceConfig:
    return dlog.NamespaceConfig(principal=principal)


async def prepared(operator: Namespace, name: str, call: Call) -> Place:
    """A log with a record and two cursors, and what else the call needs."""
    sharded = wal = ""
    plan = segment = None
    async with operator.open_writer(name, create=True) as writer:
        await writer.append(b"x")
    if "blob" in call.needs:
        await operator.blobs.put(name, b"content")
    for cursor in ("c", "mine-1"):
        await operator.cursors(name).set(cursor, dlog.DLSN(1, 0, 0))
    if "sharded" in call.needs:
        sharded = f"{name}-s"
        await dlog.shards.create_sharded_log(operator, sharded, 2)
        async with dlog.shards.open_sharded_writer(operator, sharded) as writers:
            for key in (b"a", b"b", b"c", b"d"):
                await writers.append(key, b"x")
    if "wal" in call.needs:
        wal = f"{name}-w"
        async with dlog.wal.open_wal(operator, apply=lambda _: None, name=wal) as owner:
            await owner.append(b"x")
        async with operator.open_writer(f"{wal}/snapshots", create=True):
            pass
    if "plan" in call.needs:
        plan = await operator.batches.begin([name])
        assert plan is not None
        async with operator.batches.open_segment(plan, name) as part:
            await part.append_many([b"x"])
        segment = part.result
    return Place(
        log=name,
        sharded=sharded,
        wal=wal,
        plan=plan,
        segment=segment,
        uri=operator.uri,
        destination=f"{operator.uri.removeprefix('file://')}-backup",
        policy=POLICY,
    )


async def settled(value: Any) -> None:
    """Wait for what a call of trio or asyncio returns."""
    if inspect.isawaitable(value):
        await value
    elif hasattr(value, "__anext__"):
        async with aclosing(value):
            await anext(value, None)


async def make(call: Call, namespace: Any, face: Any, at: Place, opened: Callable[[], None]) -> None:
    """Make a call; ``opened`` is called when what it acts on is open."""
    value = call.make(namespace, face, at)
    if not hasattr(value, "__aenter__"):
        await settled(value)
        return
    async with value as inner:
        if call.opens_with is not None:
            opened()
        if call.name == "commit" and isinstance(inner, GroupMember):
            await inner.commit(await anext(inner))
        elif call.name.startswith("commit"):
            while await inner.read_batch(10):
                pass
        if call.then is not None:
            await settled(call.then(inner))


def nodes_of(world: World) -> dict[str, tuple[bytes, int, int]]:
    """Every node of the metadata store: its value, and what counts its changes and those of its children."""
    return {
        path: (node.value, node.version, node.creations)
        for path, node in world._tree._nodes.items()
        if not node.owner
    }


def single(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


@pytest.mark.slow
@pytest.mark.parametrize("principal", sampled(list(RULES), 3), ids=str)
def test_each_principal_makes_the_calls_of_its_rights_and_changes_nothing_by_the_others(
    principal: str | None,
) -> None:
    wrong: list[str] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            operator = await stack.enter_async_context(
                dlog.open_namespace(world.uri, config=config_of("operator"))
            )
            namespace = await stack.enter_async_context(
                dlog.open_namespace(world.uri, config=config_of(principal))
            )
            await operator.policy.set(POLICY)
            for number, (name, call) in enumerate(CALLS.items()):
                at = await prepared(operator, f"{principal}/{number}", call)
                wrong.extend(await tried(name, call, namespace, at))

    async def tried(name: str, call: Call, namespace: Namespace, at: Place) -> list[str]:
        before = nodes_of(world)

        def opened() -> None:
            nonlocal before
            before = nodes_of(world)

        error: BaseException | None = None
        try:
            with trio.fail_after(600):  # of the world's time
                await make(call, namespace, TRIO, at, opened)
        except (Exception, BaseExceptionGroup) as exc:
            error = single(exc)
        after = nodes_of(world)
        if may(principal, call.right, call):
            if error is None or (call.may_fail and not isinstance(error, dlog.AccessDeniedError)):
                return []
            return [f"{name} is allowed, and raises {error!r}"]
        if not isinstance(error, dlog.AccessDeniedError):
            return [f"{name} is not allowed, and gives {error!r}"]
        left = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        if left and may(principal, call.opens_with or call.right, call):
            left = {path for path in left if not is_of_closing(path)}
        return [f"{name} is not allowed, and changes {sorted(left)}"] if left else []

    with open_world() as world:
        world.run(main)
    assert not wrong, "\n".join(wrong)


def test_no_call_tells_a_stranger_whether_a_log_exists() -> None:
    differing: list[str] = []

    async def outcome(call: Call, namespace: Namespace, at: Place) -> str:
        try:
            with trio.fail_after(600):  # of the world's time
                await make(call, namespace, TRIO, at, lambda: None)
        except (Exception, BaseExceptionGroup) as exc:
            return f"{single(exc)!r}".replace(at.log, "LOG")
        return "nothing"

    async def main() -> None:
        async with (
            dlog.open_namespace(world.uri, config=config_of("operator")) as operator,
            dlog.open_namespace(world.uri, config=config_of("stranger")) as stranger,
        ):
            await operator.policy.set(POLICY)
            needs = attrs.evolve(CALLS["Namespace.segments"], needs=("sharded", "wal", "plan", "blob"))
            there = await prepared(operator, "hidden/there", needs)
            missing = attrs.evolve(there, log="hidden/gone", sharded="hidden/gone-s", wal="hidden/gone-w")
            for name, call in CALLS.items():
                if call.right is None or call.on_all or "plan" in call.needs:  # a plan names its own logs
                    continue
                outcomes = [await outcome(call, stranger, at) for at in (there, missing)]
                if outcomes[0] != outcomes[1] or "AccessDenied" not in outcomes[0]:
                    differing.append(f"{name}: {outcomes}")

    with open_world() as world:
        world.run(main)
    assert not differing, "\n".join(differing)


def is_of_closing(path: str) -> bool:
    """A writer that was opened, and may be, gives its lock back; the place of locks has counted the lock."""
    return path.endswith(("/lock", "/locks")) or "/lock/" in path


# The page.


def rows_of_the_page() -> dict[str, str]:
    """The right of each call, by the table of the page."""
    text = PAGE.read_text()
    section = text[text.index("### Rights of calls") : text.index("**What remains visible.**")]
    found: dict[str, str] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `") or len(cells) != 4:
            continue
        for name in re.findall(r"`(\w+)`", cells[1]):
            full = f"{cells[0].strip('`')}.{name}"
            assert full not in found, f"{full} has two rows"
            assert cells[3], f"{full} names no test"
            found[full] = cells[2]
    return found


HELD: dict[str, type] = {  # by a namespace
    "properties": PropertyCalls,
    "retention": RetentionCalls,
    "batches": BatchCalls,
    "repair": RepairCalls,
    "promotion": PromotionCalls,
    "backup": BackupCalls,
    "blobs": BlobCalls,
    "policy": PolicyCalls,
    "access": AccessCalls,
}
CLASSES: tuple[type, ...] = (
    Namespace,
    BlobReader,
    BlobWriter,
    dlog.LogReader,
    dlog.LogWriter,
    dlog.LogCursors,
    DetachedSegmentWriter,
    GroupMember,
    dlog.Scan,
    ShardedReader,
    ShardedWriter,
    WalStandby,
    WriteAheadLog,
)
MODULES = (
    "dlog",
    "dlog.shards",
    "dlog.groups",
    "dlog.wal",
    "spark_integration",
    "spark_integration.pipelines",
)
# For other modules of the package; they are not of the API.
INTERNAL = {
    "GroupMember.run",
    "GroupMember.leave",
    "WriteAheadLog.replay",
    "WriteAheadLog.take_snapshots",
    "WalStandby.run",
    "ShardedReader.offer",
    "ShardedReader.offers",
    "ShardedReader.close",
    "ShardedReader.check_max",
    "ShardedReader.refill",
    "ShardedReader.take_batch",
    "ShardedReader.take_gap",
    "ShardedReader.take_record",
    "ShardedReader.take_rest",
    "LogWriter.begin_append",
    "LogWriter.reopener",
    "DetachedSegmentWriter.finish",
    "BlobWriter.finish",
    "BlobWriter.drop",
    "Scan.read",
    "Scan.convert",
}


def public_calls() -> Iterator[str]:
    owners = {each.__name__: each for each in CLASSES}
    for place, owner in (owners | {f"Namespace.{name}": each for name, each in HELD.items()}).items():
        for name in dir(owner):
            if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(owner, name)):
                yield f"{place}.{name}"
    for module_name in MODULES:
        module = __import__(module_name, fromlist=["__all__"])
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield f"{module_name}.{name}"


def test_the_page_has_each_public_call_with_its_right() -> None:
    pytest.importorskip("pyspark")
    page, public = rows_of_the_page(), set(public_calls()) - INTERNAL
    assert public - page.keys() == set(), (
        "give them a row of the table, and a call in tests/unit/dlog/rights.py"
    )
    assert page.keys() - public == set(), "they are no calls"
    for name, call in CALLS.items():
        if "(" in name:
            continue  # a variant, which the text below the table tells
        expected = "none" if call.right is None else f"`{call.right.value}`"
        assert page[name].startswith(expected), name
        assert ("on the logs `*`" in page[name]) == call.on_all, name
    untried = {name for name, right in page.items() if right.startswith("`") and name not in CALLS}
    untried = {name for name in untried if not name.startswith("spark_integration")}
    assert untried == set()


def test_every_face_has_only_calls_of_the_table() -> None:
    for face in (dlog.aio, dlog.blocking):
        for name in face.__all__:
            ours, plain = getattr(face, name), {owner.__name__: owner for owner in CLASSES}.get(name)
            if plain is None or not inspect.isclass(ours):
                continue
            more = {each for each in dir(ours) if not each.startswith("_")} - set(dir(plain))
            more = {each for each in more if not isinstance(getattr(ours, each), property)}
            assert more <= {"close", "aclose", "read", "opened_by"}, (face.__name__, name, more)


BELOW = {"store", "client", "permissions", "access", "path", "locked", "take_lock", "log", "log_here"}
# They call the checked methods first: see each.
REACH_BELOW = {
    "dlog/explain/collecting.py": "reads the segments of the log first",
    "dlog/groups/member.py": "checks the right to commit before each node that it makes",
    "dlog/page/exporter.py": "bookies and marks are of no log; it reads logs by the namespace's calls",
    "dlog/page/snapshots.py": "shows logs that were listed or described",
    "dlog/proxies/proxy.py": "its own node is of no log; it opens logs by the calls of the namespace",
}


def test_spark_and_the_commands_reach_logs_only_through_the_calls_of_a_namespace() -> None:
    for module in modules():
        if not module.lives_in(("spark_integration/", "dlog/")) or module.lives_in(
            ("dlog/aio/", *REACH_BELOW)
        ):
            continue
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node.attr in BELOW:
                text = ast.unparse(node.value)
                assert not re.search(r"(namespace|^ns)\.context$", text), (
                    f"{module.path}:{node.lineno}: {ast.unparse(node)}"
                )


# The faces.


async def places(tmp_path: Path, principal: str) -> dict[str, Place]:
    async with dlog.open_namespace(tmp_path.as_uri(), config=config_of("operator")) as operator:
        await operator.policy.set(POLICY)
        all_needs = attrs.evolve(CALLS["Namespace.segments"], needs=("sharded", "wal", "plan", "blob"))
        at = await prepared(operator, f"{principal}/log", all_needs)
    return dict.fromkeys(CALLS, at)


async def stored(store: MetadataStore, path: str = "/dlog") -> dict[str, tuple[bytes, int, int]]:
    """The nodes at and below a path; see ``nodes_of``."""
    node, children = await store.get(path), await store.children(path)
    found = {path: (node.value, node.stat.version, children.child_version)}
    for name in children.names:
        found |= await stored(store, f"{path}/{name}")
    return found


@asynccontextmanager
async def unchanged(uri: str) -> AsyncIterator[None]:
    """The block changes nothing of the namespace."""
    async with dlog.open_namespace(uri) as namespace:
        before = await stored(namespace.context.store)
    yield
    async with dlog.open_namespace(uri) as namespace:
        assert await stored(namespace.context.store) == before


def make_blocking(call: Call, namespace: Any, at: Place) -> None:
    value = call.make(namespace, dlog.blocking, at)
    if hasattr(value, "__enter__"):
        with value as inner:
            if call.then is not None:
                call.then(inner)


@pytest.mark.slow
@pytest.mark.parametrize("principal", ["stranger", "reader", "committer", "committer-of-mine", "writer"])
async def test_the_calls_of_every_face_are_refused_and_change_nothing(tmp_path: Path, principal: str) -> None:
    uri, at = tmp_path.as_uri(), await places(tmp_path, principal)
    calls = {
        name: call
        for name, call in CALLS.items()
        if not may(principal, call.right, call)
        and (call.opens_with is None or not may(principal, call.opens_with, call))
    }

    def blocking() -> list[str]:
        allowed = []
        with dlog.blocking.open_namespace(uri, config=config_of(principal)) as namespace:
            for name, call in calls.items():
                try:
                    make_blocking(call, namespace, at[name])
                except dlog.AccessDeniedError:
                    continue
                allowed.append(name)
        return allowed

    async def aio() -> list[str]:
        allowed = []
        async with dlog.aio.open_namespace(uri, config=config_of(principal)) as namespace:
            for name, call in calls.items():
                try:
                    await make(call, namespace, dlog.aio, at[name], lambda: None)
                except dlog.AccessDeniedError:
                    continue
                allowed.append(name)
        return allowed

    async with unchanged(uri):
        assert await trio.to_thread.run_sync(blocking) == []
    async with unchanged(uri):
        assert await trio.to_thread.run_sync(lambda: asyncio.run(aio())) == []
