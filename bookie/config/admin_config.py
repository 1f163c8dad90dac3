"""The keys of ``bk_server.conf`` for the HTTP port of operators.

Inside: address, port, the token's file, allowed names, the stores for TLS. Not inside: the server
(``bookie.http``), the checks of a request (``bookie.http.guard``), reading stores (``bookie.http.tls``).
Always: without ``httpServerHost`` the port is reachable from this machine only.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from bookie.config.settings import Settings

LOOPBACK = "127.0.0.1"


@attrs.frozen(kw_only=True)
class AdminTls:
    """The stores for TLS. With a trust store clients need a certificate."""

    key_store: Path
    key_store_password: str | None = attrs.field(default=None, repr=False)
    trust_store: Path | None = None
    trust_store_password: str | None = attrs.field(default=None, repr=False)


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
    tls: AdminTls | None = None
    """None: requests and replies are in clear text."""
    page_namespace: str | None = None
    """The namespace whose logs the page shows; None: there is no page."""
    page_records: bool = False
    """The page also shows records, to those who have the token."""


def read_admin(settings: Settings) -> AdminConfig | None:
    """The keys ``httpServer*`` and ``httpPage*``; None: the server is off. Raises ``BookieConfigError``."""
    token_path = settings.text("httpServerTokenPath")
    config = AdminConfig(
        host=settings.text("httpServerHost") or LOOPBACK,
        port=settings.integer("httpServerPort", 8080, most=65535),
        token_path=None if token_path is None else Path(token_path),
        allowed_hosts=settings.texts("httpServerAllowedHosts"),
        tls=_read_tls(settings),
        page_namespace=settings.text("httpPageNamespace"),
        page_records=settings.boolean("httpPageRecords", False),
    )
    return config if settings.boolean("httpServerEnabled", False) else None


def _read_tls(settings: Settings) -> AdminTls | None:
    key_store = settings.text("httpServerKeyStorePath")
    trust_store = settings.text("httpServerTrustStorePath")
    key_store_password = settings.text("httpServerKeyStorePassword")
    trust_store_password = settings.text("httpServerTrustStorePassword")
    if not settings.boolean("httpServerTlsEnable", False):
        if trust_store is not None and settings.boolean("httpServerEnabled", False):
            raise settings.error(
                "httpServerTlsEnable", "true: httpServerTrustStorePath restricts access, but only with TLS"
            )
        return None
    if key_store is None:
        raise settings.error(
            "httpServerTlsEnable",
            "httpServerKeyStorePath beside it: a store (JKS, PKCS12 or PEM) with the server's key",
        )
    return AdminTls(
        key_store=Path(key_store),
        key_store_password=key_store_password,
        trust_store=None if trust_store is None else Path(trust_store),
        trust_store_password=trust_store_password,
    )
