"""Checks that a bookie replies to a request. An open port alone does not show that the bookie serves.

The probe speaks TLS and authenticates as the bookie's own ``bk_server.conf`` asks, or by the settings of this
program (DLOG_BOOKIE_SECURITY). A bookie that refuses the probe has replied too: it serves its clients.

Source: BookieProtocol v3, GET_BOOKIE_INFO; a bookie replies to it without any ledger.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import attrs
import trio

from bookie.auth.tls import peer_context
from bookie.config.bookie_config import load_config
from bookie.config.classes import BookieConfig
from bookie.errors import BookieConfigError
from ledger.auth.auth import AuthFactory
from ledger.auth.jaas import read_section
from ledger.auth.sasl import SaslLogin
from ledger.auth.sasl_users import SaslUsers
from ledger.codes import Code
from ledger.errors import BookieError, BookieSecurityError, SecuritySettingsError
from ledger.transport.bookie_security import NO_SECURITY, security_of_environment
from ledger.transport.config import TransportConfig
from ledger.transport.dial import Address, dial_tcp
from ledger.transport.transport import open_transport
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest

Login = tuple[ssl.SSLContext | None, AuthFactory | None]


@attrs.frozen
class Answer:
    """The reply of a bookie that serves."""

    free_disk_bytes: int | None  # None: it refuses the probe


async def ask_bookie(address: Address, config: Path, *, timeout_s: float) -> Answer | None:
    """Request a bookie's disk space; return None without a valid reply in time.

    Args:
        config: The bookie's ``bk_server.conf``.
    """
    tls, auth = _login(config)
    settings = TransportConfig(tls=tls, auth=auth, connect_timeout_s=timeout_s, request_timeout_s=timeout_s)

    async def resolve(_bookie: str) -> Address:
        return address

    with trio.move_on_after(timeout_s):
        async with open_transport(dial_tcp, resolve, settings) as transport:
            try:
                reply = await transport.call(str(address), BookieInfoRequest())
            except BookieSecurityError:
                return Answer(None)
            except BookieError:
                return None
            if isinstance(reply, BookieInfoReply) and reply.code is Code.OK:
                return Answer(reply.free_disk_bytes)
            return Answer(None) if reply.code is Code.UNAUTHORIZED else None
    return None


def _login(path: Path) -> Login:
    try:
        security = security_of_environment()
        if security != NO_SECURITY:
            return security.open()
        config = load_config(path)
        return None if config.tls is None else peer_context(config.tls), _authentication(config)
    except (BookieConfigError, SecuritySettingsError, OSError, ValueError):
        return None, None  # the bookie refuses the probe, or does not start and says why in its log


def _authentication(config: BookieConfig) -> AuthFactory | None:
    if config.client_auth is not None:
        return config.client_auth
    provider = config.server.auth
    if not isinstance(provider, SaslUsers):
        return None
    users = read_section(provider.jaas_file, provider.section).users
    for name, password in users.items():
        if provider.allowed_ids.fullmatch(name) is not None:
            return _as(name, password)
    return None


def _as(name: str, password: str) -> Callable[[], SaslLogin]:
    return lambda: SaslLogin(name, password)
