"""Commands beside bookies that require TLS and authentication."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

import dlog
from bookie.cluster.cluster_root import create_cluster
from dlog.cluster.ports import free_ports
from dlog.cluster.process import start_detached, stop
from dlog.cluster.zookeeper_process import open_zookeeper_process
from ledger.catalog.paths import Layout, available_path
from ledger.transport.bookie_security import NO_SECURITY, load_bookie_security
from namespace.zookeeper import open_zookeeper_store
from tests.fakes.certificates import make_authority

TIMEOUT_S = 240.0
TOKEN = "a-token-of-twenty-characters"
PASSWORD = "the password of SASL"
TLS = "tls = true\ntls_authorities = 'authority.pem'\n"
MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
JAAS = f'Bookie {{\n {MODULE} required user_bookkeeper-shop="{PASSWORD}";\n}};\n'


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


@asynccontextmanager
async def secured_bookies(home: Path, mechanism: Mechanism) -> AsyncIterator[str]:
    """ZooKeeper and three bookies with TLS; yields ZooKeeper's hosts."""
    ports = free_ports(3, random.Random(), host="127.0.0.1")
    async with open_zookeeper_process(home / "zookeeper") as server:
        started = []
        try:
            async with open_zookeeper_store(server.hosts) as store:
                await create_cluster(store, "/ledgers", Layout.HIERARCHICAL, "an-instance-id")
                for port in ports:
                    file = configuration(home, server.hosts, port, mechanism)
                    command = [sys.executable, "-m", "bookie", "--config", str(file)]
                    started.append(start_detached(command, home / f"{port}.log"))
                for port in ports:
                    registered = trio.Event()
                    path = available_path("/ledgers", f"localhost:{port}")
                    while await store.exists(path, watch=registered) is None:
                        await registered.wait()
                        registered = trio.Event()
            yield server.hosts
        finally:
            with trio.CancelScope(shield=True):
                for process in started:
                    await stop(process, grace_s=20)


async def dlog_command(*arguments: str, lines: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DLOG_")}
    return await trio.run_process(
        [sys.executable, "-m", "dlog.cli.main", *arguments],
        stdin=lines,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.cluster
@pytest.mark.parametrize("name", MECHANISMS)
async def test_a_log_is_written_and_read_with_the_file_and_not_without(name: str, tmp_path: Path) -> None:
    settings = prepare(tmp_path, MECHANISMS[name])
    secured = ("--bookie-security", str(settings))
    with trio.fail_after(TIMEOUT_S):
        async with secured_bookies(tmp_path, MECHANISMS[name]) as hosts:
            uri = ("--uri", f"distributedlog://{hosts}/shop")
            config = dlog.NamespaceConfig(create=True, bookie_security=NO_SECURITY)
            async with dlog.open_namespace(uri[1], config=config):
                pass  # binds the namespace; no bookie is asked
            written = await dlog_command(*secured, "write", "--create", "orders", *uri, lines=b"a\nb\n")
            assert written.returncode == 0, written.stderr
            read = await dlog_command(*secured, "read", "orders", *uri)
            assert (read.returncode, read.stdout) == (0, b"a\nb\n"), read.stderr
            # The same settings as a section of the client's configuration.
            file = tmp_path / "dlog.toml"
            file.write_text(f"uri = '{uri[1]}'\n[bookies]\n{settings.read_text()}")
            read = await dlog_command("--config", str(file), "read", "orders")
            assert (read.returncode, read.stdout) == (0, b"a\nb\n"), read.stderr
            info = await dlog_command("--config", str(file), "bookies", "info")
            assert info.returncode == 0, info.stderr
            service = ("--service", f"zk://{hosts}/ledgers")
            info = await dlog_command(*secured, "bookies", "info", *service)
            assert info.returncode == 0, info.stderr
            config = dlog.NamespaceConfig(bookie_security=load_bookie_security(settings))
            async with (
                dlog.open_namespace(uri[1], config=config) as namespace,
                namespace.open_reader("orders", follow=False) as reader,
            ):
                assert [record.payload async for record in reader] == [b"a", b"b"]
            for arguments in (
                ("write", "--create", "others", *uri),
                ("read", "orders", *uri),
                ("bookies", "info", *service),
            ):
                refused = await dlog_command(*arguments, lines=b"c\n")
                assert refused.returncode != 0
                assert b"c" not in refused.stdout.split()
                assert b"dlog --bookie-security FILE" in refused.stderr, refused.stderr
