"""The plug-in ``token`` of a client: a bearer token, sent over TLS only.

    client  AUTH token       -> bookie  AUTH ""

Inside: the exchange, the token from its file. Not inside: the bookie's side (``bookie.auth.tokens``).
Always: without TLS the settings are refused; the file is read again for each connection, so a changed token
needs no restart.

Source: docs/protocol.md 12.5 (Apache has no such plug-in).
"""

from __future__ import annotations

from pathlib import Path

import attrs

from ledger.runtime.secret_file import SecretFileError, SecretOf, read_secret

PLUGIN = "dlog-token"
TOKEN_CHARS_MIN = 16
TOKEN_CHARS_MAX = 4096


def check_token(token: str) -> str:
    """Return the token.

    Raises:
        ValueError: It is too short to be a secret, too long, or has white space in it.
    """
    if not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX or not token.isascii() or len(token.split()) != 1:
        raise ValueError(
            f"a token must have {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} ASCII characters without white space;"
            " make one with: openssl rand -hex 32"
        )
    return token


@attrs.define
class TokenLogin:
    """The exchange on one connection."""

    _token: str = attrs.field(repr=False)
    plugin: str = attrs.field(default=PLUGIN, init=False)

    def first_token(self) -> bytes:
        """The token itself."""
        return self._token.encode()

    def next_token(self, challenge: bytes) -> None:
        """None: the bookie has accepted the token.

        Raises:
            ValueError: It asks for more.
        """
        if challenge:
            raise ValueError("it asks for more than the token")


@attrs.frozen
class TokenAuth:
    """Makes the authentication of each connection, for ``TransportConfig.auth``."""

    token_file: Path
    needs_tls: bool = attrs.field(default=True, init=False)

    def __call__(self) -> TokenLogin:
        """The exchange of a new connection.

        Raises:
            OSError, ValueError: The file cannot be used.
        """
        try:
            return TokenLogin(check_token(read_secret(self.token_file, SecretOf.OURS)))
        except SecretFileError:
            raise  # it names the file
        except ValueError as exc:
            raise ValueError(f"{self.token_file}: {exc}") from None
