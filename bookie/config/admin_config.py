"""The keys of ``bk_server.conf`` for the HTTP port of operators.

Inside: address, port, the token's file, allowed names, and the refusal of TLS, which is not offered. Not
inside: the server (``bookie.admin``), the checks of a request (``bookie.admin_guard``).
Always: without ``httpServerHost`` the port is reachable from this machine only.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from bookie.config.settings import Settings

LOOPBACK = "127.0.0.1"


@attrs.frozen(kw_only=True)
class AdminConfig:
    """The HTTP server for operators."""

    host: str = LOOPBACK  # Apache's default is 0.0.0.0
    port: int = attrs.field(
        default=8080, validator=attrs.validators.and_(attrs.validators.ge(0), attrs.validators.le(65535))
    )
    token_path: Path | None = None
    """The file with the token for all that changes or reveals something; None refuses these requests."""
    allowed_hosts: tuple[str, ...] = ()
    """Names of the server that a Host header may have, besides the machine's own and IP addresses."""


def read_admin(settings: Settings) -> AdminConfig | None:
    """The keys ``httpServer*``; None if the HTTP server is off. Raises ``BookieConfigError``."""
    token_path = settings.text("httpServerTokenPath")
    config = AdminConfig(
        host=settings.text("httpServerHost") or LOOPBACK,
        port=settings.integer("httpServerPort", 8080, most=65535),
        token_path=None if token_path is None else Path(token_path),
        allowed_hosts=settings.texts("httpServerAllowedHosts"),
    )
    wants_tls = settings.boolean("httpServerTlsEnable", False)
    if not settings.boolean("httpServerEnabled", False):
        return None
    if wants_tls:
        raise settings.error(
            "httpServerTlsEnable",
            "false: the HTTP server has no TLS. Let it listen on loopback"
            f" (httpServerHost={LOOPBACK}), behind a proxy with a certificate",
        )
    return config
