"""The namespace under measurement: an embedded one, a cluster of this benchmark's own, or a given one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import trio

import dlog
from dlog.cluster import LocalCluster, open_local_cluster
from dlog.connect import client_config
from dlog.settings import load_settings
from ledger.client import LedgerClient, open_ledger_client
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.bookie_security import ENVIRONMENT_VARIABLE, security_of_environment
from ledger.transport.dial import dial_tcp
from namespace.bindings import resolve_binding
from namespace.namespace_uri import parse_namespace_uri

REPLICAS = 3  # Qw of both levels; an embedded namespace has one
LEDGERS_ROOT = "/ledgers"  # of a cluster of the benchmark's own


@attrs.frozen
class BenchTarget:
    """The namespace under measurement."""

    uri: str
    config: dlog.NamespaceConfig
    cluster: LocalCluster | None
    replicas: int

    def bookies_cpu_s(self) -> float | None:
        """The CPU time of the bookies' processes so far; None if they are remote or in a client's process."""
        if self.cluster is None:
            return None
        return sum(stats.cpu_s for stats in self.cluster.stats() if stats is not None)


@contextlib.asynccontextmanager
async def open_target(directory: Path, uri: str | None, bookies: int | None) -> AsyncIterator[BenchTarget]:
    """The namespace ``uri``; a new cluster of this many ``bookies``; or, without both, a directory."""
    if bookies is not None:
        os.environ.pop(ENVIRONMENT_VARIABLE, None)  # that file is for the bookies of another cluster
        async with open_local_cluster(directory / "cluster", bookie_count=bookies) as cluster:
            yield BenchTarget(cluster.uri, dlog.NamespaceConfig(), cluster, REPLICAS)
    elif uri is not None:
        embedded = uri.startswith("file:")
        yield BenchTarget(uri, dlog.NamespaceConfig(), None, 1 if embedded else REPLICAS)
    else:
        yield BenchTarget((directory / "log").as_uri(), dlog.NamespaceConfig(), None, 1)


@contextlib.asynccontextmanager
async def open_ledgers(uri: str, *, root: str | None) -> AsyncIterator[LedgerClient]:
    """A client of the ledgers under ``root``; None takes the root that the namespace is bound to."""
    found = await trio.to_thread.run_sync(load_settings, uri)
    parsed = parse_namespace_uri(found.uri)
    settings = await trio.to_thread.run_sync(found.config, "distributedlog")
    async with open_zookeeper_store(parsed.hosts, security=settings.zookeeper_security) as store:
        root = root or (await resolve_binding(store, parsed.path)).ledgers_root
        tls, auth = (settings.bookie_security or security_of_environment()).open()
        config = client_config(attrs.evolve(settings, tls=tls, auth=auth, bookie_security=None))
        async with open_ledger_client(store, dial_tcp, config, root=root) as client:
            yield client
