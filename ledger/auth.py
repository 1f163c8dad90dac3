"""The seam for authentication plug-ins on the client's side of a connection.

Inside: what a plug-in has to offer. Not inside: the exchange (``handshake``), any mechanism.

Source: ClientAuthProvider.java; operations reference 7.1.
"""

from __future__ import annotations

from typing import Protocol

AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"  # what a bookie that wants no authentication answers to it


class ClientAuth(Protocol):
    """One authentication of one connection. The bookie must know a plug-in of the same name."""

    plugin: str

    def first_token(self) -> bytes:
        """What the client says first; may be empty."""

    def next_token(self, challenge: bytes) -> bytes | None:
        """What to say to the bookie's answer; None: nothing, we are done.

        Raises:
            ValueError: The bookie is not who it should be, or does not make sense.
        """
