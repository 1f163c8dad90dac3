"""The HTTP port of operators, as the configuration has it.

Inside: address, port, the token's file, allowed names, the stores for TLS. Not inside: the server
(``bookie.http``), the checks of a request (``bookie.http.guard``), reading stores (``bookie.http.secrets``).
Always: without ``httpServerHost`` the port is reachable from this machine only.
"""

from __future__ import annotations

from pathlib import Path

import attrs

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
