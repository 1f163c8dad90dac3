"""The plug-in ``sasl`` of a bookie: DIGEST-MD5 as Apache's clients speak it.

    "" --challenge--> response --rspauth--> authenticated

Inside: the order of messages, users from a JAAS file, which users may connect. Not inside: the messages and
the hash (``ledger.auth.digest_md5``), the number and size of tokens (``gate``).
Always: a nonce belongs to one connection and is used once; an unknown user costs the same work as a wrong
password; no error has a password, a hash or a nonce in it.

Source: SASLBookieAuthProvider.java, SaslServerState.java; docs/protocol.md 12.4.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path

import attrs

from ledger.auth import digest_md5
from ledger.auth.authentication import AuthRefusedError, AuthStep, PeerCertificate, PeerIdentity
from ledger.auth.jaas import read_section

PLUGIN = "sasl"
BOOKIE_SECTION = "Bookie"  # Apache's default of ``saslJaasBookieSectionName``
ALLOWED_IDS = ".*bookkeeper.*"  # Apache's default of ``saslJaasClientAllowedIds``

_USER_CHARS_SHOWN = 64
_FAILED = "unknown user or wrong password"


@attrs.define(eq=False)
class SaslUsers:
    """The plug-in of a bookie. ``reload`` must be called before the first connection."""

    jaas_file: Path
    section: str = BOOKIE_SECTION
    allowed_ids: re.Pattern[str] = attrs.field(factory=lambda: re.compile(ALLOWED_IDS))
    _users: Mapping[str, str] = attrs.field(factory=dict, init=False, repr=False)  # replaced as a whole

    @property
    def plugin(self) -> str:
        """See ``AuthProvider``."""
        return PLUGIN

    @property
    def needs_tls(self) -> bool:
        """False: the password is not sent. ``tlsRequired`` is for the bookie's operator to decide."""
        return False

    def open(self) -> SaslExchange:
        """See ``AuthProvider``."""
        return SaslExchange(self._users, self.allowed_ids)

    def reload(self) -> None:
        """See ``AuthProvider``."""
        users = read_section(self.jaas_file, self.section).users
        if not users:
            raise ValueError(
                f'{self.jaas_file}, section {self.section}: there is no user; write user_NAME="PASSWORD"'
            )
        self._users = users


@attrs.define(eq=False)
class SaslExchange:
    """The exchange on one connection."""

    _users: Mapping[str, str] = attrs.field(repr=False)
    _allowed_ids: re.Pattern[str]
    _nonce: str | None = attrs.field(default=None, init=False, repr=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def on_tls(self, certificate: PeerCertificate | None) -> None:
        """Nothing: the tokens decide."""

    def answer(self, token: bytes) -> AuthStep:
        """See ``ConnectionAuth``."""
        if self._is_over:
            raise AuthRefusedError("the nonce of this connection was used")
        if self._nonce is None:
            if token:
                raise AuthRefusedError("DIGEST-MD5 begins with an empty token")
            self._nonce = secrets.token_urlsafe(32)
            quoted = digest_md5.quoted
            return AuthStep(
                f'realm={quoted(digest_md5.REALM)},qop="auth",nonce={quoted(self._nonce)},charset=utf-8,'
                "algorithm=md5-sess".encode()
            )
        self._is_over = True
        try:
            message = digest_md5.parse_message(token)
        except ValueError as exc:
            raise AuthRefusedError(str(exc)) from None
        return self._check(message, self._nonce)

    def _check(self, message: Mapping[str, str], nonce: str) -> AuthStep:
        username = message.get("username", "")
        expected = {
            "realm": digest_md5.REALM,
            "nonce": nonce,
            "nc": digest_md5.FIRST_USE,
            "digest-uri": digest_md5.DIGEST_URI,
            "qop": "auth",
            "authzid": username,
        }
        for name, value in expected.items():
            if message.get(name, value if name in ("qop", "authzid") else "") != value:
                raise AuthRefusedError(f"the response of user {_shown(username)} has a wrong {name}")
        # Also for an unknown user, so that the time of the reply does not tell users from others.
        password = self._users.get(username)
        exchange = digest_md5.Exchange(
            digest_md5.REALM, nonce, message.get("cnonce", ""), message.get("authzid")
        )
        known = secrets.token_urlsafe(16) if password is None else password
        response = digest_md5.response_hash(username, known, exchange)
        is_right = digest_md5.is_hash(message.get("response", ""), response)
        if not is_right or password is None or not exchange.cnonce:
            raise AuthRefusedError(f"user {_shown(username)}: {_FAILED}")
        if self._allowed_ids.fullmatch(username) is None:
            raise AuthRefusedError(
                f"user {_shown(username)} may not connect: saslJaasClientAllowedIds is"
                f" {self._allowed_ids.pattern!r}"
            )
        proof = digest_md5.response_hash(username, password, exchange, of_server=True)
        return AuthStep(f"rspauth={proof}".encode(), PeerIdentity(username, PLUGIN))


def _shown(username: str) -> str:
    """A name that a stranger chose, for the log."""
    return ascii(username[:_USER_CHARS_SHOWN])
