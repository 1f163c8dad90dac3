"""How a client proves its identity to bookies, and checks theirs.

Inside: the interface of a plug-in, SASL DIGEST-MD5, tokens, TLS contexts, key stores of Java, secret files.
Not inside: when the exchange takes place on a connection (``ledger.transport``).
Entry points: ``SaslAuth``, ``TokenAuth`` and ``client_context``, each imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.auth.sasl import SaslAuth as SaslAuth
    from ledger.auth.tls import client_context as client_context
    from ledger.auth.token_auth import TokenAuth as TokenAuth
else:  # a type checker would take any name

    def __getattr__(name: str) -> object:
        from ledger.runtime.lazy_names import lazy_name

        return lazy_name(__name__, name)
