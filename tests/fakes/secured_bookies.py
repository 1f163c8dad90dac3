"""ZooKeeper and bookies with TLS and authentication, as processes, and the files of their clients."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from bookie.cluster.cluster_root import create_cluster
from dlog.cluster.ports import free_ports
from dlog.cluster.process import ProcessId, start_detached, stop
from dlog.cluster.zookeeper_process import ZookeeperProcess, start_zookeeper, stop_zookeeper
from ledger.catalog.paths import Layout, available_path
from ledger.metadata_store.zookeeper import open_zookeeper_store
from tests.fakes.certificates import make_authority

TOKEN = "a-token-of-twenty-characters"
PASSWORD = "the password of SASL"
TLS = "tls = true\ntls_authorities = 'authority.pem'\n"
_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
JAAS = f'Bookie {{\n {_MODULE} required user_bookkeeper-shop="{PASSWORD}";\n}};\n'


@attrs.frozen
class Mechanism:
    """One kind of authentication: the bookie's keys, and the client's settings."""

    bookie: str
    client: str


MECHANISMS = {
    "token": Mechanism(
        "bookieAuthProviderFactoryClass=token\nauthTokenFile={home}/tokens\n",
        "auth = 'token'\ntoken_file = 'token'\n",
    ),
    "sasl": Mechanism(
        "bookieAuthProviderFactoryClass=org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory\n"
        "java.security.auth.login.config={home}/jaas.conf\n",
        "auth = 'sasl'\nusername = 'bookkeeper-shop'\npassword_file = 'password'\n",
    ),
}


def prepare(home: Path, mechanism: Mechanism) -> Path:
    """Write certificates and secrets; return the client's file with settings."""
    authority = make_authority()
    authority.write_pem(home / "authority.pem")
    authority.sign("localhost").write_pem(home / "bookie.pem")
    authority.sign("shop").write_pem(home / "client.pem")
    (home / "tokens").write_text(f"shop {TOKEN}\n")
    (home / "token").write_text(f"{TOKEN}\n")
    (home / "password").write_text(f"{PASSWORD}\n")
    (home / "jaas.conf").write_text(JAAS)
    settings = home / "bookies.toml"
    settings.write_text(TLS + mechanism.client)
    return settings


def configuration(home: Path, hosts: str, port: int, mechanism: Mechanism) -> Path:
    disks = home / str(port)
    path = home / f"{port}.conf"
    path.write_text(
        f"metadataServiceUri=zk+hierarchical://{hosts}/ledgers\nbookiePort={port}\nallowLoopback=true\n"
        f"advertisedAddress=localhost\njournalDirectory={disks}/journal\nledgerDirectories={disks}/ledgers\n"
        f"tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\ntlsRequired=true\n"
        f"tlsKeyStoreType=PEM\ntlsKeyStore={home}/bookie.pem\ntlsCertificatePath={home}/bookie.pem\n"
        "diskUsageThreshold=0.99\ndiskUsageWarnThreshold=0.98\n" + mechanism.bookie.format(home=home)
    )
    return path


@attrs.frozen
class SecuredBookies:
    """A running ZooKeeper and its bookies, which outlive the event loop that started them."""

    server: ZookeeperProcess
    bookies: list[ProcessId] = attrs.field(factory=list)

    async def stop(self) -> None:
        with trio.CancelScope(shield=True):
            for process in self.bookies:
                await stop(process, grace_s=20)
            await stop_zookeeper(self.server.identity)


async def start_secured(home: Path, mechanism: Mechanism, *, count: int = 3) -> SecuredBookies:
    """ZooKeeper and registered bookies with TLS; nothing is left if this fails."""
    ports = free_ports(count, random.Random(), host="127.0.0.1")
    started = SecuredBookies(await start_zookeeper(home / "zookeeper"))
    ready = False
    try:
        async with open_zookeeper_store(started.server.hosts) as store:
            await create_cluster(store, "/ledgers", Layout.HIERARCHICAL, "an-instance-id")
            for port in ports:
                file = configuration(home, started.server.hosts, port, mechanism)
                command = [sys.executable, "-m", "bookie", "--config", str(file)]
                started.bookies.append(start_detached(command, home / f"{port}.log"))
            for port in ports:
                registered = trio.Event()
                path = available_path("/ledgers", f"localhost:{port}")
                while await store.exists(path, watch=registered) is None:
                    await registered.wait()
                    registered = trio.Event()
        ready = True
        return started
    finally:
        if not ready:
            await started.stop()


@asynccontextmanager
async def secured_bookies(home: Path, mechanism: Mechanism) -> AsyncIterator[str]:
    """ZooKeeper and three bookies with TLS; yields ZooKeeper's hosts."""
    started = await start_secured(home, mechanism)
    try:
        yield started.server.hosts
    finally:
        await started.stop()
