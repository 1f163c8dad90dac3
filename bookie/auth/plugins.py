"""The authentication plug-ins of a bookie by name: ours, and those that other packages install.

A package adds one by an entry point, and ``bookieAuthProviderFactoryClass`` names it. In its pyproject.toml:

    [project.entry-points."dlog.auth.bookie"]
    example = "example_auth:open_provider"

The entry point loads an ``AuthOpener``: a function that takes all keys of ``bk_server.conf`` and returns an
``AuthProvider`` (both in ``authentication``). Keys of the plug-in itself begin with ``authPlugin.``.

Inside: finding a plug-in, our plug-ins' keys. Not inside: roles in certificates, which need TLS's keys
(``bookie.config.security_settings``); the client's plug-ins (``ledger.auth.auth_plugins``).

Source: AuthProviderFactoryFactory.java; docs/protocol.md 12.4, 12.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from bookie.auth.tokens import BearerTokens
from ledger.auth.authentication import AuthOpener, AuthProvider
from ledger.auth.sasl_users import ALLOWED_IDS, BOOKIE_SECTION, SaslUsers

BOOKIE_GROUP = "dlog.auth.bookie"
JAAS_FILE_KEY = "java.security.auth.login.config"  # the JVM's system property, here a key of the file
TOKEN_FILE_KEY = "authTokenFile"


def open_provider(name: str, settings: Mapping[str, str]) -> AuthProvider:
    """The provider of a plug-in. Its ``reload`` must be called before the first connection.

    Args:
        name: ``sasl`` or Apache's ``...SASLBookieAuthProviderFactory``, ``token``, or an entry point.

    Raises:
        ValueError, OSError: There is no such plug-in, or a setting cannot be used.
    """
    opener = _OURS.get(name.rpartition(".")[2])
    if opener is None:
        found = list(entry_points(group=BOOKIE_GROUP, name=name))
        if not found:
            installed = {entry.name for entry in entry_points(group=BOOKIE_GROUP)}
            raise ValueError(
                "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory,"
                " org.apache.bookkeeper.tls.BookieAuthZFactory, token"
                f"{''.join(f', {one}' for one in sorted(installed))}, or an entry point of {BOOKIE_GROUP}. A"
                " bookie that ignored the plug-in would serve every client"
            )
        opener = found[0].load()
    return opener(settings)


def _open_sasl(settings: Mapping[str, str]) -> AuthProvider:
    path = settings.get(JAAS_FILE_KEY)
    if not path:
        raise ValueError(f"{JAAS_FILE_KEY}, the JAAS file with the users, beside it")
    pattern = settings.get("saslJaasClientAllowedIds") or ALLOWED_IDS
    try:
        allowed = re.compile(pattern)
    except re.error as exc:
        raise ValueError(
            f"saslJaasClientAllowedIds to be a regular expression, not {pattern!r} ({exc})"
        ) from exc
    return SaslUsers(Path(path), settings.get("saslJaasBookieSectionName") or BOOKIE_SECTION, allowed)


def _open_token(settings: Mapping[str, str]) -> AuthProvider:
    path = settings.get(TOKEN_FILE_KEY)
    if not path:
        raise ValueError(f"{TOKEN_FILE_KEY}, the file with the tokens, beside it")
    return BearerTokens(Path(path))


_OURS: dict[str, AuthOpener] = {
    "SASLBookieAuthProviderFactory": _open_sasl,
    "sasl": _open_sasl,
    "token": _open_token,
}
