"""Namespaces on bookies made of dictionaries, and a metadata session that a test can cut or interrupt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

import dlog
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.client import LedgerClient
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree
from ledger.metadata_store.store import Children, MetadataStore, Node, Operation, Stat
from ledger.runtime.clock import wall_ms
from namespace.binding import new_binding
from namespace.bindings import bind
from namespace.federated_store import LOGS_MAX, FederatedStore
from tests.fakes.dict_bookies import MOCK_ENDS_WITHIN_S, DictCluster

CONFIG = dlog.NamespaceConfig(
    writer=dlog.WriterConfig(purge=False, visibility_delay_ms=0), reader=dlog.ReaderConfig()
).for_scheme("distributedlog")
DAY_MS = 86_400_000


async def _nothing(_kind: str, _path: str) -> None:
    pass


class WatchedStore(MemoryStore):
    """A session that calls ``before`` and ``after`` around each request, and can be cut after some writes."""

    before: Callable[[str, str], Awaitable[None]] = staticmethod(_nothing)
    after: Callable[[str, str], Awaitable[None]] = staticmethod(_nothing)
    writes_left: int | None = None  # None: never cut
    is_cut = False  # every request fails

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        self._check_cut(path)
        await self.before("get", path)
        node = await super().get(path, watch=watch)
        await self.after("get", path)
        return node

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        self._check_cut(path)
        await self.before("children", path)
        found = await super().children(path, watch=watch)
        await self.after("children", path)
        return found

    async def put(self, path: str, value: bytes, *, expected: int = -1) -> Stat:
        await self._write("put", path)
        return await super().put(path, value, expected=expected)

    async def delete(self, path: str, *, expected: int = -1) -> None:
        await self._write("delete", path)
        await super().delete(path, expected=expected)

    async def commit(self, operations: Sequence[Operation]) -> None:
        await self._write("commit", operations[0].path if operations else "")
        await super().commit(operations)

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        await self._write("create", path)
        return await super().create(path, value, ephemeral=ephemeral, sequential=sequential, parents=parents)

    async def _write(self, kind: str, path: str) -> None:
        await self.before(kind, path)
        if self.writes_left is not None:
            self.is_cut = self.is_cut or self.writes_left == 0
            self.writes_left -= 1
        self._check_cut(path)

    def _check_cut(self, path: str) -> None:
        if self.is_cut:
            raise ConnectionLostError(path, "the session was cut")


@attrs.frozen
class Opened:
    """A namespace with the parts below it."""

    namespace: Namespace
    store: WatchedStore
    client: LedgerClient


@asynccontextmanager
async def open_on(
    cluster: DictCluster,
    path: str = "/ns",
    *,
    tree: MemoryTree | None = None,
    bound: bool = True,
    days_later: int = 0,
    config: dlog.NamespaceConfig = CONFIG,
    federated: bool = False,
    logs_max: int = LOGS_MAX,
) -> AsyncIterator[Opened]:
    """Open the namespace at a path; create and bind it if it does not exist.

    Args:
        tree: The metadata of the logs, if they are not in the same store as those of the ledgers.
        bound: As in a cluster; False as in a directory.
        federated: The namespace is federated.
        logs_max: The logs of a sub-namespace that gets no more, in a federated namespace.
        days_later: How far the namespace's clock is ahead.
    """
    from ledger.client import open_ledger_client

    store = WatchedStore(tree or cluster.tree)
    ledger_store: MetadataStore = store if tree is None else MemoryStore(cluster.tree)
    with trio.fail_after(MOCK_ENDS_WITHIN_S):
        if await store.exists(path) is None:
            if bound:
                await bind(store, path, new_binding("zk:2181", "/ledgers"))
            else:
                await store.create(path, b"", parents=True)
        async with open_ledger_client(ledger_store, cluster.dial) as client:
            namespace = Namespace(
                NamespaceContext(
                    f"test:{path}",
                    FederatedStore(store, path, logs_max=logs_max) if federated else store,
                    client,
                    path,
                    config,
                    client_id="test",
                    wall_ms=lambda: wall_ms() + days_later * DAY_MS,
                )
            )
            try:
                yield Opened(namespace, store, client)
            finally:
                namespace.context.close()
                store.writes_left, store.is_cut = None, False
                with trio.CancelScope(shield=True):
                    await store.aclose()
                    await ledger_store.aclose()


async def write_segments(namespace: Namespace, log: str, count: int, *, first: int = 0) -> list[bytes]:
    """Records with the payloads ``first``, ``first + 1``, … each in a completed segment of its own."""
    payloads = [b"%d" % number for number in range(first, first + count)]
    for number, payload in enumerate(payloads, first):
        async with namespace.open_writer(log, create=True) as writer:
            await writer.append(payload, txid=number)
    return payloads


async def read_all(namespace: Namespace, log: str) -> list[bytes]:
    """The payloads of a log, up to its end."""
    async with namespace.open_reader(log, follow=False) as reader:
        return [record.payload async for record in reader]
