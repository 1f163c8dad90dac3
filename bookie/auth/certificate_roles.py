"""Authorization by the role in the client's certificate, as Apache's ``BookieAuthZFactory`` does it.

Inside: the decision. Not inside: the parts of a certificate (``authentication``), its verification (``tls``).
Always: without TLS, without a certificate or without a role no request is served; only the first role counts.

Source: BookieAuthZFactory.java, CertUtils.java; docs/protocol.md 12.3.
"""

from __future__ import annotations

import attrs

from ledger.auth.authentication import AuthRefusedError, AuthStep, PeerCertificate, PeerIdentity

PLUGIN = "BookieAuthZFactory"


@attrs.frozen
class CertificateRoles:
    """The plug-in; it also serves each connection, since it keeps no state."""

    authorized_roles: frozenset[str] = attrs.field(validator=attrs.validators.min_len(1))
    plugin: str = attrs.field(default=PLUGIN, init=False)
    needs_tls: bool = attrs.field(default=True, init=False)

    def open(self) -> CertificateRoles:
        """See ``AuthProvider``."""
        return self

    def reload(self) -> None:
        """There are no secrets."""

    def on_tls(self, certificate: PeerCertificate | None) -> PeerIdentity:
        """The identity of a client whose first role is authorized.

        Raises:
            AuthRefusedError: There is no certificate, no role in it, or another role.
        """
        if certificate is None:
            raise AuthRefusedError("the client sent no certificate")
        if not certificate.roles:
            raise AuthRefusedError(
                f"the certificate of {certificate.subject} has no role; its one organizational unit must be"
                " such as 0:role;1:cluster"
            )
        if certificate.roles[0] not in self.authorized_roles:
            raise AuthRefusedError(
                f"the certificate of {certificate.subject} has the role {certificate.roles[0]!r}, which"
                " authorizedRoles does not list"
            )
        return PeerIdentity(certificate.subject, PLUGIN, certificate.roles, certificate)

    def answer(self, token: bytes) -> AuthStep:
        """Refuse: the certificate has decided already, or there is none.

        Raises:
            AuthRefusedError: Always.
        """
        raise AuthRefusedError(f"{PLUGIN} takes no tokens; the certificate decides")
