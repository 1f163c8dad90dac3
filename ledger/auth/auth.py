"""The interface of an authentication plug-in on the client's side of a connection.

Inside: the methods of a plug-in. Not inside: the exchange of tokens (``handshake``), any mechanism.

Source: ClientAuthProvider.java; docs/protocol.md 12.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"  # in the reply of a bookie without authentication


class ClientAuth(Protocol):
    """The authentication of one connection. The bookie must have a plug-in of the same name."""

    plugin: str

    def first_token(self) -> bytes:
        """The token that the client sends first; may be empty."""

    def next_token(self, challenge: bytes) -> bytes | None:
        """The token that follows the bookie's ``challenge``; None if the authentication is complete.

        Raises:
            ValueError: The challenge is malformed, or proves that the bookie is not authentic.
        """


AuthFactory = Callable[[], ClientAuth]
"""Makes the authentication of one connection. With an attribute ``needs_tls`` that is true, it is refused
without TLS. An OSError or ValueError fails the connection."""
