"""The interface of an authentication plug-in on the bookie's side, and the identity that it proves.

Inside: the values that a plug-in receives and returns, the identity of a peer, the roles in a certificate.
Not inside: any mechanism (``sasl``, ``certificate_roles``, ``token``), which requests pass (``gate``).
Always: a plug-in returns an identity, or the peer is not authenticated; an identity never holds a secret.

A plug-in of a third party is an entry point of the group ``dlog.auth.bookie`` that loads an ``AuthOpener``.

Source: BookieAuthProvider.java, CertUtils.java; docs/protocol.md 12.1, 12.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

_ESCAPED = re.compile(r'[,+"\\<>;=#\x00-\x1f\x7f-\x9f]')
_SHORT_NAMES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
}


class AuthRefusedError(Exception):
    """The peer proves no identity that may connect. The message is for the bookie's log; it has no secret."""


@attrs.frozen
class PeerCertificate:
    """The parts of a verified client certificate that say which peer it is."""

    subject: str  # as RFC 4514 writes it, such as CN=client,OU=0:writer
    units: tuple[str, ...] = ()  # organizational units
    alternative_names: tuple[str, ...] = ()  # such as DNS:client.example, IP Address:10.0.0.1

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles in the organizational unit ``0:role,role;1:cluster``.

        Empty without one. Also empty with several units: peers that read another one would see other roles.
        """
        if len(self.units) != 1:
            return ()
        for part in self.units[0].split(";"):
            key, separator, value = part.partition(":")
            if separator and key.strip() == "0":
                return tuple(role for role in map(str.strip, value.split(",")) if role)
        return ()


@attrs.frozen
class PeerIdentity:
    """An authenticated peer, for permissions and for the audit log."""

    name: str
    """The user of SASL, the owner of a token, or the subject of the certificate."""
    mechanism: str
    """The name of the plug-in; ``tls`` if the certificate alone identifies the peer."""
    roles: tuple[str, ...] = ()
    certificate: PeerCertificate | None = None
    """The client certificate of the connection, also if a plug-in proved another name."""

    def __str__(self) -> str:
        return f"{self.name} ({self.mechanism})"


@attrs.frozen
class AuthStep:
    """The plug-in's answer to one token."""

    token: bytes = attrs.field(repr=False)
    """The bytes for the peer; may be empty."""
    identity: PeerIdentity | None = None
    """Set once the peer is authenticated."""


class ConnectionAuth(Protocol):
    """The authentication of one connection."""

    def on_tls(self, certificate: PeerCertificate | None) -> PeerIdentity | None:
        """The connection uses TLS from now on; None if tokens decide.

        Args:
            certificate: The client's, verified; None if it sent none.

        Raises:
            AuthRefusedError: The certificate does not allow the connection.
        """

    def answer(self, token: bytes) -> AuthStep:
        """Take the peer's next token.

        Raises:
            AuthRefusedError: The token is malformed or proves no identity.
        """


class AuthProvider(Protocol):
    """The authentication plug-in of a bookie."""

    @property
    def plugin(self) -> str:
        """The name that the client's plug-in must have too."""

    @property
    def needs_tls(self) -> bool:
        """True if tokens must not be sent in clear text."""

    def open(self) -> ConnectionAuth:
        """The authentication of a new connection."""

    def reload(self) -> None:
        """Read the files with secrets again, for new connections. Blocks; runs in a thread.

        Raises:
            OSError, ValueError: A file cannot be used. The provider continues with the old secrets.
        """


class AuthOpener(Protocol):
    """The function that an entry point of ``dlog.auth.bookie`` loads."""

    def __call__(self, settings: Mapping[str, str]) -> AuthProvider:
        """Make the provider from all keys of ``bk_server.conf``.

        Raises:
            ValueError, OSError: A setting or file cannot be used; the bookie does not start.
        """


def certificate_identity(certificate: PeerCertificate) -> PeerIdentity:
    """The identity of a peer with a certificate and without a plug-in."""
    return PeerIdentity(certificate.subject, "tls", certificate.roles, certificate)


def parse_certificate(decoded: Mapping[str, Any] | None) -> PeerCertificate | None:
    """The certificate in the form of ``SSLSocket.getpeercert()``; None if there is none."""
    if not decoded:
        return None
    names = [(str(key), str(value)) for rdn in decoded.get("subject", ()) for key, value in rdn]
    subject = ",".join(f"{_SHORT_NAMES.get(key, key)}={_escaped(value)}" for key, value in reversed(names))
    return PeerCertificate(
        subject,
        tuple(value for key, value in names if key == "organizationalUnitName"),
        tuple(f"{kind}:{value}" for kind, value in decoded.get("subjectAltName", ())),
    )


def _escaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: f"\\{ord(found[0]):02X}", value)
