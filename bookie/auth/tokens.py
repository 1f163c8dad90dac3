"""The plug-in ``token`` of a bookie: bearer tokens, over TLS only.

The file has one token a line, with the name of its owner. Lines that begin with # are comments:

    alice sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    backup 6d7a0c4f... (the token itself)

Inside: the file, the comparison. Not inside: the client's side (``ledger.auth.token_auth``), TLS.
Always: a token is compared with every line in constant time; memory has only hashes of tokens.

Source: docs/protocol.md 12.5 (Apache has no such plug-in).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

import attrs

from ledger.auth.authentication import AuthRefusedError, AuthStep, PeerCertificate, PeerIdentity
from ledger.auth.token_auth import PLUGIN, TOKEN_CHARS_MAX, check_token
from ledger.runtime.secret_file import SecretOf, read_secret

_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_OWNER = re.compile(r"[\w.@+-]{1,64}", re.ASCII)


@attrs.define(eq=False)
class BearerTokens:
    """The plug-in, which also serves each connection. ``reload`` must be called before the first one."""

    token_file: Path
    _owners: tuple[tuple[bytes, str], ...] = attrs.field(default=(), init=False, repr=False)  # hash, owner

    @property
    def plugin(self) -> str:
        """See ``AuthProvider``."""
        return PLUGIN

    @property
    def needs_tls(self) -> bool:
        """True: a listener could use the token again."""
        return True

    def open(self) -> BearerTokens:
        """See ``AuthProvider``."""
        return self

    def reload(self) -> None:
        """See ``AuthProvider``."""
        self._owners = parse_tokens(read_secret(self.token_file, SecretOf.OURS), str(self.token_file))

    def on_tls(self, certificate: PeerCertificate | None) -> None:
        """Nothing: the token decides."""

    def answer(self, token: bytes) -> AuthStep:
        """See ``ConnectionAuth``."""
        if len(token) > TOKEN_CHARS_MAX:
            raise AuthRefusedError(f"a token of {len(token)} bytes; {TOKEN_CHARS_MAX} are allowed")
        hashed = hashlib.sha256(token).digest()
        found: str | None = None
        for expected, owner in self._owners:  # to the end: the time does not tell which line it was
            if hmac.compare_digest(hashed, expected):
                found = owner
        if found is None:
            raise AuthRefusedError("the token belongs to no owner")
        return AuthStep(b"", PeerIdentity(found, PLUGIN))


def parse_tokens(text: str, source: str) -> tuple[tuple[bytes, str], ...]:
    """The hash and the owner of each token.

    Raises:
        ValueError: A line does not parse, or there is no token. The message names the line, not the token.
    """
    found: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        if len(parts) != 2 or _OWNER.fullmatch(parts[0]) is None:
            raise ValueError(f"{source}, line {number}: expected the owner's name and a token")
        owner, token = parts
        hashed = _HASHED.fullmatch(token)
        if hashed is None and token.startswith("sha256:"):
            raise ValueError(f"{source}, line {number}: sha256: needs 64 hexadecimal digits in lower case")
        try:
            key = bytes.fromhex(hashed[1]) if hashed else hashlib.sha256(check_token(token).encode()).digest()
        except ValueError as exc:
            raise ValueError(f"{source}, line {number}: {exc}") from None
        if found.setdefault(key, owner) != owner:
            raise ValueError(f"{source}, line {number}: two owners have the same token")
    if not found:
        raise ValueError(f"{source} has no token")
    return tuple(found.items())
