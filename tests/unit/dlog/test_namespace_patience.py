"""Calls of a namespace while the metadata store is away: each waits, and changes what it changes once."""

# covers: dlog/context.py

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import MockClock

import dlog
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from dlog.promotion import nodes as promotion_nodes
from dlog.promotion.location import promotable
from ledger.client import LedgerClient, open_ledger_client
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.metadata_store.store import Operation, Stat
from namespace.policy import Policy, Right, Rule
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.log_paths import paths_of

CONFIG = dlog.NamespaceConfig(writer=dlog.WriterConfig(purge=False)).for_scheme("distributedlog")
POLICY = Policy((Rule("me", "*", frozenset(Right)),))
# Afterwards this program may not change it any more.
POLICY_OF_ROOT = Policy((Rule("root", "*", frozenset(Right)), Rule("me", "*", frozenset({Right.READ}))))


class LosingStore(MemoryStore):
    """Loses the connection once: before or after it applies a write."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.tree = tree
        self.writes = 0
        self.lost_at = 0  # the number of the write; 0: none
        self.is_applied = False
        self.lost_look: str | None = None  # the end of a path whose next look-up loses the connection

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        if self.lost_look is not None and path.endswith(self.lost_look):
            self.lost_look = None
            raise ConnectionLostError(path)
        return await super().exists(path, watch=watch)

    async def _lossy(self, path: str, write: Callable[[], Awaitable[object]]) -> object:
        self.writes += 1
        is_lost = self.writes == self.lost_at
        if is_lost and not self.is_applied:
            raise ConnectionLostError(path)
        result = await write()
        if is_lost:
            raise ConnectionLostError(path)
        return result

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        create = super().create
        return str(
            await self._lossy(
                path,
                lambda: create(path, value, ephemeral=ephemeral, sequential=sequential, parents=parents),
            )
        )

    async def put(self, path: str, value: bytes, *, expected: int = -1) -> Stat:
        put = super().put
        stat = await self._lossy(path, lambda: put(path, value, expected=expected))
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, *, expected: int = -1) -> None:
        delete = super().delete
        await self._lossy(path, lambda: delete(path, expected=expected))

    async def commit(self, operations: Sequence[Operation]) -> None:
        commit = super().commit
        await self._lossy("/", lambda: commit(operations))


@attrs.frozen
class Program:
    namespace: Namespace
    store: LosingStore
    client: LedgerClient


async def nodes_of(store: MemoryStore, path: str = "/ns") -> dict[str, bytes]:
    """The tree below the namespace, without the lock's token, the log's identity and dates."""
    is_random = path.endswith(("/lock", "/<default>"))
    found = {path: b"" if is_random else (await store.get(path)).value}
    for name in (await store.children(path)).names:
        child = f"{path}/{name}"
        found |= await nodes_of(store, child) if not name.startswith(("logrecs_", "dlog-")) else {child: b""}
    return found


@asynccontextmanager
async def program() -> AsyncIterator[Program]:
    """A namespace with the log ``log`` of three segments, two of them truncated, and the cursor ``c``."""
    async with open_cluster() as cluster:
        store = LosingStore(cluster.tree)
        async with open_ledger_client(store, cluster.dial) as client:
            namespace = Namespace(
                NamespaceContext(
                    "test",
                    store,
                    client,
                    "/ns",
                    CONFIG,
                    client_id="me",
                    principal="me",
                    wall_ms=lambda: 1_000,
                )
            )
            await store.create("/ns")
            for number in range(3):
                async with namespace.open_writer("log", create=True) as writer:
                    dlsn = await writer.append(b"%d" % number)
            await namespace.truncate_log("log", dlsn)
            await namespace.cursors("log").set("c", dlsn)
            with trio.fail_after(600):
                yield Program(namespace, store, client)
        await store.aclose()


async def position(namespace: Namespace) -> dlog.DLSN:
    last = await namespace.last_dlsn("log")
    assert last is not None
    return last


async def append(namespace: Namespace) -> None:
    async with namespace.open_writer("log") as writer:
        await writer.append(b"x")


OPERATIONS: dict[str, Callable[[Namespace], Awaitable[object]]] = {
    "create_log": lambda namespace: namespace.create_log("new/log"),
    "create_log exist_ok": lambda namespace: namespace.create_log("new", exist_ok=True),
    "delete_log": lambda namespace: namespace.delete_log("log"),
    "rename_log": lambda namespace: namespace.rename_log("log", "new/name"),
    "purge_log": lambda namespace: namespace.purge_log("log"),
    "retain_log": lambda namespace: namespace.retention.apply("log"),
    "set_retention": lambda namespace: namespace.retention.set("log", dlog.Retention(age_s=86_400)),
    "set_policy": lambda namespace: namespace.policy.set(POLICY),
    "set_policy to another": lambda namespace: replace_policy(namespace, POLICY_OF_ROOT),
    "set_policy to none": lambda namespace: replace_policy(namespace, None),
    "cursor set": lambda namespace: set_cursor(namespace),
    "cursor delete": lambda namespace: namespace.cursors("log").delete("c"),
    "open_writer": append,
    "seal_log": lambda namespace: namespace.seal_log("log"),
    "change_properties": lambda namespace: change_properties(namespace),
}


async def replace_policy(namespace: Namespace, policy: Policy | None) -> None:
    if await namespace.policy.get() is None:
        await namespace.policy.set(POLICY)
    await namespace.policy.set(policy)


async def change_properties(namespace: Namespace) -> object:
    first = await namespace.properties.change("log", {"a": "1"})
    second = await namespace.properties.change("log", {"a": None, "b": "2"}, expected=first)
    return first.values, second.values  # not the versions: a repeated write is one more


async def set_cursor(namespace: Namespace) -> dlog.DLSN:
    cursor = await namespace.cursors("log").set("c", (await position(namespace)).next_slot())
    return cursor.position


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_change_is_done_once_whichever_of_its_writes_loses_the_connection(
    operation: str, is_applied: bool, autojump_clock: MockClock
) -> None:
    call = OPERATIONS[operation]
    async with program() as calm:
        before = calm.store.writes
        wanted = await call(calm.namespace), await nodes_of(calm.store)
        writes = calm.store.writes - before
    assert writes
    for number in range(1, writes + 1):
        async with program() as lossy:
            lossy.store.lost_at, lossy.store.is_applied = lossy.store.writes + number, is_applied
            found = await call(lossy.namespace), await nodes_of(lossy.store)
            assert found == wanted, f"write {number} of {writes}"


LOOKS: dict[str, Callable[[Namespace], Awaitable[object]]] = {
    "delete_log": OPERATIONS["delete_log"],
    "cursor set": lambda namespace: namespace.cursors("log").set("c", dlog.DLSN(3, 0, 0)),
    "cursor delete": OPERATIONS["cursor delete"],
    "purge_log": OPERATIONS["purge_log"],
}


@pytest.mark.parametrize("operation", LOOKS)
async def test_a_lost_look_at_whether_a_log_was_promoted_is_repeated(
    operation: str, autojump_clock: MockClock
) -> None:
    """The session of a process that was stopped for long ends just then."""
    async with program() as lossy:

        async def never(_uri: str) -> NamespaceContext:
            raise AssertionError("it was not promoted")

        namespace = Namespace(attrs.evolve(lossy.namespace.context, locate=promotable(never)))
        lossy.store.lost_look = promotion_nodes.moved_to_path(paths_of("", "log"))
        await LOOKS[operation](namespace)
        assert lossy.store.lost_look is None, "it was not looked up"


async def test_a_log_that_another_client_created_meanwhile_is_not_taken_for_ones_own(
    autojump_clock: MockClock,
) -> None:
    async with program() as lossy:
        other = Namespace(
            NamespaceContext(
                "test", MemoryStore(lossy.store.tree), lossy.client, "/ns", CONFIG, client_id="two"
            )
        )
        lossy.store.lost_at = lossy.store.writes + 1
        errors: list[dlog.DLogError] = []

        async def create() -> None:
            try:
                await lossy.namespace.create_log("new")
            except dlog.LogExistsError as exc:
                errors.append(exc)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            while lossy.store.writes < lossy.store.lost_at:
                await trio.lowlevel.checkpoint()
            await other.create_log("new")
        assert len(errors) == 1


async def test_questions_wait_for_the_store_to_come_back(autojump_clock: MockClock) -> None:
    async with program() as calm, trio.open_nursery() as nursery:
        calm.store.suspend()

        async def come_back() -> None:
            await trio.sleep(20)
            calm.store.resume()

        nursery.start_soon(come_back)
        assert await calm.namespace.list_logs() == ["log"]
        assert trio.current_time() >= 20
        for question in (
            lambda: calm.namespace.log_exists("log"),
            lambda: calm.namespace.last_dlsn("log"),
            lambda: calm.namespace.segments("log"),
            lambda: calm.namespace.describe_log("log"),
            lambda: calm.namespace.count_records("log"),
            lambda: calm.namespace.retention.get("log"),
            lambda: calm.namespace.properties.get("log"),
            calm.namespace.cursors("log").list,
            lambda: calm.namespace.cursors("log").get("c"),
        ):
            calm.store.suspend()
            nursery.start_soon(come_back)
            began_s = trio.current_time()
            await question()
            assert trio.current_time() - began_s >= 20


async def test_a_store_that_stays_away_is_told_after_the_retry_timeout(autojump_clock: MockClock) -> None:
    async with program() as calm:
        calm.store.suspend()
        began_s = trio.current_time()
        with pytest.raises(dlog.LogUnavailableError, match="cannot be reached"):
            await calm.namespace.create_log("other")
        assert 50 < trio.current_time() - began_s <= 130
        calm.store.resume()
