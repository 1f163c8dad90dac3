"""Row 14: SASL DIGEST-MD5 and roles of certificates, each client on bookies of the other side."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import pytest
import trio

from ledger.auth.sasl import SaslAuth
from ledger.auth.tls import client_context
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.errors import BookieSecurityError, BookieUnavailableError, LedgerError
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.policy import POLICY_NODE, UNMARKED, LogMark, Policy, Right, Rule, encode_policy
from ledger.transport.config import TransportConfig
from ledger.transport.dial import dial_tcp
from tests.interop.certificates import Authority, Identity, make_authority
from tests.interop.clients import PASSWORD, TEST_TIMEOUT_S, RemoteClient, java_client
from tests.interop.driver import Driver, DriverError
from tests.interop.originals import Cluster, Kind, Originals
from tests.interop.table import proves
from tests.interop.test_row_13_tls import HERE, in_pem_files, write_and_read

SASL_BOOKIE = {"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"}
SASL_CLIENT = {"clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory"}
ROLES = {
    "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
    "authorizedRoles": "writer",
    "tlsClientAuthentication": "true",
}
SECRET = 'caf\u00e9, "quoted"'  # a comma, a quote, and a letter whose encoding RFC 2831 prescribes
MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule required"
JAAS = """
Bookie {{ {module} user_bookkeeper="{secret}" user_bookkeeperreader="{secret}" user_stranger="{secret}"; }};
BookKeeper {{ {module} username="bookkeeper" password="{secret}"; }};
WrongPassword {{ {module} username="bookkeeper" password="guess"; }};
NotAllowed {{ {module} username="stranger" password="{secret}"; }};
Reader {{ {module} username="bookkeeperreader" password="{secret}"; }};
"""


@attrs.frozen
class World:
    """A JAAS file, a Java driver that has it, and certificates."""

    originals: Originals
    driver: Driver
    jaas: Path
    java_options: tuple[str, ...]
    authority: Authority
    bookie: Identity
    writer: Identity  # has the role that is authorized
    other: Identity

    def cluster(self, root: str, kind: Kind, **settings: object) -> Cluster:
        """One bookie that demands authentication."""
        self.driver.ask("init_cluster", uri=self.originals.uri(root, layout="hierarchical"))
        cluster = Cluster(self.originals, root, java_options=self.java_options)
        if kind == "ours" and SASL_BOOKIE.items() <= settings.items():
            settings.setdefault("java.security.auth.login.config", self.jaas)
        cluster.add(kind, **settings)
        return cluster


@pytest.fixture(scope="session")
def world(originals: Originals) -> World:
    home = originals.directory / "authentication"
    authority = make_authority(home, "authority")
    jaas = home / "jaas.conf"
    jaas.write_text(JAAS.format(module=MODULE, secret=SECRET.replace('"', '\\"')))
    options = (f"-Djava.security.auth.login.config={jaas}", "-Dfile.encoding=UTF-8")
    return World(
        originals,
        originals.start_driver("authenticating-driver", options=options),
        jaas,
        options,
        authority,
        authority.sign("bookie", HERE),
        authority.sign("writer", "DNS:client.test", unit="0:writer,reader;1:cluster"),
        authority.sign("other", "DNS:client.test", unit="0:reader,writer;1:cluster"),
    )


@pytest.fixture(scope="session")
def java_sasl(world: World) -> Cluster:
    return world.cluster("/java-sasl", "java", **SASL_BOOKIE)


@pytest.fixture(scope="session")
def our_sasl(world: World) -> Cluster:
    return world.cluster("/our-sasl", "ours", **SASL_BOOKIE)


@asynccontextmanager
async def our_client(
    cluster: Cluster,
    auth: SaslAuth | None,
    *,
    tls: ssl.SSLContext | None = None,
    version: Literal[2, 3] = 2,
    connect_timeout_s: float = 10.0,
) -> AsyncIterator[LedgerClient]:
    transport = TransportConfig(add_version=version, auth=auth, tls=tls, connect_timeout_s=connect_timeout_s)
    config = ClientConfig(transport=transport, unavailable_timeout_s=0.5)
    async with (
        open_zookeeper_store(cluster.originals.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, config, root=cluster.root) as client,
    ):
        yield client


async def we_are_refused(client: LedgerClient, cluster: Cluster) -> None:
    with pytest.raises(BookieUnavailableError):
        await client.bookie_space(cluster.bookies[0].id)
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
    with pytest.raises(LedgerError):
        await writer.append(b"never")
    assert writer.lac == -1


def in_tls(world: World, identity: Identity | None = None) -> ssl.SSLContext:
    return client_context(
        authorities=world.authority.certificate,
        certificate=None if identity is None else identity.certificate,
        key=None if identity is None else identity.key,
        check_host_name=False,
    )


async def java_writes_and_reads(client: RemoteClient) -> None:
    ledger = await client.create((1, 1, 1))
    await ledger.add_many([b"one", b"two"])
    await ledger.close()
    assert await (await client.open(ledger.ledger_id)).read(0, 1) == [b"one", b"two"]


async def java_is_refused(client: RemoteClient) -> None:
    ledger = await client.create((1, 1, 1))
    with pytest.raises(DriverError) as caught:
        await ledger.add(b"never")
    assert caught.value.code is not None
    assert caught.value.code < 0


# Our client, Java bookies


@proves(14, "our client, SASL: v2")
async def test_we_authenticate_by_version_2(world: World, java_sasl: Cluster) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(java_sasl, SaslAuth(jaas_file=world.jaas)) as client:
            await write_and_read(client)
            assert (await client.bookie_space(java_sasl.bookies[0].id)).total_bytes > 0


@proves(14, "our client, SASL: v3")
async def test_we_authenticate_by_version_3(world: World, java_sasl: Cluster) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(java_sasl, SaslAuth(jaas_file=world.jaas), version=3) as client:
            await write_and_read(client)


@proves(14, "our client, wrong password")
@pytest.mark.parametrize("section", ["WrongPassword", "NotAllowed", None])
async def test_we_are_refused_with_a_wrong_password(
    world: World, java_sasl: Cluster, section: str | None
) -> None:
    auth = None if section is None else SaslAuth(jaas_file=world.jaas, section=section)
    with trio.fail_after(TEST_TIMEOUT_S):
        # Java's bookie says nothing to a wrong password and keeps the connection.
        async with our_client(java_sasl, auth, connect_timeout_s=3) as client:
            writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
            with pytest.raises(LedgerError):
                await writer.append(b"never")
            assert writer.lac == -1


@proves(14, "our client, SASL in TLS")
async def test_we_authenticate_inside_tls(world: World) -> None:
    files = in_pem_files(world.bookie, world.authority)
    cluster = await trio.to_thread.run_sync(
        lambda: world.cluster("/java-sasl-tls", "java", **SASL_BOOKIE, **files)
    )
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(cluster, SaslAuth(jaas_file=world.jaas), tls=in_tls(world)) as client:
            await write_and_read(client)


@proves(14, "our client, role of its certificate")
async def test_javas_bookie_reads_our_role(world: World) -> None:
    files = in_pem_files(world.bookie, world.authority)
    cluster = await trio.to_thread.run_sync(lambda: world.cluster("/java-roles", "java", **ROLES, **files))
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(cluster, None, tls=in_tls(world, world.writer)) as client:
            await write_and_read(client)
        async with our_client(cluster, None, tls=in_tls(world, world.other)) as client:
            writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
            with pytest.raises(LedgerError):
                await writer.append(b"never")
            assert writer.lac == -1


# Java's client, our bookies


@proves(14, "Java client, SASL: v2")
async def test_java_authenticates_by_version_2(world: World, our_sasl: Cluster) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        await java_writes_and_reads(await java_client(world.driver, our_sasl, 2, **SASL_CLIENT))


@proves(14, "Java client, SASL: v3")
async def test_java_authenticates_by_version_3(world: World, our_sasl: Cluster) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        await java_writes_and_reads(await java_client(world.driver, our_sasl, 3, **SASL_CLIENT))


@proves(14, "Java client, wrong password")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("section", ["WrongPassword", "NotAllowed", None])
async def test_java_is_refused_with_a_wrong_password(
    world: World, our_sasl: Cluster, section: str | None, version: Literal[2, 3]
) -> None:
    settings = {} if section is None else {**SASL_CLIENT, "saslJaasClientSectionName": section}
    with trio.fail_after(TEST_TIMEOUT_S):
        await java_is_refused(await java_client(world.driver, our_sasl, version, **settings))


@proves(14, "our bookie, a changed password")
async def test_our_bookie_takes_a_changed_password_on_sighup(world: World) -> None:
    jaas = world.jaas.with_name("changing.conf")
    jaas.write_text(JAAS.format(module=MODULE, secret="old"))
    settings = {**SASL_BOOKIE, "java.security.auth.login.config": jaas}
    cluster = await trio.to_thread.run_sync(lambda: world.cluster("/our-changing", "ours", **settings))
    bookie = cluster.bookies[0]
    old, new = jaas.with_name("old"), jaas.with_name("new")
    old.write_text("old")
    new.write_text("new")
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(cluster, SaslAuth(username="bookkeeper", password_file=old)) as client:
            await write_and_read(client)
        jaas.write_text(JAAS.format(module=MODULE, secret="new"))
        os.kill(bookie.process.pid, signal.SIGHUP)
        async with our_client(cluster, SaslAuth(username="bookkeeper", password_file=new)) as client:
            while True:  # until the bookie has read the file
                try:
                    await client.bookie_space(bookie.id)
                    break
                except BookieUnavailableError:
                    continue
        async with our_client(cluster, SaslAuth(username="bookkeeper", password_file=old)) as client:
            with pytest.raises(BookieUnavailableError):
                await client.bookie_space(bookie.id)


@proves(14, "our bookie, permissions by a policy")
@pytest.mark.parametrize("version", [2, 3])
async def test_our_bookie_obeys_a_policy_for_javas_client(world: World, version: Literal[2, 3]) -> None:
    namespace, write = f"/policy-{version}", frozenset({Right.WRITE})
    policy = Policy(
        (
            Rule("operator", "*", frozenset({Right.ADMIN})),
            Rule("bookkeeper", UNMARKED, write),
            Rule("bookkeeperreader", UNMARKED, frozenset({Right.READ})),
            Rule("bookkeeperreader", "orders", write),
        )
    )
    reader_section = {**SASL_CLIENT, "saslJaasClientSectionName": "Reader"}
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_zookeeper_store(world.originals.zookeeper_hosts) as store:
            await store.create(f"{namespace}/{POLICY_NODE}", encode_policy(policy), parents=True)
        cluster = await trio.to_thread.run_sync(
            lambda: world.cluster(f"/our-policy-{version}", "ours", **SASL_BOOKIE, policyNamespaces=namespace)
        )
        writer = await java_client(world.driver, cluster, version, **SASL_CLIENT)
        reader = await java_client(world.driver, cluster, version, **reader_section)
        await java_writes_and_reads(writer)
        ledger = await writer.create((1, 1, 1))
        await ledger.add(b"one")
        await ledger.close()
        assert await (await reader.open(ledger.ledger_id)).read(0, 0) == [b"one"]
        await java_is_refused(reader)

        # A ledger of a log: the rights are exchanged.
        async with our_client(
            cluster, SaslAuth(jaas_file=world.jaas, section="Reader"), version=version
        ) as ours:
            marked = await ours.create(
                ensemble_size=1,
                write_quorum=1,
                ack_quorum=1,
                password=PASSWORD,
                custom=LogMark(namespace, "orders").custom,
            )
            await marked.append(b"of a log")
            await marked.close()
        assert await (await reader.open(marked.ledger_id)).read(0, 0) == [b"of a log"]
        with pytest.raises(DriverError):
            await (await writer.open(marked.ledger_id)).read(0, 0)


@proves(14, "Java client, SASL in required TLS")
@pytest.mark.parametrize("version", [2, 3])
async def test_java_authenticates_inside_tls(world: World, version: Literal[2, 3]) -> None:
    files = in_pem_files(world.bookie, world.authority)
    cluster = await trio.to_thread.run_sync(
        lambda: world.cluster(f"/our-sasl-tls-{version}", "ours", **SASL_BOOKIE, **files, tlsRequired="true")
    )
    with trio.fail_after(TEST_TIMEOUT_S):
        settings = in_pem_files(world.writer, world.authority)
        await java_writes_and_reads(
            await java_client(world.driver, cluster, version, **SASL_CLIENT, **settings)
        )
        async with our_client(cluster, SaslAuth(jaas_file=world.jaas), tls=in_tls(world)) as client:
            await write_and_read(client)
        async with our_client(cluster, SaslAuth(jaas_file=world.jaas)) as client:
            with pytest.raises(BookieSecurityError):
                await client.bookie_space(cluster.bookies[0].id)


@proves(14, "Java client, role of its certificate", "Java client, clear text refused")
async def test_our_bookie_reads_javas_role(world: World) -> None:
    files = in_pem_files(world.bookie, world.authority)
    cluster = await trio.to_thread.run_sync(lambda: world.cluster("/our-roles", "ours", **ROLES, **files))
    demand = {"tlsClientAuthentication": "true"}
    with trio.fail_after(TEST_TIMEOUT_S):
        writer = in_pem_files(world.writer, world.authority)
        await java_writes_and_reads(await java_client(world.driver, cluster, 3, **writer, **demand))
        other = in_pem_files(world.other, world.authority)
        await java_is_refused(await java_client(world.driver, cluster, 3, **other, **demand))
        for version in (2, 3):
            await java_is_refused(await java_client(world.driver, cluster, version))
        async with our_client(cluster, None, tls=in_tls(world, world.other)) as client:
            writer_of_ours = await client.create(
                ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD
            )
            with pytest.raises(LedgerError):
                await writer_of_ours.append(b"never")
