"""Certificates and secrets that change while a bookie serves, by its real port and our real client."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bookie.auth.reloading import Secrets, open_secrets
from bookie.auth.tls import TlsConfig
from bookie.auth.tokens import BearerTokens
from bookie.bookie import open_bookie
from bookie.errors import BookieConfigError
from bookie.server.config import ServerConfig
from ledger.auth.auth import AuthFactory
from ledger.auth.sasl import SaslAuth
from ledger.auth.sasl_users import SaslUsers
from ledger.auth.tls import client_context
from ledger.auth.token_auth import TokenAuth
from ledger.codes import Code
from ledger.errors import BookieSecurityError, BookieUnavailableError
from ledger.transport.config import TransportConfig
from ledger.transport.dial import Address, dial_tcp
from ledger.transport.transport import open_transport
from ledger.wire.messages import ReadReply, ReadRequest
from tests.fakes.certificates import TestAuthority, make_authority
from tests.unit.bookie.server.test_server import storage_config

TOKEN = "0123456789abcdef0123456789abcdef"
PASSWORD = "correct horse battery"


def write_users(path: Path, password: str) -> Path:
    path.write_text(f'Bookie {{ M required user_bookkeeper="{password}"; }};')
    return path


def write_password(path: Path, password: str = PASSWORD) -> Path:
    path.write_text(f"{password}\n")
    return path


async def ask(port: int, *, tls: ssl.SSLContext | None = None, auth: AuthFactory | None = None) -> None:
    """Send one request over a new connection."""

    async def resolve(_bookie: str) -> Address:
        return Address("127.0.0.1", port)

    async with open_transport(dial_tcp, resolve, TransportConfig(tls=tls, auth=auth)) as transport:
        assert await transport.call("b", ReadRequest(1, 0)) == ReadReply(Code.NO_LEDGER, 1, 0)


async def serve(nursery: trio.Nursery, directory: Path, config: ServerConfig) -> int:
    """Serve until the nursery is cancelled; the port."""

    async def run(*, task_status: trio.TaskStatus[int]) -> None:
        async with open_bookie(storage_config(directory), server_config=config) as bookie:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            task_status.started(listeners[0].socket.getsockname()[1])
            await bookie.serve_listeners(listeners)

    port: int = await nursery.start(run)
    return port


def trusting(authority: TestAuthority, directory: Path) -> ssl.SSLContext:
    return client_context(authorities=authority.write_pem(directory / "trusted.pem"), check_host_name=False)


async def test_sasl_over_a_real_port(tmp_path: Path, nursery: trio.Nursery) -> None:
    users = SaslUsers(write_users(tmp_path / "jaas.conf", PASSWORD))
    await open_secrets(None, users)
    port = await serve(nursery, tmp_path, ServerConfig(auth=users))
    await ask(port, auth=SaslAuth(username="bookkeeper", password_file=write_password(tmp_path / "right")))
    wrong = write_password(tmp_path / "wrong", "guess")
    with pytest.raises(BookieSecurityError, match=r"refused plug-in 'sasl' with UNAUTHORIZED"):
        await ask(port, auth=SaslAuth(username="bookkeeper", password_file=wrong))
    nursery.cancel_scope.cancel()


async def test_new_certificates_and_secrets_count_for_new_connections(
    tmp_path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    old, new = make_authority("old"), make_authority("new")
    pem = old.sign("bookie.test").write_pem(tmp_path / "bookie.pem")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice {TOKEN}\n")
    mine = write_password(tmp_path / "token", TOKEN)
    provider = BearerTokens(tokens)
    secrets = await open_secrets(TlsConfig(key=pem, certificate=pem), provider)
    config = ServerConfig(tls=lambda: secrets.context, auth=provider)
    port = await serve(nursery, tmp_path, config)
    await ask(port, tls=trusting(old, tmp_path), auth=TokenAuth(mine))

    # A file that cannot be used changes nothing and is reported once.
    pem.write_bytes(b"half written")
    for _ in range(3):
        await secrets.reload()
    assert caplog.text.count("stay as they are") == 1
    await ask(port, tls=trusting(old, tmp_path), auth=TokenAuth(mine))

    new.sign("bookie.test").write_pem(pem)
    changed = TOKEN[::-1]
    tokens.write_text(f"alice {changed}\n")
    await secrets.reload()
    with pytest.raises(BookieSecurityError, match="CERTIFICATE_VERIFY"):
        await ask(port, tls=trusting(old, tmp_path), auth=TokenAuth(mine))
    with pytest.raises(BookieUnavailableError):
        await ask(port, tls=trusting(new, tmp_path), auth=TokenAuth(mine))
    write_password(mine, changed)  # the client reads its own file again, too
    await ask(port, tls=trusting(new, tmp_path), auth=TokenAuth(mine))
    assert TOKEN not in caplog.text
    assert changed not in caplog.text
    nursery.cancel_scope.cancel()


async def test_a_secret_that_cannot_be_used_leaves_the_certificate_as_it_is(tmp_path: Path) -> None:
    pem = make_authority("old").sign("bookie.test").write_pem(tmp_path / "bookie.pem")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice {TOKEN}\n")
    secrets = await open_secrets(TlsConfig(key=pem, certificate=pem), BearerTokens(tokens))
    before = secrets.context
    tokens.unlink()
    await secrets.reload()
    assert secrets.context is before
    assert TOKEN not in repr(secrets)


async def test_a_bookie_does_not_start_with_secrets_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(BookieConfigError, match="plug-in 'dlog-token' cannot be used"):
        await open_secrets(None, BearerTokens(tmp_path / "absent"))


async def test_files_are_read_again_after_each_interval(
    tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    class Counting(Secrets):
        reloads = 0

        async def reload(self) -> None:
            self.reloads += 1

    secrets = Counting(None, None)
    nursery.start_soon(secrets.keep, 300)
    await trio.sleep(1000)
    assert secrets.reloads == 3
    nursery.cancel_scope.cancel()
