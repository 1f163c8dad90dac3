"""The metadata stores that the contract covers, and the ZooKeeper server that one of them needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import attrs
import pytest
import trio

from dlog.cluster.zookeeper_process import start_zookeeper, stop_zookeeper
from namespace.memory import MemoryTree, open_memory_store
from namespace.sqlite import open_sqlite_store
from namespace.store import MetadataStore
from namespace.zookeeper import open_zookeeper_store

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


@pytest.fixture(params=["memory", "sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    root = f"/contract-{next(_roots)}"
    match request.param:
        case "memory":
            tree = MemoryTree()
            return Backend(root, lambda: open_memory_store(tree))
        case "sqlite":
            return Backend(root, lambda: open_sqlite_store(tmp_path / "metadata.db"))
        case _:
            hosts = request.getfixturevalue("zookeeper_hosts")
            return Backend(root, lambda: open_zookeeper_store(hosts))
