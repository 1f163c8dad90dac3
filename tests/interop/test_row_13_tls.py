"""Row 13: TLS and mutual TLS between our client and Apache's bookies, and the reverse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import pytest
import trio

import dlog
from ledger.auth.tls import client_context
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.errors import BookieSecurityError, BookieUnavailableError, LedgerError
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.config import TransportConfig
from ledger.transport.dial import dial_tcp
from tests.interop.certificates import STORE_PASSWORD, Authority, Identity, make_authority
from tests.interop.clients import PASSWORD, TEST_TIMEOUT_S, java_client, some_payloads
from tests.interop.driver import Driver
from tests.interop.jars import find_program
from tests.interop.originals import Cluster, Originals
from tests.interop.table import proves

CONTEXT_FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
HERE = "IP:127.0.0.1"
ELSEWHERE = "DNS:bookie.test"


@attrs.frozen
class World:
    """Two authorities, certificates signed by them, and two clusters that trust the first authority."""

    home: Path
    authority: Authority
    client: Identity
    stranger: Authority
    strange_client: Identity
    tls: Cluster  # the bookie has PEM files
    mutual: Cluster  # the bookie has Java key stores, demands a certificate, and shows one of another host


@pytest.fixture(scope="session")
def world(originals: Originals, driver: Driver) -> World:
    home = originals.directory / "certificates"
    authority, stranger = make_authority(home, "authority"), make_authority(home, "stranger")
    in_pem, in_stores = authority.sign("here", HERE), authority.sign("elsewhere", ELSEWHERE)
    password = home / "password"
    password.write_text(f"{STORE_PASSWORD}\n")
    tls = _cluster(originals, driver, "/tls")
    tls.add("java", **in_pem_files(in_pem, authority))
    mutual = _cluster(originals, driver, "/mutual-tls")
    trusted = home / "trusted.p12"
    _store_of_authority(originals, authority, trusted)
    mutual.add(
        "java",
        tlsProviderFactoryClass=CONTEXT_FACTORY,
        tlsClientAuthentication="true",
        tlsKeyStoreType="PKCS12",
        tlsKeyStore=in_stores.store,
        tlsKeyStorePasswordPath=password,
        tlsTrustStoreType="PKCS12",
        tlsTrustStore=trusted,
        tlsTrustStorePasswordPath=password,
    )
    return World(
        home,
        authority,
        authority.sign("client", "DNS:client.test"),
        stranger,
        stranger.sign("strange-client", "DNS:client.test"),
        tls,
        mutual,
    )


def in_pem_files(identity: Identity, authority: Authority) -> dict[str, object]:
    """TLS settings for a bookie of either side, or for Apache's client."""
    return {
        "tlsProviderFactoryClass": CONTEXT_FACTORY,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": identity.key,
        "tlsCertificatePath": identity.certificate,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": authority.certificate,
    }


def _cluster(originals: Originals, driver: Driver, root: str) -> Cluster:
    driver.ask("init_cluster", uri=originals.uri(root, layout="hierarchical"))
    return Cluster(originals, root)


def _store_of_authority(originals: Originals, authority: Authority, store: Path) -> None:
    command = [
        find_program("keytool"),
        *("-importcert", "-noprompt", "-alias", "authority", "-file", str(authority.certificate)),
        *("-keystore", str(store), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD),
    ]
    subprocess.run(command, capture_output=True, check=True, timeout=TEST_TIMEOUT_S)


@asynccontextmanager
async def client_of(
    cluster: Cluster,
    trusted: Authority,
    identity: Identity | None = None,
    *,
    check_host_name: bool = True,
    version: Literal[2, 3] = 2,
) -> AsyncIterator[LedgerClient]:
    """Our client with TLS."""
    context = client_context(
        authorities=trusted.certificate,
        certificate=None if identity is None else identity.certificate,
        key=None if identity is None else identity.key,
        check_host_name=check_host_name,
    )
    config = ClientConfig(
        transport=TransportConfig(add_version=version, tls=context), unavailable_timeout_s=0.5
    )
    async with (
        open_zookeeper_store(cluster.originals.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, config, root=cluster.root) as client,
    ):
        yield client


async def write_and_read(client: LedgerClient) -> int:
    payloads = some_payloads(12)
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
    await writer.append_many(payloads)
    await writer.close()
    reader = await client.open(writer.ledger_id, password=PASSWORD)
    assert [entry.payload for entry in await reader.read(0, 11)] == payloads
    return writer.ledger_id


async def is_refused(
    client: LedgerClient, cluster: Cluster, error: type[BookieUnavailableError] = BookieSecurityError
) -> None:
    """Check that a request fails with this error and that an entry cannot be written."""
    with pytest.raises(error):
        await client.bookie_space(cluster.bookies[0].id)
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
    with pytest.raises(LedgerError):
        await writer.append(b"never")
    assert writer.lac == -1


@proves(13, "connects, writes, reads")
@pytest.mark.parametrize("version", [2, 3])
async def test_we_write_and_read_over_tls(world: World, version: Literal[2, 3]) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with client_of(world.tls, world.authority, version=version) as client:
            await write_and_read(client)
            assert (await client.bookie_space(world.tls.bookies[0].id)).total_bytes > 0


@proves(13, "connects, writes, reads")
@pytest.mark.parametrize("version", [2, 3])
async def test_we_write_and_read_over_mutual_tls(world: World, version: Literal[2, 3]) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with client_of(
            world.mutual, world.authority, world.client, check_host_name=False, version=version
        ) as client:
            await write_and_read(client)
            assert (await client.bookie_space(world.mutual.bookies[0].id)).total_bytes > 0


@proves(13, "connects, writes, reads")
async def test_a_log_is_written_and_read_over_mutual_tls(world: World) -> None:
    context = client_context(
        authorities=world.authority.certificate,
        certificate=world.client.certificate,
        key=world.client.key,
        check_host_name=False,
    )
    config = dlog.NamespaceConfig(
        create=True,
        ledgers_root=world.mutual.root,
        tls=context,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
    )
    uri = f"distributedlog://{world.mutual.originals.zookeeper_hosts}/tls-logs"
    with trio.fail_after(TEST_TIMEOUT_S):
        async with dlog.open_namespace(uri, config=config) as namespace:
            await namespace.create_log("orders")
            async with namespace.open_writer("orders") as log:
                await log.append_many([b"first", b"second"])
            async with namespace.open_reader("orders", follow=False) as reader:
                assert [record.payload async for record in reader] == [b"first", b"second"]


@proves(13, "connects, writes, reads")
def test_our_command_line_works_over_mutual_tls(world: World) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dlog.cli.main", "ledger", "simpletest", "--entries", "20", "--json"]
        sizes = ["--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1", "--service", world.mutual.uri]
        return subprocess.run(
            [*command, *sizes, *options], capture_output=True, text=True, timeout=TEST_TIMEOUT_S
        )

    files = ["--tls-authorities", str(world.authority.certificate), "--tls-key", str(world.client.key)]
    done = run(*files, "--tls-certificate", str(world.client.certificate), "--tls-any-host-name")
    assert done.returncode == 0, done.stderr
    assert '"entries": 20' in done.stdout
    assert run(*files).returncode == 2  # a key without its certificate


@proves(13, "refuses a wrong certificate")
async def test_we_refuse_a_bookie_with_a_certificate_of_an_untrusted_authority(world: World) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with client_of(world.tls, world.stranger) as client:
            await is_refused(client, world.tls)


@proves(13, "refuses a wrong certificate")
async def test_we_refuse_a_bookie_with_a_certificate_for_another_host(world: World) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with client_of(world.mutual, world.authority, world.client) as client:
            await is_refused(client, world.mutual)


@proves(13, "refuses a wrong certificate")
async def test_we_never_send_clear_text_to_a_bookie_without_tls(world: World, java_cluster: Cluster) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with client_of(java_cluster, world.authority) as client:
            await is_refused(client, java_cluster)


@proves(13, "is refused without one")
async def test_a_bookie_that_demands_a_certificate_refuses_us_without_one(world: World) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with client_of(world.mutual, world.authority, check_host_name=False) as client:
            # A reset of the connection may arrive before the bookie's TLS alert.
            await is_refused(client, world.mutual, BookieUnavailableError)


@proves(13, "is refused without one")
async def test_a_bookie_that_demands_a_certificate_refuses_one_of_another_authority(world: World) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with client_of(
            world.mutual, world.authority, world.strange_client, check_host_name=False
        ) as client:
            await is_refused(client, world.mutual, BookieUnavailableError)


@proves(13, "connects, writes, reads")
async def test_both_clients_read_and_write_on_a_bookie_of_ours_over_mutual_tls(
    originals: Originals, driver: Driver, world: World
) -> None:
    ours = await trio.to_thread.run_sync(_cluster, originals, driver, "/our-mutual-tls")
    files = in_pem_files(world.authority.sign("ours", HERE), world.authority)
    await trio.to_thread.run_sync(lambda: ours.add("ours", tlsClientAuthentication="true", **files))
    settings = in_pem_files(world.client, world.authority)
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(
            driver, ours, 3, tlsClientAuthentication="true", tlsHostnameVerificationEnabled="true", **settings
        )
        ledger = await java.create((1, 1, 1))
        await ledger.add_many([b"one", b"two"])
        await ledger.close()
        async with client_of(ours, world.authority, world.client) as client:
            reader = await client.open(ledger.ledger_id, password=PASSWORD)
            assert [entry.payload for entry in await reader.read(0, 1)] == [b"one", b"two"]
            seen = await java.open(await write_and_read(client))
            assert await seen.read(0, 11) == some_payloads(12)
