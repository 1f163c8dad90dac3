"""The keys of ``bk_server.conf`` for the HTTP port of operators.

Inside: address and port, and the refusal of TLS, which is not offered. Not inside: the server
(``bookie.admin``).
"""

from __future__ import annotations

import attrs

from bookie.config.settings import Settings


@attrs.frozen(kw_only=True)
class AdminConfig:
    """The address of the HTTP server for operators."""

    host: str = "0.0.0.0"  # Apache's default
    port: int = attrs.field(
        default=8080, validator=attrs.validators.and_(attrs.validators.ge(0), attrs.validators.le(65535))
    )


def read_admin(settings: Settings) -> AdminConfig | None:
    """The keys ``httpServer*``; None if the HTTP server is off. Raises ``BookieConfigError``."""
    config = AdminConfig(
        host=settings.text("httpServerHost") or "0.0.0.0",
        port=settings.integer("httpServerPort", 8080, most=65535),
    )
    wants_tls = settings.boolean("httpServerTlsEnable", False)
    if not settings.boolean("httpServerEnabled", False):
        return None
    if wants_tls:
        raise settings.error(
            "httpServerTlsEnable",
            "false: the HTTP server has no TLS. Let it listen on loopback"
            " (httpServerHost=127.0.0.1), behind a proxy with a certificate",
        )
    return config
