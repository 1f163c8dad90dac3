"""Proofs of the identity of a bookie's peer: certificates and roles, SASL DIGEST-MD5, tokens, plug-ins.

Inside: the interface of a plug-in, the mechanisms, TLS contexts, reading them again while the bookie runs.
Not inside: the requests of an unproven peer (``bookie.server.gate``). Entry point: ``AuthProvider``.
"""

from ledger.auth.authentication import AuthProvider, PeerIdentity

__all__ = ["AuthProvider", "PeerIdentity"]
