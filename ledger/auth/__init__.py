"""How a client proves its identity to bookies, and checks theirs.

Inside: the interface of a plug-in, SASL DIGEST-MD5, tokens, TLS contexts, key stores of Java, secret files.
Not inside: when the exchange takes place on a connection (``ledger.transport``).
Entry points: ``SaslAuth``, ``TokenAuth`` and ``client_context``.
"""

from ledger.auth.sasl import SaslAuth
from ledger.auth.tls import client_context
from ledger.auth.token_auth import TokenAuth

__all__ = ["SaslAuth", "TokenAuth", "client_context"]
