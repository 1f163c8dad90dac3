"""The metadata stores that the contract covers, and the ZooKeeper server that one of them needs."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from dlog.cluster.zookeeper_process import start_zookeeper, stop_zookeeper
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.metadata_store.sqlite_store.store import open_sqlite_store
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper import open_zookeeper_store
from namespace.federated_store import FederatedStore

_roots = itertools.count(1)


@attrs.frozen
class Backend:
    """One implementation. Each test writes below a ``root`` of its own."""

    root: str
    open: Callable[[], AbstractAsyncContextManager[MetadataStore]]  # opens another session


@pytest.fixture(scope="session")
def zookeeper_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The ZooKeeper server of this test session."""
    server = trio.run(start_zookeeper, tmp_path_factory.mktemp("zookeeper"))
    yield server.hosts
    trio.run(stop_zookeeper, server.identity)


@asynccontextmanager
async def open_federated(
    open_store: Callable[[], AbstractAsyncContextManager[MetadataStore]], root: str
) -> AsyncIterator[MetadataStore]:
    """A federated namespace at ``root``, with the log ``log`` in a sub-namespace."""
    async with open_store() as store:
        log = f"{root}/.subnamespaces/NS_0000000000/log/<default>"
        if await store.exists(log) is None:
            await store.create(log, parents=True)
        yield FederatedStore(store, root)


ZOOKEEPER = pytest.mark.zookeeper


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("zookeeper", marks=ZOOKEEPER),
        "federated",
        pytest.param("federated in zookeeper", marks=ZOOKEEPER),
    ]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    root = f"/contract-{next(_roots)}"
    match request.param:
        case "memory":
            tree = MemoryTree()
            return Backend(root, lambda: open_memory_store(tree))
        case "sqlite":
            return Backend(root, lambda: open_sqlite_store(tmp_path / "metadata.db"))
        case "federated":
            tree = MemoryTree()
            inside = f"{root}/log/<default>/below"
            return Backend(inside, lambda: open_federated(lambda: open_memory_store(tree), root))
        case "federated in zookeeper":
            hosts = request.getfixturevalue("zookeeper_hosts")
            inside = f"{root}/log/<default>/below"
            return Backend(inside, lambda: open_federated(lambda: open_zookeeper_store(hosts), root))
        case _:
            hosts = request.getfixturevalue("zookeeper_hosts")
            return Backend(root, lambda: open_zookeeper_store(hosts))
