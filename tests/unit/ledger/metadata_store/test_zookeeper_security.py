"""Identities, access lists and TLS beside a real ZooKeeper, and strangers that try to get past them."""

from __future__ import annotations

import itertools
import logging
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from dlog.cluster.ports import free_ports
from dlog.cluster.zookeeper_process import start_zookeeper, stop_zookeeper
from ledger.catalog.catalog import open_catalog
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.errors import (
    AccessDeniedError,
    MetadataError,
    NoNodeError,
    StoreSecurityError,
    StoreUnreachableError,
)
from ledger.metadata_store.store import Create, Put
from ledger.metadata_store.zookeeper import ZookeeperStore, open_zookeeper_store
from ledger.metadata_store.zookeeper_security import (
    ENVIRONMENT_VARIABLE,
    NO_SECURITY,
    ZooKeeperSecurity,
    load_zookeeper_security,
)
from ledger.metadata_store.zookeeper_threads import OneSessionHandler
from tests.fakes.certificates import TestAuthority, is_trusted, make_authority

SASL_PASSWORD = "sasl-secret-4711"
SASL = ZooKeeperSecurity(scheme="sasl", username="dlog", password=SASL_PASSWORD)
DIGEST = ZooKeeperSecurity(scheme="digest", username="dlog", password="digest-secret")
STRANGERS = [
    pytest.param(NO_SECURITY, id="no identity"),
    pytest.param(ZooKeeperSecurity(scheme="digest", username="dlog", password="guess"), id="guessed digest"),
    pytest.param(ZooKeeperSecurity(scheme="sasl", username="other", password="other"), id="another user"),
]
METADATA = LedgerMetadata(
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    ensembles=(Ensemble(0, ("b1:3181",)),),
    password=b"the ledger's password",
)

_roots = itertools.count(1)


@attrs.frozen
class SecureServer:
    """A server that knows users of SASL, and has a port with TLS."""

    hosts: str
    tls_hosts: str
    authority: TestAuthority
    home: Path

    def tls(self, **changes: Any) -> ZooKeeperSecurity:
        settings = ZooKeeperSecurity(
            tls=True,
            tls_authorities=self.home / "authority.pem",
            tls_certificate=self.home / "client.pem",
            tls_key=self.home / "client.pem",
        )
        return attrs.evolve(settings, **changes)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    home = tmp_path_factory.mktemp("secure-zookeeper")
    authority = make_authority()
    authority.write_pem(home / "authority.pem")
    authority.sign("localhost").write_pem(home / "server.pem")
    authority.sign("client").write_pem(home / "client.pem")
    (home / "jaas.conf").write_text(
        "Server { org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'  user_dlog="{SASL_PASSWORD}" user_other="other"; }};\n'
    )
    (tls_port,) = free_ports(1, random.Random(), host="127.0.0.1")
    settings = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(tls_port),
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": str(home / "server.pem"),
        "ssl.trustStore.location": str(home / "authority.pem"),
        "ssl.clientAuth": "want",
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "authProvider.2": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    options = [f"-Djava.security.auth.login.config={home / 'jaas.conf'}"]

    start = partial(start_zookeeper, home / "data", settings=settings, java_options=options)
    process = trio.run(start)
    yield SecureServer(process.hosts, f"localhost:{tls_port}", authority, home)
    trio.run(stop_zookeeper, process.identity)


async def refuse_everything(stranger: ZookeeperStore, path: str) -> None:
    with pytest.raises(AccessDeniedError):
        await stranger.get(path)
    with pytest.raises(AccessDeniedError):
        await stranger.children(path)
    with pytest.raises(AccessDeniedError):
        await stranger.put(path, b"forged")
    with pytest.raises(AccessDeniedError):
        await stranger.create(f"{path}/child")
    with pytest.raises(AccessDeniedError):
        await stranger.commit([Put(path, b"forged")])


@pytest.mark.zookeeper
@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("owner", [SASL, DIGEST], ids=["sasl", "digest"])
async def test_a_stranger_neither_reads_nor_writes_ledger_metadata(
    server: SecureServer,
    owner: ZooKeeperSecurity,
    stranger: ZooKeeperSecurity,
    request: pytest.FixtureRequest,
) -> None:
    """Create the nodes with an open list, and the stranger reads the password."""
    root = f"/ledgers-{next(_roots)}"
    async with (
        open_zookeeper_store(server.hosts, security=owner) as store,
        open_zookeeper_store(server.hosts, security=stranger) as attacker,
    ):
        catalog = await open_catalog(store, root)
        created = await catalog.create(METADATA)
        path = catalog.path(created.ledger_id)
        await refuse_everything(attacker, path)
        parent = path.rpartition("/")[0]
        with pytest.raises(AccessDeniedError):
            await attacker.delete(path)
        with pytest.raises(AccessDeniedError):
            await attacker.create(f"{parent}/L9999")
        assert (await catalog.get(created.ledger_id)).metadata.password == METADATA.password
        # The same identity in another session may do everything.
        async with open_zookeeper_store(server.hosts, security=owner) as colleague:
            assert (await colleague.get(path)).value == (await store.get(path)).value
            await (await open_catalog(colleague, root)).delete(created.ledger_id)


@pytest.mark.zookeeper
async def test_nodes_of_transactions_and_ephemeral_nodes_are_protected_too(server: SecureServer) -> None:
    async with (
        open_zookeeper_store(server.hosts, security=SASL) as store,
        open_zookeeper_store(server.hosts, security=NO_SECURITY) as attacker,
    ):
        await store.create("/transaction/parent", parents=True)
        await store.commit([Create("/transaction/parent/child", b"secret")])
        ephemeral = await store.create("/transaction/lock-", ephemeral=True, sequential=True)
        for path in ("/transaction", "/transaction/parent", "/transaction/parent/child", ephemeral):
            with pytest.raises(AccessDeniedError):
                await attacker.get(path)


@pytest.mark.zookeeper
async def test_the_nodes_that_apache_leaves_open_stay_open(server: SecureServer) -> None:
    async with (
        open_zookeeper_store(server.hosts, security=SASL) as store,
        open_zookeeper_store(server.hosts, security=NO_SECURITY) as other,
    ):
        await store.create("/open/idgen-long", parents=True)
        await store.create("/open/lostBookieRecoveryDelay", b"0")
        await other.create("/open/idgen-long/HOB-0000000001")
        await other.put("/open/lostBookieRecoveryDelay", b"1")
        with pytest.raises(AccessDeniedError):
            await other.get("/open")


@pytest.mark.zookeeper
async def test_acl_open_gives_an_identity_without_protecting_nodes(server: SecureServer) -> None:
    async with (
        open_zookeeper_store(server.hosts, security=attrs.evolve(SASL, acl="open")) as store,
        open_zookeeper_store(server.hosts, security=NO_SECURITY) as other,
    ):
        await store.create("/shared", b"x")
        assert (await other.get("/shared")).value == b"x"


@pytest.mark.zookeeper
async def test_a_wrong_password_of_sasl_is_an_error_at_the_opening(server: SecureServer) -> None:
    wrong = attrs.evolve(SASL, password="wrong-secret")
    with trio.fail_after(30), pytest.raises(StoreSecurityError, match="refused the user 'dlog'") as caught:
        async with open_zookeeper_store(server.hosts, security=wrong):
            pass
    assert "wrong-secret" not in str(caught.value)


@pytest.mark.zookeeper
async def test_a_rotated_password_serves_the_next_session(server: SecureServer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("outdated\n")
    security = ZooKeeperSecurity(scheme="sasl", username="dlog", password_file=file)
    with trio.fail_after(30), pytest.raises(StoreSecurityError):
        async with open_zookeeper_store(server.hosts, security=security):
            pass
    file.write_text(f"{SASL_PASSWORD}\n")
    async with open_zookeeper_store(server.hosts, security=security) as store:
        assert await store.exists("/zookeeper") is not None


@pytest.mark.zookeeper
async def test_no_log_line_has_a_credential(server: SecureServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "ledger.metadata_store.zookeeper.kazoo")
    for security in (SASL, DIGEST):
        async with open_zookeeper_store(server.hosts, security=security) as store:
            await store.exists("/")
    assert "Sending request" in caplog.text
    for secret in (SASL_PASSWORD, "digest-secret"):
        assert secret not in caplog.text
        assert secret not in repr(SASL) + repr(DIGEST)


@pytest.mark.zookeeper
async def test_a_client_certificate_is_an_identity(server: SecureServer) -> None:
    server.authority.sign("somebody").write_pem(server.home / "another.pem")
    another = server.tls(tls_certificate=server.home / "another.pem", tls_key=server.home / "another.pem")
    async with (
        open_zookeeper_store(server.tls_hosts, security=server.tls()) as store,
        open_zookeeper_store(server.tls_hosts, security=another) as attacker,
        open_zookeeper_store(server.hosts, security=NO_SECURITY) as clear,
    ):
        await store.create("/certified", b"secret")
        await refuse_everything(attacker, "/certified")
        await refuse_everything(clear, "/certified")
        assert (await store.get("/certified")).value == b"secret"


@pytest.mark.zookeeper
async def test_many_requests_in_flight_over_tls_are_all_answered(server: SecureServer) -> None:
    async with open_zookeeper_store(server.tls_hosts, security=server.tls()) as store:
        await store.create("/busy", b"x" * 100)
        seen = 0

        async def ask() -> None:
            nonlocal seen
            for _ in range(10):
                assert (await store.get("/busy")).value == b"x" * 100
                seen += 1

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(ask)
        assert seen == 1000


def test_a_reply_that_openssl_has_read_already_is_not_left_waiting(tmp_path: Path) -> None:
    """One record of TLS may hold two replies. The socket has nothing more to read after the first."""
    authority = make_authority()
    trusted = authority.write_pem(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.sign("localhost").write_pem(tmp_path / "server.pem"))

    def serve(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            connection.sendall(b"first second")
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        handler = OneSessionHandler(ZooKeeperSecurity(tls=True, tls_authorities=trusted))
        address = listener.getsockname()
        with handler.create_connection(address=address, hostname="localhost", timeout=10) as connection:
            assert connection.recv(6) == b"first "
            assert handler.select([connection], [], [], 0.01)[0] == [connection]
            assert connection.recv(6) == b"second"
            assert handler.select([connection], [], [], 0.01)[0] == []
            connection.sendall(b"x")
        thread.join()


@pytest.mark.zookeeper
async def test_a_server_of_another_authority_or_name_is_refused(server: SecureServer, tmp_path: Path) -> None:
    make_authority("foreign.test").write_pem(tmp_path / "foreign.pem")
    foreign = server.tls(tls_authorities=tmp_path / "foreign.pem")
    with pytest.raises(StoreUnreachableError, match="certificate verify failed"):
        async with open_zookeeper_store(server.tls_hosts, security=foreign, connect_timeout_s=2):
            pass
    by_address = server.tls_hosts.replace("localhost", "127.0.0.1")  # the certificate names localhost
    with pytest.raises(StoreUnreachableError, match="certificate verify failed"):
        async with open_zookeeper_store(by_address, security=server.tls(), connect_timeout_s=2):
            pass
    unchecked = server.tls(tls_check_hostname=False)
    async with open_zookeeper_store(by_address, security=unchecked) as store:
        assert await store.exists("/zookeeper") is not None


def test_given_authorities_replace_those_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any public authority could otherwise sign a certificate for our server's name."""
    of_system, own = make_authority("system.test"), make_authority("own.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(of_system.write_pem(tmp_path / "system.pem")))
    given = own.write_pem(tmp_path / "own.pem")
    server = tmp_path / "server.pem"

    def trusts(security: ZooKeeperSecurity, authority: TestAuthority) -> bool:
        return is_trusted(security.tls_context(), authority.sign("zk.test"), "zk.test", server)

    assert trusts(ZooKeeperSecurity(tls=True), of_system)
    assert trusts(ZooKeeperSecurity(tls=True, tls_authorities=given), own)
    assert not trusts(ZooKeeperSecurity(tls=True, tls_authorities=given), of_system)


@pytest.mark.zookeeper
async def test_a_rotated_certificate_serves_the_next_connection(server: SecureServer, tmp_path: Path) -> None:
    file = tmp_path / "client.pem"
    server.authority.sign("first").write_pem(file)
    security = server.tls(tls_certificate=file, tls_key=file)
    async with open_zookeeper_store(server.tls_hosts, security=security) as store:
        await store.create("/first", b"x")
    server.authority.sign("second").write_pem(file)
    async with open_zookeeper_store(server.tls_hosts, security=security) as store:
        with pytest.raises(AccessDeniedError):
            await store.get("/first")
        await store.create("/second", b"x")


@pytest.mark.zookeeper
async def test_the_environment_names_the_settings_of_every_session(
    server: SecureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text(SASL_PASSWORD)
    file = tmp_path / "zookeeper.toml"
    file.write_text('scheme = "sasl"\nusername = "dlog"\npassword_file = "password"\n')
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(file))
    async with (
        open_zookeeper_store(server.hosts) as store,
        open_zookeeper_store(server.hosts, security=NO_SECURITY) as attacker,
    ):
        await store.create("/of-the-environment")
        with pytest.raises(AccessDeniedError):
            await attacker.get("/of-the-environment")
        with pytest.raises(NoNodeError):
            await attacker.get("/missing")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("schema = 'sasl'", "unknown key 'schema'"),
        ("scheme = 'sasl'", "needs a username"),
        ("scheme = 'kerberos'\nusername = 'a'", "scheme 'kerberos'"),
        ("username = 'a'", "without a scheme"),
        ("scheme = 'sasl'\nusername = 'a'\npassword = 'b'", "file of its own"),
        ("scheme = 'digest'\nusername = 'a:b'\npassword_file = 'p'", "colon"),
        ("acl = 'creator'", "needs an identity"),
        ("acl = 'world'", "'creator' and 'open'"),
        ("tls = 'yes'", "must be a bool"),
        ("tls_authorities = 'ca.pem'", "TLS is off"),
        ("tls = true\ntls_key = 'key.pem'", "belong together"),
        ("tls", "not TOML"),
    ],
)
def test_settings_that_are_not_understood_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "zookeeper.toml"
    file.write_text(text)
    with pytest.raises(StoreSecurityError, match=reason) as caught:
        load_zookeeper_security(file)
    assert str(file) in str(caught.value)


async def test_a_file_that_cannot_be_used_stops_the_opening(tmp_path: Path) -> None:
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.write_text("\n")
    for security, reason in [
        (ZooKeeperSecurity(scheme="sasl", username="a", password_file=missing), "missing: the password"),
        (ZooKeeperSecurity(scheme="sasl", username="a", password_file=empty), "empty"),
        (ZooKeeperSecurity(tls=True, tls_authorities=missing), "No such file"),
        (ZooKeeperSecurity(tls=True, tls_authorities=empty), "must be PEM"),
    ]:
        with pytest.raises(StoreSecurityError, match=reason):
            async with open_zookeeper_store("127.0.0.1:1", security=security):
                pass
    with pytest.raises(MetadataError, match="cannot be read"):
        load_zookeeper_security(missing)
