"""The gate: what a peer gets before it is authenticated, and what it costs."""

# covers: bookie/auth/certificate_roles.py
# covers: bookie/server/config.py
# covers: bookie/server/handshake.py

from __future__ import annotations

import logging
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, open_stream_to_socket_listener

from bookie.auth.certificate_roles import CertificateRoles
from bookie.bookie import open_bookie
from bookie.errors import BookieConfigError
from bookie.server.config import ServerConfig
from bookie.server.gate import EXCHANGES_MAX, FRAME_BYTES_MAX
from ledger.auth.authentication import AuthRefusedError, PeerCertificate, PeerIdentity
from ledger.codes import Code, Operation
from ledger.digest import DigestType, EntryCodec
from ledger.wire import v3
from ledger.wire.messages import (
    AddReply,
    AuthReply,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadReply,
    ReadRequest,
    RefusedReply,
    Request,
    WriteLacRequest,
)
from tests.unit.bookie.server.gated_bookie import (
    ADD,
    FENCE,
    KEY,
    SECRET,
    Certificates,
    Opened,
    Peer,
    Words,
)
from tests.unit.bookie.server.test_server import storage_config

# Clear text where TLS is needed


@pytest.mark.slow
@pytest.mark.parametrize(
    "request_",
    [
        ADD,
        attrs.evolve(ADD, recovery=True),
        ReadRequest(7, 0),
        FENCE,
        ReadRequest(7, -1),
        ReadLacRequest(7),
        WriteLacRequest(7, 0, KEY, bytes(36)),
        ForceLedgerRequest(7),
        BookieInfoRequest(),
        ListEntriesRequest(7),
        AuthRequest("words", b""),
        AuthRequest("AuthDisabledPlugin", b""),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_a_version_3_request_in_clear_text_is_refused_and_does_nothing(
    opened: Opened, certificates: Certificates, request_: Request
) -> None:
    peer = opened.connect(ServerConfig(tls=lambda: certificates.bookie, tls_required=True))
    reply = await peer.ask(request_)
    assert reply is not None
    assert reply.code is Code.UNAUTHORIZED
    assert opened.bookie.storage.ledger(7) is None
    # The connection stays, and TLS is still possible.
    secured = await peer.secured(certificates.client())
    assert await secured.ask(ReadRequest(7, 0)) == ReadReply(Code.NO_LEDGER, 7, 0)


async def test_version_2_adds_and_reads_in_clear_text_are_refused_and_do_nothing(
    opened: Opened, certificates: Certificates
) -> None:
    peer = opened.connect(ServerConfig(tls=lambda: certificates.bookie, tls_required=True))
    assert await peer.ask(ADD, version=2) == AddReply(Code.UNAUTHORIZED, 7, 0)
    assert await peer.ask(ReadRequest(7, 0), version=2) == ReadReply(Code.UNAUTHORIZED, 7, 0)
    assert await peer.ask(FENCE, version=2) == ReadReply(Code.UNAUTHORIZED, 7, 0)
    assert opened.bookie.storage.ledger(7) is None


@pytest.mark.parametrize("request_", [BatchReadRequest(7, 0, 0, 5, 1000), AuthRequest("other", b"")])
async def test_any_other_version_2_request_in_clear_text_closes_the_connection(
    opened: Opened, certificates: Certificates, request_: Request
) -> None:
    peer = opened.connect(ServerConfig(tls=lambda: certificates.bookie, tls_required=True))
    assert await peer.ask(request_, version=2) is None


async def test_a_real_port_adds_nothing_in_clear_text(
    tmp_path: Path, certificates: Certificates, nursery: trio.Nursery
) -> None:
    config = ServerConfig(tls=lambda: certificates.bookie, tls_required=True)
    async with open_bookie(storage_config(tmp_path), server_config=config) as bookie:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(bookie.serve_listeners, listeners)
        for version in (2, 3):
            async with await open_stream_to_socket_listener(listeners[0]) as stream:
                reply = await Peer(stream).ask(ADD, version=version)
                assert reply is not None
                assert reply.code is Code.UNAUTHORIZED
        assert bookie.storage.ledger(7) is None
        nursery.cancel_scope.cancel()


async def test_inside_tls_a_peer_may_do_everything(opened: Opened, certificates: Certificates) -> None:
    config = ServerConfig(tls=lambda: certificates.bookie, tls_required=True)
    secured = await opened.connect(config).secured(certificates.client(units=("0:writer",)))
    assert await secured.ask(ADD, version=2) == AddReply(Code.OK, 7, 0)
    large = attrs.evolve(
        ADD, entry_id=1, body=EntryCodec(DigestType.CRC32C, b"").pack(7, 1, 0, 9, bytes(200_000))
    )
    assert await secured.ask(large) == AddReply(Code.OK, 7, 1)
    identity = opened.sessions[0].identity
    assert identity is not None
    assert (identity.name, identity.mechanism) == ("CN=client.test,OU=0:writer", "tls")
    assert identity.roles == ("writer",)
    assert identity.certificate is not None
    assert identity.certificate.alternative_names == ("DNS:client.test",)


async def test_tls_needs_a_certificate_of_the_bookie(opened: Opened) -> None:
    with pytest.raises(BookieConfigError, match="tlsProviderFactoryClass"):
        opened.connect(ServerConfig(tls_required=True))
    with pytest.raises(BookieConfigError, match="tlsProviderFactoryClass"):
        opened.connect(ServerConfig(auth=CertificateRoles(frozenset({"writer"}))))


# Tokens


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
async def test_an_authenticated_peer_may_do_everything(opened: Opened, version: int) -> None:
    peer = opened.connect(ServerConfig(auth=Words()))
    reply = await peer.ask(ADD, version=version)
    assert reply is not None
    assert reply.code is Code.UNAUTHORIZED
    assert await peer.ask(AuthRequest("words", b"hello"), version=version) == AuthReply(
        Code.OK, "words", b"?"
    )
    assert await peer.ask(AuthRequest("words", SECRET), version=version) == AuthReply(
        Code.OK, "words", b"welcome"
    )
    # Apache's client sends one more empty token.
    assert await peer.ask(AuthRequest("words", b""), version=version) == AuthReply(
        Code.OK, "AuthDisabledPlugin"
    )
    assert await peer.ask(ADD, version=version) == AddReply(Code.OK, 7, 0)
    identity = opened.sessions[0].identity
    assert identity == PeerIdentity("alice", "words")
    assert str(identity) == "alice (words)"


async def test_requests_behind_the_last_token_in_one_chunk_are_served(opened: Opened) -> None:
    peer = opened.connect(ServerConfig(auth=Words()))
    assert await peer.ask(ADD, AuthRequest("words", SECRET), ADD, version=2) == AddReply(
        Code.UNAUTHORIZED, 7, 0
    )
    assert await peer.reply() == AuthReply(Code.OK, "words", b"welcome")
    assert await peer.reply() == AddReply(Code.OK, 7, 0)


async def test_a_refused_token_gets_eua_in_version_3_and_nothing_in_version_2(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    peer = opened.connect(ServerConfig(auth=Words()))
    assert await peer.ask(AuthRequest("words", b"wrong"), ADD) == RefusedReply(
        Code.UNAUTHORIZED, Operation.AUTH
    )
    assert await peer.reply() is None
    peer = opened.connect(ServerConfig(auth=Words()))
    assert await peer.ask(AuthRequest("words", b"wrong"), ADD, version=2) is None
    assert opened.bookie.storage.ledger(7) is None
    assert [record.levelname for record in caplog.records].count("WARNING") == 2


async def test_a_foreign_plug_in_gets_eua_in_version_3_and_is_closed_in_version_2(opened: Opened) -> None:
    peer = opened.connect(ServerConfig(auth=Words()))
    for _ in range(2):
        assert await peer.ask(AuthRequest("sasl", SECRET)) == RefusedReply(Code.UNAUTHORIZED, Operation.AUTH)
    assert await peer.ask(AuthRequest("sasl", SECRET), version=2) is None


async def test_an_endless_exchange_ends(opened: Opened) -> None:
    peer = opened.connect(ServerConfig(auth=Words()))
    for _ in range(EXCHANGES_MAX):
        assert await peer.ask(AuthRequest("words", b"more")) == AuthReply(Code.OK, "words", b"?")
    assert await peer.ask(AuthRequest("words", SECRET)) == RefusedReply(Code.UNAUTHORIZED, Operation.AUTH)
    assert await peer.reply() is None


@pytest.mark.slow
async def test_a_token_of_100_000_bytes_closes_the_connection_at_its_length(
    opened: Opened, autojump_clock: MockClock
) -> None:
    peer = opened.connect(ServerConfig(auth=Words()))
    frame = v3.encode_request(AuthRequest("words", bytes(100_000)))
    assert len(frame) > FRAME_BYTES_MAX
    begin = trio.current_time()
    await peer.stream.send_all(frame[:4])
    assert await peer.reply() is None
    assert trio.current_time() == begin  # not only at the deadline


async def test_a_peer_that_does_not_authenticate_in_time_is_closed(
    opened: Opened, autojump_clock: MockClock
) -> None:
    peer = opened.connect(ServerConfig(auth=Words(), authentication_s=10))
    begin = trio.current_time()
    for _ in range(9):
        assert await peer.ask(BookieInfoRequest()) is not None
        await trio.sleep(1)
    with trio.fail_after(100):
        assert await peer.reply() is None
    assert trio.current_time() - begin == pytest.approx(10)


@pytest.mark.slow
async def test_an_authenticated_peer_is_not_closed(opened: Opened, autojump_clock: MockClock) -> None:
    peer = opened.connect(ServerConfig(auth=Words(), authentication_s=10))
    await peer.ask(AuthRequest("words", SECRET))
    await trio.sleep(100)
    assert await peer.ask(ReadRequest(7, 0)) == ReadReply(Code.NO_LEDGER, 7, 0)


@pytest.mark.slow
async def test_a_secret_in_clear_text_is_refused_where_tls_is_needed(
    opened: Opened, certificates: Certificates, autojump_clock: MockClock
) -> None:
    config = ServerConfig(auth=Words(), tls=lambda: certificates.bookie, tls_required=True)
    peer = opened.connect(config)
    assert await peer.ask(AuthRequest("words", SECRET)) == RefusedReply(Code.UNAUTHORIZED, Operation.AUTH)
    assert await peer.ask(AuthRequest("words", b"")) == RefusedReply(Code.UNAUTHORIZED, Operation.AUTH)
    assert await peer.ask(ADD, version=2) == AddReply(Code.UNAUTHORIZED, 7, 0)


# Roles of certificates


def roles_config(certificates: Certificates) -> ServerConfig:
    return ServerConfig(
        auth=CertificateRoles(frozenset({"writer", "auditor"})), tls=lambda: certificates.bookie
    )


async def test_an_authorized_role_opens_the_connection(opened: Opened, certificates: Certificates) -> None:
    context = certificates.client(units=("0:writer,reader;1:east",))
    secured = await opened.connect(roles_config(certificates)).secured(context)
    assert await secured.ask(ADD, version=2) == AddReply(Code.OK, 7, 0)
    identity = opened.sessions[0].identity
    assert identity is not None
    assert (identity.mechanism, identity.roles) == ("BookieAuthZFactory", ("writer", "reader"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "units", "words"),
    [
        ("client.test", ("0:reader,writer;1:east",), "the role 'reader'"),
        ("client.test", ("0:Writer",), "the role 'Writer'"),
        ("client.test", ("1:writer",), "has no role"),
        ("client.test", ("0:",), "has no role"),
        ("client.test", (), "has no role"),
        ("client.test", ("0:reader", "0:writer"), "has no role"),
        ("writer", (), "has no role"),
        (None, (), "no certificate"),
    ],
)
async def test_any_other_certificate_opens_nothing(
    opened: Opened,
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
    name: str | None,
    units: tuple[str, ...],
    words: str,
) -> None:
    context = certificates.client(name, units=units)
    secured = await opened.connect(roles_config(certificates)).secured(context)
    assert await secured.ask(ADD) == RefusedReply(Code.UNAUTHORIZED, Operation.ADD_ENTRY)
    assert await secured.ask(ADD, version=2) == AddReply(Code.UNAUTHORIZED, 7, 0)
    assert opened.bookie.storage.ledger(7) is None
    assert opened.sessions[0].identity is None
    assert words in caplog.text
    # No token helps.
    assert await secured.ask(AuthRequest("BookieAuthZFactory", b"")) == RefusedReply(
        Code.UNAUTHORIZED, Operation.AUTH
    )
    assert await secured.reply() is None


async def test_a_token_does_not_help_a_certificate_that_was_refused(
    opened: Opened, certificates: Certificates
) -> None:
    class Both(Words):
        def open(self) -> Both:
            return self

        def on_tls(self, certificate: PeerCertificate | None) -> None:
            raise AuthRefusedError("revoked")

    config = ServerConfig(auth=Both(), tls=lambda: certificates.bookie)
    secured = await opened.connect(config).secured(certificates.client())
    assert await secured.ask(AuthRequest("words", SECRET)) == RefusedReply(Code.UNAUTHORIZED, Operation.AUTH)
    assert await secured.reply() is None


async def test_roles_are_not_read_in_clear_text(opened: Opened, certificates: Certificates) -> None:
    peer = opened.connect(roles_config(certificates))
    assert await peer.ask(ADD, version=2) == AddReply(Code.UNAUTHORIZED, 7, 0)
    assert await peer.ask(AuthRequest("BookieAuthZFactory", b"writer")) == RefusedReply(
        Code.UNAUTHORIZED, Operation.AUTH
    )
