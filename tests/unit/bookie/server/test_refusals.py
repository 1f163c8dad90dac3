"""A client and bookies that do not accept each other: each call ends at once, and the bookie's log says why.

Real sockets, real TLS and our client; three bookies with one configuration, unless said.
"""

from __future__ import annotations

import logging
import random
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from bookie.auth.certificate_roles import CertificateRoles
from bookie.auth.reloading import open_secrets
from bookie.auth.tls import TlsConfig
from bookie.auth.tokens import BearerTokens
from bookie.bookie import open_bookie
from bookie.server.config import ServerConfig
from ledger.auth.auth import AuthFactory
from ledger.auth.authentication import AuthProvider
from ledger.auth.sasl import SaslAuth
from ledger.auth.sasl_users import SaslUsers
from ledger.auth.tls import client_context
from ledger.auth.token_auth import TokenAuth
from ledger.catalog.paths import available_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.errors import AccessDeniedError, BookieSecurityError, ClientRefusedError, LedgerReadError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.transport.config import TransportConfig
from ledger.transport.dial import dial_tcp
from tests.fakes.certificates import EXPIRED, TestAuthority, make_authority
from tests.unit.bookie.server.test_server import storage_config

PASSWORD = "correct horse battery"
TOKEN = "0123456789abcdef0123456789abcdef"
PATIENCE_S = 3600.0  # of the client: a refusal must not wait for it
LIMIT_S = 60.0


@attrs.frozen
class Peers:
    """The certificates of a cluster and of its clients, and files with secrets."""

    home: Path
    authority: TestAuthority = attrs.field(factory=make_authority)
    stranger: TestAuthority = attrs.field(factory=lambda: make_authority("stranger.test"))

    def pem(self, name: str, authority: TestAuthority | None = None, *, expired: bool = False) -> Path:
        signed = (authority or self.authority).sign(name, end=EXPIRED if expired else None)
        return signed.write_pem(self.home / f"{random.randbytes(8).hex()}.pem")

    def trusted(self, authority: TestAuthority | None = None) -> Path:
        return (authority or self.authority).write_pem(self.home / f"{random.randbytes(8).hex()}.ca")

    def tls(
        self, certificate: Path | None = None, *, authority: TestAuthority | None = None
    ) -> ssl.SSLContext:
        return client_context(authorities=self.trusted(authority), certificate=certificate)

    def file(self, text: str) -> Path:
        path = self.home / random.randbytes(8).hex()
        path.write_text(text)
        return path

    def sasl(self, user: str = "bookkeeper", password: str = PASSWORD) -> SaslAuth:
        return SaslAuth(username=user, password_file=self.file(password))


@attrs.frozen
class Bookies:
    """What the bookies of a case ask for."""

    certificate: Path | None = None  # None: no TLS
    authorities: Path | None = None  # of clients that must show a certificate
    provider: AuthProvider | None = None
    tls_required: bool = True


@attrs.frozen
class Case:
    """One kind of refusal."""

    bookies: Callable[[Peers], Bookies]
    client: Callable[[Peers], tuple[ssl.SSLContext | None, AuthFactory | None]]
    said: str  # by the client's error
    logged: str  # by the bookie


def secured(peers: Peers) -> Bookies:
    return Bookies(peers.pem("localhost"))


def mutual(peers: Peers) -> Bookies:
    return Bookies(peers.pem("localhost"), peers.trusted())


def users(peers: Peers) -> SaslUsers:
    return SaslUsers(
        peers.file(f'Bookie {{ M required user_bookkeeper="{PASSWORD}" user_bob="{PASSWORD}"; }};')
    )


def accepting(peers: Peers) -> Bookies:
    return Bookies(provider=users(peers), tls_required=False)


def refusing(peers: Peers) -> Bookies:
    provider = SaslUsers(peers.file('Bookie { M required user_bookkeeper="another"; };'))
    return Bookies(provider=provider, tls_required=False)


CASES = {
    "wrong password": Case(
        lambda peers: Bookies(provider=users(peers), tls_required=False),
        lambda peers: (None, peers.sasl(password="guess")),
        r"refused plug-in 'sasl' with UNAUTHORIZED",
        r"authentication failed: peer 127\.0\.0\.1: .*user 'bookkeeper': unknown user or wrong password",
    ),
    "unknown user in TLS": Case(
        lambda peers: attrs.evolve(secured(peers), provider=users(peers)),
        lambda peers: (peers.tls(), peers.sasl("mallory")),
        r"refused plug-in 'sasl' with UNAUTHORIZED",
        r"authentication failed: peer 127\.0\.0\.1: .*user 'mallory': unknown user or wrong password",
    ),
    "user that may not connect": Case(
        lambda peers: Bookies(provider=users(peers), tls_required=False),
        lambda peers: (None, peers.sasl("bob")),
        r"refused plug-in 'sasl' with UNAUTHORIZED",
        r"authentication failed: .*user 'bob' may not connect: saslJaasClientAllowedIds",
    ),
    "wrong token": Case(
        lambda peers: attrs.evolve(secured(peers), provider=BearerTokens(peers.file(f"alice {TOKEN}"))),
        lambda peers: (peers.tls(), TokenAuth(peers.file(TOKEN[::-1]))),
        r"refused plug-in 'dlog-token' with UNAUTHORIZED",
        r"authentication failed: .*the token belongs to no owner",
    ),
    "another plug-in": Case(
        lambda peers: attrs.evolve(secured(peers), provider=BearerTokens(peers.file(f"alice {TOKEN}"))),
        lambda peers: (peers.tls(), peers.sasl()),
        r"refused plug-in 'sasl' with UNAUTHORIZED",
        r"every request is refused: .*sent a token, which .* another plug-in expects",
    ),
    "bookie of another authority": Case(
        secured,
        lambda peers: (peers.tls(authority=peers.stranger), None),
        r"TLS handshake with localhost failed: .*CERTIFICATE_VERIFY_FAILED",
        r"TLS handshakes that failed: peer 127\.0\.0\.1: .*UNKNOWN_CA",
    ),
    "bookie with another name": Case(
        lambda peers: Bookies(peers.pem("elsewhere.test")),
        lambda peers: (peers.tls(), None),
        r"TLS handshake with localhost failed: .*Hostname mismatch",
        r"TLS handshakes that failed: peer 127\.0\.0\.1: .*ALERT",
    ),
    "bookie with an expired certificate": Case(
        lambda peers: Bookies(peers.pem("localhost", expired=True)),
        lambda peers: (peers.tls(), None),
        r"TLS handshake with localhost failed: .*certificate has expired",
        r"TLS handshakes that failed: peer 127\.0\.0\.1: .*EXPIRED",
    ),
    "client of another authority": Case(
        mutual,
        lambda peers: (peers.tls(peers.pem("client", peers.stranger)), None),
        r"refuses this client in TLS: .*UNKNOWN_CA",
        r"TLS handshakes that failed: peer 127\.0\.0\.1: .*certificate verify failed",
    ),
    "client with an expired certificate": Case(
        mutual,
        lambda peers: (peers.tls(peers.pem("client", expired=True)), None),
        r"refuses this client in TLS: .*CERTIFICATE_EXPIRED",
        r"TLS handshakes that failed: peer 127\.0\.0\.1: .*certificate has expired",
    ),
    "client without certificate": Case(
        mutual,
        lambda peers: (peers.tls(), None),
        r"refuses this client in TLS: .*CERTIFICATE_REQUIRED",
        r"TLS handshakes that failed: peer 127\.0\.0\.1: .*PEER_DID_NOT_RETURN_A_CERTIFICATE",
    ),
    "client without certificate and with SASL": Case(
        lambda peers: attrs.evolve(mutual(peers), provider=users(peers)),
        lambda peers: (peers.tls(), peers.sasl()),
        r"refused this client in TLS: .*CERTIFICATE_REQUIRED",
        r"TLS handshakes that failed: peer 127\.0\.0\.1: .*PEER_DID_NOT_RETURN_A_CERTIFICATE",
    ),
    "client with another role": Case(
        lambda peers: attrs.evolve(mutual(peers), provider=CertificateRoles(frozenset({"writer"}))),
        lambda peers: (peers.tls(peers.pem("client")), None),
        r"lacks the right|UNAUTHORIZED",
        r"every request is refused: peer 127\.0\.0\.1: .*CN=client has no role",
    ),
    "TLS to a port in clear text": Case(
        lambda peers: Bookies(tls_required=False),
        lambda peers: (peers.tls(), None),
        r"refused TLS with \w+; configure TLS there, or turn it off for this client",
        "",  # the bookie serves every peer; there is nothing to refuse but the upgrade
    ),
    "clear text to a port that requires TLS": Case(
        secured,
        lambda peers: (None, None),
        r"lacks the right|UNAUTHORIZED",
        r"every request is refused: peer 127\.0\.0\.1: sent \w+ before TLS",
    ),
    "a secret of the client that cannot be used": Case(
        lambda peers: Bookies(provider=users(peers), tls_required=False),
        lambda peers: (None, SaslAuth(username="bookkeeper", password_file=peers.home / "absent")),
        r"this client's secret cannot be used: .*absent",
        "",
    ),
}


@asynccontextmanager
async def cluster(
    home: Path, configs: list[Bookies], *, patience_s: float = PATIENCE_S
) -> AsyncIterator[Callable[..., Any]]:
    """Bookies on real ports; yields what opens a client of them."""
    tree = MemoryTree()
    async with trio.open_nursery() as nursery, open_memory_store(tree) as store:

        async def serve(number: int, asked: Bookies, *, task_status: trio.TaskStatus[int]) -> None:
            tls = None
            if asked.certificate is not None:
                tls = TlsConfig(
                    key=asked.certificate,
                    certificate=asked.certificate,
                    authorities=asked.authorities,
                    demand_client_certificate=asked.authorities is not None,
                )
            secrets = await open_secrets(tls, asked.provider)
            config = ServerConfig(
                tls=None if tls is None else (lambda: secrets.context),
                tls_required=asked.tls_required and tls is not None,
                auth=asked.provider,
            )
            (home / f"bookie-{number}").mkdir()
            async with open_bookie(storage_config(home / f"bookie-{number}"), server_config=config) as bookie:
                listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
                task_status.started(listeners[0].socket.getsockname()[1])
                await bookie.serve_listeners(listeners)

        for number, asked in enumerate(configs):
            port = await nursery.start(serve, number, asked)
            await store.create(available_path("/ledgers", f"localhost:{port}"), b"", parents=True)

        @asynccontextmanager
        async def client(
            tls: ssl.SSLContext | None = None, auth: AuthFactory | None = None
        ) -> AsyncIterator[LedgerClient]:
            config = ClientConfig(
                transport=TransportConfig(tls=tls, auth=auth), unavailable_timeout_s=patience_s
            )
            async with open_ledger_client(store, dial_tcp, config) as opened:
                yield opened

        yield client
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
async def test_a_refusal_ends_each_call_at_once_with_its_reason_and_is_in_the_log_of_the_bookie(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case, peers = CASES[name], Peers(tmp_path)
    caplog.set_level(logging.WARNING, logger="bookie")
    asked = case.bookies(peers)
    with trio.fail_after(LIMIT_S):
        async with cluster(tmp_path, [asked] * 3) as open_client, open_client(*case.client(peers)) as client:
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            with pytest.raises(AccessDeniedError) as caught:
                await writer.append(b"never")
            assert re.search(case.said, str(caught.value)), str(caught.value)
            assert writer.lac == -1
            with pytest.raises(AccessDeniedError) as caught:
                await client.open(writer.ledger_id)
            with pytest.raises(LedgerReadError) as unread:
                await client.open(writer.ledger_id, recover=False)
            assert unread.value.is_denied
            assert re.search(case.said, str(unread.value)), str(unread.value)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert re.search(case.logged, text), text
    assert PASSWORD not in text + str(caught.value)
    assert TOKEN not in text + str(caught.value)


@pytest.mark.slow
async def test_a_bookie_that_refuses_does_not_stop_a_writer_that_can_do_without_it(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    good, bad = accepting(peers), refusing(peers)
    with trio.fail_after(LIMIT_S):
        async with (
            cluster(tmp_path, [good, good, bad]) as open_client,
            open_client(auth=peers.sasl()) as client,
        ):
            # No other bookie can replace it: two of three are an ack quorum.
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            for number in range(50):
                assert await writer.append(b"%d" % number) == number
            await writer.close()
            reader = await client.open(writer.ledger_id)
            assert reader.last_confirmed == 49


@pytest.mark.slow
async def test_a_bookie_that_refuses_is_replaced_and_never_replaces_another(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    good, bad = accepting(peers), refusing(peers)
    with trio.fail_after(LIMIT_S):
        async with (
            cluster(tmp_path, [good, good, bad, bad, bad]) as open_client,
            open_client(auth=peers.sasl()) as client,
        ):
            for _ in range(5):  # each begins on other bookies
                writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
                await writer.append(b"stored")
                await writer.close()
                assert writer.lac == 0


@pytest.mark.slow
async def test_too_many_bookies_that_refuse_end_a_writer_at_once_with_the_reason_of_each(
    tmp_path: Path,
) -> None:
    peers = Peers(tmp_path)
    good, bad = accepting(peers), refusing(peers)
    with trio.fail_after(LIMIT_S):
        async with (
            cluster(tmp_path, [good, bad, bad]) as open_client,
            open_client(auth=peers.sasl()) as client,
        ):
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            with pytest.raises(ClientRefusedError) as caught:
                await writer.append(b"never")
            assert len(caught.value.reasons) == 2
            assert all(isinstance(reason, BookieSecurityError) for reason in caught.value.reasons)


@pytest.mark.slow
async def test_a_flood_of_refused_peers_writes_few_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(tmp_path)
    caplog.set_level(logging.WARNING, logger="bookie")
    asked = Bookies(provider=users(peers), tls_required=False)
    with trio.fail_after(LIMIT_S):
        async with cluster(tmp_path, [asked]) as open_client:
            for number in range(40):
                async with open_client(auth=peers.sasl(f"user-{number}")) as client:
                    with pytest.raises(BookieSecurityError):
                        await client.bookie_space(next(iter(client._context.membership.writable)))
    assert len(caplog.records) == 1
