"""A bookie and a log beside a ZooKeeper whose nodes belong to one identity."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import trio

import dlog
from bookie.cluster.cluster_root import create_cluster
from dlog.cluster.ports import free_ports
from dlog.cluster.process import start_detached, stop
from ledger.catalog.paths import Layout, available_path
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import (
    ENVIRONMENT_VARIABLE,
    NO_SECURITY,
    load_zookeeper_security,
)
from tests.fakes.zookeeper_server import open_zookeeper_process

TIMEOUT_S = 240.0


def settings_of(home: Path) -> Path:
    (home / "password").write_text("secret\n")
    settings = home / "zookeeper.toml"
    settings.write_text("scheme = 'digest'\nusername = 'shop'\npassword_file = 'password'\n")
    return settings


def configuration_of(home: Path, hosts: str, port: int) -> Path:
    path = home / "bk_server.conf"
    path.write_text(
        f"metadataServiceUri=zk+hierarchical://{hosts}/ledgers\nbookiePort={port}\nallowLoopback=true\n"
        f"advertisedAddress=127.0.0.1\njournalDirectory={home}/journal\nledgerDirectories={home}/ledgers\n"
        "zkEnableSecurity=true\n"
    )
    return path


@pytest.mark.zookeeper
@pytest.mark.cluster
async def test_a_log_works_and_a_stranger_sees_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(settings))
    (port,) = free_ports(1, random.Random(), host="127.0.0.1")
    with trio.fail_after(TIMEOUT_S):
        async with open_zookeeper_process(tmp_path / "zookeeper") as server:
            async with open_zookeeper_store(server.hosts) as store:
                await create_cluster(store, "/ledgers", Layout.HIERARCHICAL, "an-instance-id")
            configuration = configuration_of(tmp_path, server.hosts, port)
            bookie = start_detached(
                [sys.executable, "-m", "bookie", "--config", str(configuration)], tmp_path / "bookie.log"
            )
            try:
                async with open_zookeeper_store(server.hosts) as store:
                    registration = available_path("/ledgers", f"127.0.0.1:{port}")
                    registered = trio.Event()
                    while await store.exists(registration, watch=registered) is None:
                        await registered.wait()
                        registered = trio.Event()
                await write_and_read(server.hosts, settings)
            finally:
                with trio.CancelScope(shield=True):
                    await stop(bookie, grace_s=20)
    assert os.environ[ENVIRONMENT_VARIABLE] == str(settings)


async def write_and_read(hosts: str, settings: Path) -> None:
    uri = f"distributedlog://{hosts}/shop"
    config = dlog.NamespaceConfig(
        create=True,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        zookeeper_security=load_zookeeper_security(settings),
    )
    async with dlog.open_namespace(uri, config=config) as namespace:
        assert namespace.principal == "shop"
        async with namespace.open_writer("orders", create=True) as writer:
            await writer.append(b"secret order")
        async with namespace.open_reader("orders", follow=False) as reader:
            assert [record.payload async for record in reader] == [b"secret order"]
    stranger = dlog.NamespaceConfig(create=True, zookeeper_security=NO_SECURITY)
    with pytest.raises(dlog.AccessDeniedError):
        async with dlog.open_namespace(uri, config=stranger):
            pass
