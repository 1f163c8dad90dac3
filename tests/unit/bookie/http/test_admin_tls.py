"""TLS at the HTTP port: strangers in clear text and without a certificate get nothing."""

# covers: bookie/config/admin_config.py
# covers: dlog/cli/operators/bookie/admin_server.py

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from bookie.config.admin_config import AdminConfig, AdminTls
from bookie.config.bookie_config import parse_config
from bookie.errors import BookieConfigError
from bookie.http import serve_admin
from bookie.http.secrets import admin_context
from dlog.cli.main import main
from ledger.auth.tls import client_context
from tests.fakes.certificates import Signed, TestAuthority, make_authority
from tests.unit.bookie.http.test_admin import AUTHORIZED, HOST, send_request, serving

SERVER = make_authority("server-authority.test")
CLIENTS = make_authority("client-authority.test")
BASE = "zkServers=zk1\njournalDirectories=/j\nledgerDirectories=/l\nhttpServerEnabled=true\n"


def write_pkcs12(signed: Signed, path: Path, password: bytes) -> Path:
    encryption = serialization.BestAvailableEncryption(password)
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(b"bookie", signed.key, signed.certificate, None, encryption)
    )
    return path


@asynccontextmanager
async def serving_tls(directory: Path, tls: AdminTls) -> AsyncIterator[tuple[str, int]]:
    async with serving(directory) as (admin, _), trio.open_nursery() as nursery:
        config = AdminConfig(port=0, tls=tls, token_path=None if tls.trust_store else directory / "token")
        url = await nursery.start(serve_admin, admin, config)
        host, _, port = url.removeprefix("https://").rpartition(":")
        yield host, int(port)
        nursery.cancel_scope.cancel()


async def status(
    address: tuple[str, int], authority: TestAuthority, directory: Path, client: Signed | None, headers: str
) -> int | None:
    """The status of a request for the bookie's info; None if the server ends the connection."""
    certificate = None if client is None else client.write_pem(directory / "client.pem")
    context = client_context(
        authorities=authority.write_pem(directory / "authority.pem"), certificate=certificate
    )
    request = f"GET /api/v1/bookie/info HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
    reply = b""
    tcp = await trio.open_tcp_stream(*address)
    stream = trio.SSLStream(tcp, context, server_hostname="localhost", https_compatible=True)
    try:
        with trio.fail_after(60):
            await stream.send_all(request.encode())
            while chunk := await stream.receive_some():
                reply += chunk
    except trio.BrokenResourceError:
        pass
    finally:
        await trio.aclose_forcefully(stream)
    return int(reply.split()[1]) if reply else None


@pytest.mark.slow
async def test_a_client_needs_a_certificate_of_the_trust_store_and_then_no_token(tmp_path: Path) -> None:
    tls = AdminTls(
        key_store=write_pkcs12(SERVER.sign("localhost"), tmp_path / "key.p12", b"secret"),
        key_store_password="secret",
        trust_store=CLIENTS.write_pem(tmp_path / "trust.pem"),
    )
    async with serving_tls(tmp_path, tls) as address:
        ours, strangers = CLIENTS.sign("operator"), SERVER.sign("stranger")
        assert await status(address, SERVER, tmp_path, ours, HOST) == 200
        assert await status(address, SERVER, tmp_path, None, AUTHORIZED) is None
        assert await status(address, SERVER, tmp_path, strangers, AUTHORIZED) is None


@pytest.mark.slow
async def test_without_a_trust_store_a_client_needs_the_token(tmp_path: Path) -> None:
    tls = AdminTls(key_store=SERVER.sign("localhost").write_pem(tmp_path / "key.pem"))
    async with serving_tls(tmp_path, tls) as address:
        assert await status(address, SERVER, tmp_path, None, HOST) == 401
        assert await status(address, SERVER, tmp_path, None, AUTHORIZED) == 200
        with pytest.raises((OSError, IndexError, trio.BrokenResourceError)):
            await send_request(f"http://{address[0]}:{address[1]}", "GET", "/api/v1/bookie/info")


async def test_http_2_is_not_offered(tmp_path: Path) -> None:
    tls = AdminTls(key_store=SERVER.sign("localhost").write_pem(tmp_path / "key.pem"))
    async with serving_tls(tmp_path, tls) as address:
        context = client_context(authorities=SERVER.write_pem(tmp_path / "authority.pem"), certificate=None)
        context.set_alpn_protocols(["h2", "http/1.1"])
        tcp = await trio.open_tcp_stream(*address)
        stream = trio.SSLStream(tcp, context, server_hostname="localhost", https_compatible=True)
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() == "http/1.1"
        await trio.aclose_forcefully(stream)


async def test_the_command_speaks_tls_with_a_certificate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tls = AdminTls(
        key_store=SERVER.sign("localhost").write_pem(tmp_path / "key.pem"),
        trust_store=CLIENTS.write_pem(tmp_path / "trust.pem"),
    )
    authority = SERVER.write_pem(tmp_path / "authority.pem")
    certificate = CLIENTS.sign("operator").write_pem(tmp_path / "client.pem")
    async with serving_tls(tmp_path, tls) as (_, port):
        command = ["bookie", "gc", "--url", f"https://localhost:{port}", "--authorities", str(authority)]
        shown = [*command, "--certificate", str(certificate), "--json"]
        assert await trio.to_thread.run_sync(main, shown) == 0
        assert "directories" in json.loads(capfd.readouterr().out)
        assert await trio.to_thread.run_sync(main, command) == 6


def test_keys_that_restrict_access_are_obeyed_or_stop_the_start() -> None:
    def read(text: str) -> AdminConfig | None:
        return parse_config(BASE + text, "f").admin

    config = read(
        "httpServerTlsEnable=true\nhttpServerKeyStorePath=/k\nhttpServerKeyStorePassword=secret\n"
        "httpServerTrustStorePath=/t\nhttpServerTrustStorePassword=other"
    )
    assert config is not None
    assert config.tls == AdminTls(
        key_store=Path("/k"),
        key_store_password="secret",
        trust_store=Path("/t"),
        trust_store_password="other",
    )
    assert "secret" not in repr(config)
    with pytest.raises(BookieConfigError, match="httpServerKeyStorePath"):
        read("httpServerTlsEnable=true")
    with pytest.raises(BookieConfigError, match="restricts access"):
        read("httpServerTrustStorePath=/t")


def test_a_store_that_cannot_be_used_is_named_without_its_password(tmp_path: Path) -> None:
    store = write_pkcs12(SERVER.sign("localhost"), tmp_path / "key.p12", b"secret")
    with pytest.raises(BookieConfigError, match=f"httpServerKeyStorePath {store}") as caught:
        admin_context(AdminTls(key_store=store, key_store_password="guessed"))
    assert "guessed" not in str(caught.value)
    with pytest.raises(BookieConfigError, match="No such file"):
        admin_context(AdminTls(key_store=tmp_path / "nothing"))
